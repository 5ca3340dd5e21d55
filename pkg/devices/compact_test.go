package devices

import (
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// gpuOf is a device of the GPU with the address, with the attributes that are named in pairs.
func gpuOf(name, address string, pairs ...string) resourceapi.Device {
	d := resourceapi.Device{
		Name:       name,
		Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{"type": {StringValue: ptr.To("gpu")}},
		Capacity:   map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{"memory": {Value: resource.MustParse("80Gi")}},
	}
	if address != "" {
		d.Attributes["resource.kubernetes.io/pciBusID"] = resourceapi.DeviceAttribute{StringValue: &address}
	}
	for i := 0; i < len(pairs); i += 2 {
		d.Attributes[resourceapi.QualifiedName(pairs[i])] = resourceapi.DeviceAttribute{StringValue: &pairs[i+1]}
	}
	return d
}

// sliceOf is what a node with two GPUs publishes: both, one in shares, and partitions that are to be
// made, that exist, and that exist in shares.
func sliceOf(node string) *resourceapi.ResourceSlice {
	id := func(i int) string { return fmt.Sprintf("GPU-%s-%d", node, i) }
	s := published(node+"-slice", "gpu.nvidia.com/"+node, 1, 1,
		gpuOf("gpu-0", "a", "uuid", id(0)), gpuOf("gpu-0-timeslice", "a", "uuid", id(0)),
		gpuOf("gpu-1-mig-0", "b", "parentUUID", id(1)), gpuOf("gpu-1-mig-1", "b", "parentUUID", id(1)),
		gpuOf("gpu-1-mig-2", "b", "parentUUID", id(1), "uuid", "MIG-"+node), gpuOf("gpu-1-mig-2-mps", "b", "parentUUID", id(1), "uuid", "MIG-"+node),
		gpuOf("gpu-2", "", "uuid", "GPU-without-address"),
	)
	s.Spec.SharedCounters = []resourceapi.CounterSet{{Name: "gpu-0", Counters: map[string]resourceapi.Counter{"memory": {Value: resource.MustParse("80Gi")}}}}
	s.Spec.NodeName = &node
	return s
}

func TestNodesThatAreAlikeShareTheirDevices(t *testing.T) {
	c := NewCompactor()
	a, b := sliceOf("a"), sliceOf("b")
	b.Spec.Devices[6].Attributes["uuid"] = a.Spec.Devices[6].Attributes["uuid"]
	c.Compact(a)
	c.Compact(b)
	if &a.Spec.Devices[0] != &b.Spec.Devices[0] || &a.Spec.SharedCounters[0] != &b.Spec.SharedCounters[0] {
		t.Error("devices or counters are twice in memory")
	}
	other := sliceOf("other")
	other.Spec.Devices[1].Taints = []resourceapi.DeviceTaint{{Key: "ill"}}
	c.Compact(other)
	if &other.Spec.Devices[0] == &a.Spec.Devices[0] || len(a.Spec.Devices[1].Taints) != 0 {
		t.Error("a device that is tainted is another node's")
	}
}

// Own returns the published values of a compact slice.
func TestACompactSliceHasLostNothing(t *testing.T) {
	c := NewCompactor()
	for _, node := range []string{"a", "b"} {
		want, got := sliceOf(node), sliceOf(node)
		c.Compact(got)
		c.Compact(got) // as an informer does that lists anew
		own := OwnOf(got)
		got.Spec.Devices = slices.Clone(got.Spec.Devices)
		for i := range got.Spec.Devices {
			compact := got.Spec.Devices[i]
			device := Device{Device: &compact, Own: own}
			for name, value := range want.Spec.Devices[i].Attributes {
				at := device.AttributeAt(Field{Section: SectionAttributes, Name: string(name)})
				if at == nil || *at.StringValue != *value.StringValue {
					t.Errorf("%s has %s %v", compact.Name, name, at)
				}
			}
			got.Spec.Devices[i].Attributes = device.Input().Attributes
		}
		got.Annotations = nil
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("-published +compact:\n%s", diff)
		}
	}
}

// Within a node, values differ where the UUIDs do, and are equal where those are.
func TestCompactSlicesCompareAsPublished(t *testing.T) {
	published, compact := sliceOf("a"), sliceOf("a")
	NewCompactor().Compact(compact)
	value := func(d resourceapi.Device, name resourceapi.QualifiedName) string {
		return ptr.Deref(d.Attributes[name].StringValue, "")
	}
	for i, a := range published.Spec.Devices {
		for j, b := range published.Spec.Devices {
			for _, of := range identities {
				for _, with := range identities {
					want := value(a, of) == value(b, with)
					if got := value(compact.Spec.Devices[i], of) == value(compact.Spec.Devices[j], with); got != want {
						t.Errorf("%s of %s and %s of %s are equal: %t, want %t", of, a.Name, with, b.Name, got, want)
					}
				}
			}
		}
	}
}

func TestSlicesOfNoSingleNodeStayAsTheyAre(t *testing.T) {
	want, got := sliceOf("a"), sliceOf("a")
	want.Spec.NodeName, got.Spec.NodeName = nil, nil
	NewCompactor().Compact(got)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-published +compact:\n%s", diff)
	}
}

// A driver that writes the annotation itself is read as it publishes.
func TestAnAnnotationOfADriverDoesNoHarm(t *testing.T) {
	for _, text := range []string{"", "{", `{"GPU-a-0":5}`} {
		s := sliceOf("a")
		s.Annotations = map[string]string{annotationOwn: text}
		NewCompactor().Compact(s)
		if own := OwnOf(s); own != nil {
			t.Errorf("%q: got %v", text, own)
		}
	}
}

// What no slice has any more is forgotten.
func TestContentThatIsGoneTakesNoMemory(t *testing.T) {
	c := NewCompactor()
	for i := range 1000 {
		s := sliceOf("a")
		s.Spec.Devices[0].Name = fmt.Sprint(i)
		c.Compact(s)
		if i%100 == 0 {
			runtime.GC()
		}
	}
	if n := len(c.devices.known); n > 400 {
		t.Errorf("%d contents are known", n)
	}
	s := sliceOf("a")
	c.Compact(s)
	runtime.GC()
	again := sliceOf("b")
	again.Spec.Devices[6].Attributes["uuid"] = s.Spec.Devices[6].Attributes["uuid"]
	c.Compact(again)
	if &again.Spec.Devices[0] != &s.Spec.Devices[0] {
		t.Error("devices that a slice has are forgotten")
	}
}

func TestInformersShareACompactor(t *testing.T) {
	c := NewCompactor()
	made := make([]*resourceapi.ResourceSlice, 20)
	var all sync.WaitGroup
	for i := range made {
		all.Go(func() {
			s := sliceOf("n")
			s.ObjectMeta = metav1.ObjectMeta{Name: fmt.Sprint(i)}
			c.Compact(s)
			made[i] = s
		})
	}
	all.Wait()
	for _, s := range made {
		if &s.Spec.Devices[0] != &made[0].Spec.Devices[0] {
			t.Error("devices are twice in memory")
		}
	}
}
