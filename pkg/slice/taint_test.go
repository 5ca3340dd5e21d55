package slice

import (
	"maps"
	"reflect"
	"slices"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mica-gpu/mica/pkg/gpu"
	"github.com/mica-gpu/mica/test/fixture"
)

func taint(key, value string, effect resourceapi.DeviceTaintEffect) resourceapi.DeviceTaint {
	return resourceapi.DeviceTaint{Key: key, Value: value, Effect: effect}
}

const (
	noSchedule = resourceapi.DeviceTaintEffectNoSchedule
	noExecute  = resourceapi.DeviceTaintEffectNoExecute
)

// Several parts of the plugin taint one device, in any order.
func TestTaintsOfOneDevice(t *testing.T) {
	sick, old := taint("mica.gpu/health", "xid-79", noExecute), taint("mica.gpu/health", "xid-48", noExecute)
	drained := taint("mica.gpu/health", "", noSchedule)
	at := metav1.NewTime(time.Unix(1_700_000_000, 0))
	sick.TimeAdded = &at
	want := []resourceapi.DeviceTaint{sick, drained, Withdrawn()}
	for _, order := range [][]resourceapi.DeviceTaint{{old, sick, drained, Withdrawn()}, {Withdrawn(), drained, old, sick}, {drained, old, Withdrawn(), sick, sick}} {
		taints := Taints{}
		for _, one := range order {
			taints.Add("gpu-0", one)
		}
		if got := taints.of("gpu-0"); !reflect.DeepEqual(got, want) {
			t.Errorf("got %+v, want %+v", got, want)
		}
	}
	if got := Taints(nil).of("gpu-0"); got != nil {
		t.Errorf("without taints: got %+v", got)
	}
}

func TestAGPUIsTaintedInAllItsShapes(t *testing.T) {
	node := fixture.Node(t, "p5.48xlarge")
	node.GPUs = node.GPUs[:2]
	shapes := gpu.Shapes(node.GPUs, func(gpu.GPU) gpu.Policy {
		return gpu.Policy{Whole: true, MIG: true, TimeSlicing: &gpu.TimeSlicing{Replicas: 2, Interval: gpu.DefaultInterval}}
	})
	sick := taint("mica.gpu/health", "lost", noExecute)
	taints := Taints{}
	taints.Add("gpu-0-timeslice", Withdrawn())
	taints.AddGPU(node.GPUs[0].UUID, shapes, sick)
	tainted := 0
	for _, s := range Pool(node, shapes, taints).Slices {
		for _, device := range s.Devices {
			want := 0
			switch parent := device.Attributes[gpu.AttributeParentUUID].StringValue; {
			case device.Name == "gpu-0-timeslice":
				want = 2
			case device.Name == "gpu-0", parent != nil && *parent == node.GPUs[0].UUID:
				want = 1
			}
			if len(device.Taints) != want || want > 0 && device.Taints[0] != sick {
				t.Errorf("%s has the taints %+v, want %d", device.Name, device.Taints, want)
			}
			tainted += want
		}
	}
	if tainted < 10 {
		t.Errorf("%d taints: does the test look at partitions?", tainted)
	}
}

// Whoever waits for a device can read what each taint of ours means, and what to do.
func TestEveryTaintHasAMeaning(t *testing.T) {
	keys := append(slices.Collect(maps.Values(sickKeys)), TaintWithdrawn, TaintFabric)
	for _, key := range keys {
		if why, remedy := Meaning(key); why == "" || remedy == "" {
			t.Errorf("%s: %q and %q", key, why, remedy)
		}
	}
	if why, remedy := Meaning("example.com/other"); why+remedy != "" {
		t.Errorf("of another's taint: %q and %q", why, remedy)
	}
}
