package offer

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/mica-gpu/mica/pkg/gpu"
	"github.com/mica-gpu/mica/pkg/node/journal"
	"github.com/mica-gpu/mica/test/fixture"
)

const (
	ownDevice = "gpu-0-mig-3g40gb-9-0"
	foreign   = 1 // the GPU with a foreign instance
)

// newShared is a started node with a foreign instance.
func newShared(t *testing.T) *rig {
	t.Helper()
	r := newRig(t, "p5.48xlarge")
	must(t, r.machine.SetMIGMode(foreign, true))
	start := 0
	_, err := r.machine.CreateInstance(foreign, "2g.20gb", &start)
	must(t, err)
	_, err = r.start(t)
	must(t, err)
	return r
}

// looking takes real looks at the instances, and does something after each.
func (r *rig) looking(then func(looked int, seen *gpu.Node)) look {
	looked := 0
	return func(gpu.Node) (sight, error) {
		node, unreadable, err := r.library.Discover()
		looked++
		then(looked, &node)
		return sight{node: node}, errors.Join(append(unreadable, err)...)
	}
}

// Our own instances are never offered as foreign ones, whatever happens
// between looking and reading the records.
func TestDiscoverSeparatesOwnFromForeignInstances(t *testing.T) {
	prepared := func(t *testing.T, r *rig, claim *resourceapi.ResourceClaim) {
		t.Helper()
		_, err := r.preparer.Prepare(t.Context(), claim)
		must(t, err)
	}
	unprepared := func(t *testing.T, r *rig, claim *resourceapi.ResourceClaim) {
		t.Helper()
		must(t, r.preparer.Unprepare(t.Context(), claim.UID))
	}
	lost := func(t *testing.T, r *rig, claim *resourceapi.ResourceClaim) {
		t.Helper()
		must(t, os.Remove(filepath.Join(r.dir, "claims", string(claim.UID)+".json")))
	}
	for name, between := range map[string][]func(*testing.T, *rig, *resourceapi.ResourceClaim){
		"unprepared while it looks":                {unprepared},
		"prepared again":                           {unprepared, prepared},
		"its record is lost":                       {lost},
		"its record is lost, and it is unprepared": {lost, unprepared},
		"nothing": nil,
	} {
		t.Run(name, func(t *testing.T) {
			r := newShared(t)
			claim := fixture.Claim("c", fixture.Result("r", ownDevice))
			prepared(t, r, claim)
			found, err := r.discover(t.Context(), r.looking(func(looked int, _ *gpu.Node) {
				for _, do := range between {
					if looked == 1 {
						do(t, r, claim)
					}
				}
			}))
			must(t, err)
			for _, g := range found.free.GPUs {
				if want := g.Index == foreign; len(g.Instances) > 0 != want {
					t.Errorf("GPU %d has the foreign %+v", g.Index, g.Instances)
				}
			}
		})
	}
}

// claimsBetween has something happen after the records were read for the first time.
type claimsBetween struct {
	Claims
	happens func()
}

func (c *claimsBetween) Held(ctx context.Context) ([]journal.Device, error) {
	held, err := c.Claims.Held(ctx)
	if c.happens != nil {
		c.happens()
		c.happens = nil
	}
	return held, err
}

// A partition that takes the place of another has its UUID, and passes for the one that was
// there at the first look and that no record named.
func TestDiscoverRecognizesAPartitionThatReplacesAnother(t *testing.T) {
	r := newShared(t)
	before, after := fixture.Claim("before", fixture.Result("r", ownDevice)), fixture.Claim("after", fixture.Result("r", ownDevice))
	_, err := r.preparer.Prepare(t.Context(), before)
	must(t, err)
	r.Claims = &claimsBetween{r.Claims, func() {
		_, err := r.preparer.Prepare(t.Context(), after)
		must(t, err)
	}}
	found, err := r.discover(t.Context(), r.looking(func(looked int, _ *gpu.Node) {
		if looked == 1 {
			must(t, r.preparer.Unprepare(t.Context(), before.UID))
		}
	}))
	must(t, err)
	if got := found.free.GPUs[0].Instances; len(got) > 0 {
		t.Errorf("the partition of a claim passes for a foreign one: %+v", got)
	}
}

// A look that does not show the partition of a claim is written down.
func TestALookNotesAPartitionThatIsGone(t *testing.T) {
	r := newShared(t)
	claim := fixture.Claim("c", fixture.Result("r", ownDevice))
	devices, err := r.preparer.Prepare(t.Context(), claim)
	must(t, err)
	must(t, r.machine.DestroyInstance(0, devices[0].Form.InstanceID))
	must(t, r.offerChanges(t.Context()))
	start := devices[0].Form.Start
	_, err = r.machine.CreateInstance(0, "3g.40gb", &start)
	must(t, err)
	must(t, r.offerChanges(t.Context()))
	must(t, r.preparer.Unprepare(t.Context(), claim.UID))
	if left := r.machine.Instances(0); len(left) != 1 {
		t.Errorf("got the instances %+v, want the administrator's", left)
	}
}

// A list that lacked a device once does not withdraw it.
func TestDiscoverLooksAgain(t *testing.T) {
	for lacking := 1; lacking <= 2; lacking++ {
		r := newShared(t)
		found, err := r.discover(t.Context(), r.looking(func(looked int, seen *gpu.Node) {
			if looked == lacking {
				seen.GPUs[foreign].Instances[0].Devices = nil
			}
		}))
		must(t, err)
		if got := found.free.GPUs[foreign].Instances; len(got) != 1 || len(got[0].Devices) != 1 {
			t.Errorf("look %d: got the instances %+v, want the foreign one with its device", lacking, got)
		}
	}
}
