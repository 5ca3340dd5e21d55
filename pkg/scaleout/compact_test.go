package scaleout

import (
	"fmt"
	"maps"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/utils/ptr"

	"github.com/mica-gpu/mica/pkg/devices"
)

// In the controller's memory UUIDs are put aside. Plans are the same, also for claims that name or
// compare them.
func TestPlansFromCompactSlices(t *testing.T) {
	for name, claim := range map[string][]string{
		"any":                {"request gpu gpu.nvidia.com count=8"},
		"one certain GPU":    {"request gpu gpu.nvidia.com cel=`device.attributes['gpu.nvidia.com'].uuid == 'GPU-2-of-node-1'`"},
		"parts of one GPU":   {"request mig mig.nvidia.com count=2 cel=`device.attributes['gpu.nvidia.com'].profile == '3g.40gb'`", "match gpu.nvidia.com/parentUUID"},
		"too much of one":    {"request mig mig.nvidia.com count=3 cel=`device.attributes['gpu.nvidia.com'].profile == '3g.40gb'`", "match gpu.nvidia.com/parentUUID"},
		"parts of many GPUs": {"request mig mig.nvidia.com count=7 cel=`device.attributes['gpu.nvidia.com'].profile == '3g.40gb'`", "distinct gpu.nvidia.com/parentUUID"},
		"parts of a certain GPU": {
			"request mig mig.nvidia.com count=2 cel=`device.attributes['gpu.nvidia.com'].parentUUID == 'GPU-5-of-node-2' && device.attributes['gpu.nvidia.com'].profile == '1g.10gb'`",
			"match gpu.nvidia.com/parentUUID"},
		"a name that is computed": {"request gpu gpu.nvidia.com cel=`device.attributes['gpu.nvidia.com']['uu' + 'id'] == 'GPU-1-of-node-0'`"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.line("group g p5.48xlarge shapes=whole,mig price=1")
			for i := range 3 {
				w.line(fmt.Sprintf("node node-%d p5.48xlarge shapes=whole,mig used=gpu-%d", i, i))
			}
			w.line("template t")
			for _, line := range claim {
				w.line(line)
			}
			w.line("pods p 3 templates=t")
			ownUUIDs(w.Slices)
			want := planned(t, w)
			compactor := devices.NewCompactor()
			for _, slice := range w.Slices {
				compactor.Compact(slice)
			}
			got := planned(t, w)
			if log(got) != log(want) {
				t.Errorf("the plan from compact slices is\n%s\nand from published ones\n%s", log(got), log(want))
			}
		})
	}
}

// ownUUIDs gives each node's GPUs UUIDs of their own, GPU-INDEX-of-NODE.
func ownUUIDs(all []*resourceapi.ResourceSlice) {
	for _, slice := range all {
		made := make([]resourceapi.Device, len(slice.Spec.Devices))
		for i, device := range slice.Spec.Devices {
			var index int
			if _, err := fmt.Sscanf(device.Name, "gpu-%d", &index); err != nil {
				panic(err)
			}
			device.Attributes = maps.Clone(device.Attributes)
			for _, name := range []resourceapi.QualifiedName{"uuid", "parentUUID"} {
				if _, has := device.Attributes[name]; has {
					device.Attributes[name] = resourceapi.DeviceAttribute{StringValue: ptr.To(fmt.Sprintf("GPU-%d-of-%s", index, *slice.Spec.NodeName))}
				}
			}
			made[i] = device
		}
		slice.Spec.Devices = made
	}
}
