package nvml_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mica-gpu/mica/pkg/gpu"
	"github.com/mica-gpu/mica/pkg/node/nvml"
	"github.com/mica-gpu/mica/test/fixture"
)

// A GPU keeps its NVLink group while MIG comes and goes, for as long as links take to be trained.
func TestLinksAreTrainedAfterMIG(t *testing.T) {
	for lasts, back := range map[time.Duration]bool{5 * time.Second: true, time.Hour: false} {
		synctest.Test(t, func(t *testing.T) {
			file := fixture.File(t, "p5.48xlarge")
			file.Habits.MIGRetrain = metav1.Duration{Duration: lasts}
			library := fixture.Library(t, fixture.Machine(t, file))
			node, _, err := library.Discover()
			must(t, err)
			gpus, uuid := node.GPUs, node.GPUs[0].UUID
			look := func(when string, grouped bool, fabric gpu.FabricState) {
				t.Helper()
				for range 3 {
					gpus, err = library.Refresh(gpus)
					must(t, err)
				}
				if got := gpus[0]; got.NVLinkGroup != nil != grouped || got.Fabric != fabric {
					t.Errorf("%s: got the group %v and the state %q, want a group: %t, and the state %q", when, got.NVLinkGroup, got.Fabric, grouped, fabric)
				}
			}
			must(t, library.Linked(uuid))
			must(t, library.SetMIG(uuid, true))
			look("with MIG", true, gpu.FabricReady)
			must(t, library.SetMIG(uuid, false))
			look("right after MIG", true, gpu.FabricReady)
			if err := library.Linked(uuid); !errors.Is(err, nvml.ErrRetraining) {
				t.Errorf("right after MIG: got %v, want %v", err, nvml.ErrRetraining)
			}
			must(t, library.Linked(node.GPUs[1].UUID)) // on which MIG was not
			time.Sleep(6 * time.Second)
			look("a while after MIG", true, gpu.FabricReady)
			if err := library.Linked(uuid); errors.Is(err, nvml.ErrRetraining) == back {
				t.Errorf("a while after MIG: got %v; the links are back: %t", err, back)
			}
			time.Sleep(time.Minute)
			if back {
				look("long after MIG", true, gpu.FabricReady)
			} else {
				look("long after MIG", false, gpu.FabricInProgress)
			}
		})
	}
}
