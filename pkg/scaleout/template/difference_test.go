package template

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/dynamic-resource-allocation/deviceattribute"
	"k8s.io/utils/ptr"

	"github.com/mica-gpu/mica/api/v1alpha1"
	"github.com/mica-gpu/mica/pkg/devices"
)

// Every simulated machine is what was predicted for it: facts that are not known, and those
// that differ from node to node, contradict nothing.
func TestNodesDoNotContradictTheirPrediction(t *testing.T) {
	for _, machine := range []string{"g4dn.xlarge", "g5.12xlarge", "g6.xlarge", "p4d.24xlarge", "p5.48xlarge", "p5e.48xlarge", "p6-b200.48xlarge", "pascal"} {
		group := groupOf(t, machine)
		group.Spec.Template.DriverVersion = "999.1"
		group.Spec.Template.CUDADriverVersion = ""
		predicted, err := Predict(driver, group, "", nil, StartupTaints{})
		if err != nil {
			t.Fatal(err)
		}
		node := liveNode()
		node.Status.Allocatable = predicted.Node.Status.Allocatable
		if got := Difference(driver, predicted, node, liveSlices(t, machine, node)); got != "" {
			t.Errorf("%s: %s", machine, got)
		}
	}
}

func TestDifference(t *testing.T) {
	node := liveNode()
	attribute := func(name resourceapi.QualifiedName, value resourceapi.DeviceAttribute) func([]*resourceapi.ResourceSlice) {
		return func(all []*resourceapi.ResourceSlice) { all[0].Spec.Devices[0].Attributes[name] = value }
	}
	for name, test := range map[string]struct {
		machine  string // that the template was learned from; p5.48xlarge
		policies []*v1alpha1.GPUPolicy
		node     corev1.ResourceList
		change   func([]*resourceapi.ResourceSlice)
		want     string
	}{
		"nothing": {},
		"another board": {
			machine: "g5.12xlarge",
			want:    "offers 0 devices gpu NVIDIA A10G, and 4 were expected",
		},
		"a GPU less": {
			change: func(all []*resourceapi.ResourceSlice) { all[0].Spec.Devices = all[0].Spec.Devices[1:] },
			want:   "offers 7 devices gpu NVIDIA H100 80GB HBM3, and 8 were expected",
		},
		"a GPU that is withdrawn, and was promised": {
			change: func(all []*resourceapi.ResourceSlice) {
				all[0].Spec.Devices[0].Taints = []resourceapi.DeviceTaint{{Key: "mica.gpu/withdrawn"}}
			},
			want: "offers 7 devices gpu NVIDIA H100 80GB HBM3, and 8 were expected",
		},
		"a GPU that is ill": {
			change: func(all []*resourceapi.ResourceSlice) {
				all[0].Spec.Devices[0].Taints = []resourceapi.DeviceTaint{{Key: "gpu.nvidia.com/xid"}}
			},
		},
		"something that was withdrawn before": {
			change: func(all []*resourceapi.ResourceSlice) {
				all[0].Spec.Devices = append(all[0].Spec.Devices, resourceapi.Device{Name: "gpu-0-timeslice", Taints: []resourceapi.DeviceTaint{{Key: "mica.gpu/withdrawn"}}})
			},
		},
		"something more": {
			change: func(all []*resourceapi.ResourceSlice) {
				d := all[0].Spec.Devices[0].DeepCopy()
				d.Attributes["type"] = resourceapi.DeviceAttribute{StringValue: ptr.To("timeslice")}
				all[0].Spec.Devices = append(all[0].Spec.Devices, *d)
			},
			want: "offers 1 device timeslice NVIDIA H100 80GB HBM3, and none were expected",
		},
		"less memory": {
			change: func(all []*resourceapi.ResourceSlice) {
				all[0].Spec.Devices[3].Capacity["memory"] = resourceapi.DeviceCapacity{Value: resource.MustParse("70Gi")}
			},
			want: "offers devices gpu NVIDIA H100 80GB HBM3 whose capacity memory is 70Gi, 81559Mi, and 81559Mi was expected",
		},
		"ECC is off": {
			change: attribute("eccEnabled", resourceapi.DeviceAttribute{BoolValue: ptr.To(false)}),
			want:   "offers devices gpu NVIDIA H100 80GB HBM3 whose eccEnabled is false, true, and true was expected",
		},
		"a UUID":          {change: attribute("uuid", resourceapi.DeviceAttribute{StringValue: ptr.To("GPU-1")})},
		"a version":       {change: attribute("driverVersion", resourceapi.DeviceAttribute{VersionValue: ptr.To("1.2.3")})},
		"an address":      {change: attribute(deviceattribute.StandardDeviceAttributePCIBusID, resourceapi.DeviceAttribute{StringValue: ptr.To("0000:01:00.0")})},
		"another root":    {change: attribute(deviceattribute.StandardDeviceAttributePCIeRoot, resourceapi.DeviceAttribute{StringValue: ptr.To("pci0000:01")})},
		"a fact the more": {change: attribute("serial", resourceapi.DeviceAttribute{StringValue: ptr.To("1")})},
		"two GPUs below one root": {
			change: attribute(deviceattribute.StandardDeviceAttributePCIeRoot, resourceapi.DeviceAttribute{StringValue: ptr.To("pci0000:55")}),
			want:   "offers devices gpu NVIDIA H100 80GB HBM3 whose resource.kubernetes.io/pcieRoot is shared by 1, shared by 2, and shared by 1 was expected",
		},
		"no NVLink": {
			change: func(all []*resourceapi.ResourceSlice) { delete(all[0].Spec.Devices[0].Attributes, "nvlinkGroup") },
			want:   "offers devices gpu NVIDIA H100 80GB HBM3 whose nvlinkGroup is not known, shared by 7, and shared by 8 was expected",
		},
		"other counters": {
			change: func(all []*resourceapi.ResourceSlice) {
				sets := all[len(all)-1].Spec.SharedCounters
				sets[0].Counters["memory-slice-0"] = resourceapi.Counter{Value: resource.MustParse("1")}
			},
			want: "has GPUs with ",
		},
		"less CPU":               {node: corev1.ResourceList{"cpu": resource.MustParse("46")}, want: "has cpu 46 for pods, and 47 was expected"},
		"more CPU":               {node: corev1.ResourceList{"cpu": resource.MustParse("48")}},
		"hardly less memory":     {node: corev1.ResourceList{"memory": resource.MustParse("183500Mi")}},
		"less memory for pods":   {node: corev1.ResourceList{"memory": resource.MustParse("170Gi")}, want: "has memory 170Gi for pods, and 180Gi was expected"},
		"no room for pods, even": {node: corev1.ResourceList{"pods": resource.MustParse("0")}, want: "has pods 0 for pods, and 737 was expected"},
	} {
		t.Run(name, func(t *testing.T) {
			machine := test.machine
			if machine == "" {
				machine = "p5.48xlarge"
			}
			learned := Learn(node, liveSlices(t, machine, node), nil, StartupTaints{}, learnedAt)
			other := liveNode()
			other.Name = "other"
			for name, quantity := range test.node {
				other.Status.Allocatable[name] = quantity
			}
			all := liveSlices(t, "p5.48xlarge", other)
			if test.change != nil {
				test.change(all)
			}
			got := Difference(driver, learned, other, all)
			if test.want == "" && got != "" || test.want != "" && len(got) < len("node other "+test.want) || test.want != "" && got[:len("node other "+test.want)] != "node other "+test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}

// TestTheQuickWayAgrees holds the quick comparison to the one that it spares.
func TestTheQuickWayAgrees(t *testing.T) {
	node, other := liveNode(), liveNode()
	other.Name = "other"
	for _, machine := range []string{"p5.48xlarge", "g5.12xlarge", "mig-static", "mixed"} {
		a := devices.OfNode(node.Name, liveSlices(t, machine, node))
		for _, against := range []string{"p5.48xlarge", "p5e.48xlarge", "g5.12xlarge", "mig-static", "mixed"} {
			all := liveSlices(t, against, other)
			b := devices.OfNode(other.Name, all)
			if got := alike(a, b); got != (machine == against) {
				t.Errorf("%s and %s are alike: %t", machine, against, got)
			}
			learned := Learn(node, liveSlices(t, machine, node), nil, StartupTaints{}, learnedAt)
			attributes := all[0].Spec.Devices[0].Attributes
			for name, before := range attributes {
				attributes[name] = resourceapi.DeviceAttribute{StringValue: ptr.To("changed")}
				promised, offered := offerOf(driver, learned.Node, learned.Slices), offerOf(driver, other, all)
				if difference := countsDiffer(promised, offered) + devicesDiffer(promised, offered); alike(a, devices.OfNode(other.Name, all)) && difference != "" {
					t.Errorf("%s and %s are alike and differ: %s", machine, against, difference)
				}
				attributes[name] = before
			}
		}
	}
}

func BenchmarkMissingAndDifference(b *testing.B) {
	node := liveNode()
	all := liveSlices(b, "p5.48xlarge", node)
	learned := Learn(node, all, nil, StartupTaints{}, learnedAt)
	b.ReportAllocs()
	for b.Loop() {
		if missing, difference := Missing(driver, learned, node, all), Difference(driver, learned, node, all); len(missing) > 0 || difference != "" {
			b.Fatal(missing, difference)
		}
	}
}
