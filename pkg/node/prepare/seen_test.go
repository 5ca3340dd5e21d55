package prepare

import (
	"slices"
	"testing"

	"github.com/mica-gpu/mica/pkg/gpu"
	"github.com/mica-gpu/mica/test/fixture"
)

// An administrator who remakes an instance in the place of a partition that was gone keeps it,
// although it has the partition's UUID, also when the plugin has begun anew.
func TestAPlaceThatAnAdministratorHasTaken(t *testing.T) {
	for name, see := range map[string]func(*testing.T, *migRig, *Preparer){
		"a look":       func(t *testing.T, r *migRig, p *Preparer) { r.lookAt(t, p) },
		"reconciling":  func(t *testing.T, _ *migRig, p *Preparer) { reconcile(t, p) },
		"the CDI file": func(t *testing.T, _ *migRig, p *Preparer) { must(t, p.RestoreSpecs(testContext(t))) },
	} {
		for _, restarted := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				r := newMIGRigOf(t, 1)
				p := r.startMIG(t, nil)
				claim := r.allocated("c", big0)
				partition := prepare(t, p, claim)[0]
				destroy(t, r, 0)
				see(t, r, p)
				if other := r.foreign(t, 0, "3g.40gb", partition.Form.Start).ComputeInstances[0].UUID; other != partition.PartUUID {
					t.Fatalf("the administrator's instance has the UUID %s, want %s again", other, partition.PartUUID)
				}
				before := r.instances()
				if restarted {
					p = r.startMIG(t, nil)
				}
				r.lookAt(t, p)
				reconcile(t, p)
				if p.CDI.Has(claim.UID) {
					t.Error("the CDI file leads to the administrator's instance")
				}
				if g := r.free(t, p).GPUs[0]; len(g.Instances) != 1 {
					t.Errorf("got the instances %+v of others, want the administrator's", g.Instances)
				}
				if got := prepare(t, p, claim)[0]; got.Form.Base != gpu.BaseStatic || !got.Exists() {
					t.Errorf("the claim was given %+v, want the administrator's instance", got)
				}
				unprepare(t, p, claim)
				r.expectMIG(t, p, before)
			})
		}
	}
}

// What a look did not show yet, or could not show, is not gone.
func TestALookBeforeAPartitionTakesNothing(t *testing.T) {
	r := newMIGRigOf(t, 2)
	p := r.startMIG(t, nil)
	early, _, err := r.library.Discover()
	must(t, err)
	claim := r.allocated("c", big0)
	prepare(t, p, claim)
	for _, shown := range [][]gpu.GPU{early.GPUs, early.GPUs[1:], nil} {
		must(t, p.Seen(testContext(t), shown))
	}
	r.expectMIG(t, p, nil, claim)
	unprepare(t, p, claim)
	r.expectMIG(t, p, nil)
}

// Of the partitions of a claim only the one that is gone is given up.
func TestOneOfTwoPartitionsIsGone(t *testing.T) {
	r := newMIGRigOf(t, 1)
	p := r.startMIG(t, nil)
	claim := r.allocated("c", small0, big0)
	devices := prepare(t, p, claim)
	must(t, r.machine.DestroyInstance(0, devices[1].Form.InstanceID))
	r.lookAt(t, p)
	r.foreign(t, 0, "3g.40gb", devices[1].Form.Start)
	unprepare(t, p, claim)
	if left := r.machine.Instances(0); len(left) != 1 || left[0].Profile != "3g.40gb" {
		t.Errorf("got the instances %+v, want the administrator's alone", left)
	}
}

// On a disk that is full, the CDI file goes all the same, and the next look writes down the rest.
func TestAPartitionThatIsGoneOnAFullDisk(t *testing.T) {
	r := newMIGRigOf(t, 1)
	fixture.SmallDisk(t, r.dir)
	p := r.startMIG(t, nil)
	claim := r.allocated("c", big0)
	start := prepare(t, p, claim)[0].Form.Start
	destroy(t, r, 0)
	space := fixture.FillDisk(t, r.dir)
	node, _, err := r.library.Discover()
	must(t, err)
	fixture.Sentence(t, p.Seen(testContext(t), node.GPUs), "no space left on device")
	if p.CDI.Has(claim.UID) {
		t.Error("the CDI file may lead to an administrator's partition")
	}
	space()
	r.lookAt(t, p)
	r.foreign(t, 0, "3g.40gb", start)
	before := r.instances()
	unprepare(t, p, claim)
	if after := r.instances(); !slices.Equal(after, before) {
		t.Errorf("got the instances %v, want %v", after, before)
	}
}
