package prepare

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/mica-gpu/mica/test/fixture"
	"github.com/mica-gpu/mica/test/nvmlsim/model"
)

// Devices of the simulated machine.
const (
	small0    = "gpu-0-mig-1g10gb-19-0"
	small1    = "gpu-0-mig-1g10gb-19-1"
	big0      = "gpu-0-mig-3g40gb-9-4"
	whole0    = "gpu-0"
	elsewhere = "gpu-1-mig-3g40gb-9-4"
)

func TestPartitionsOfAClaim(t *testing.T) {
	r, p := runMIG(t)
	claim := r.allocated("c", small1, big0, elsewhere, "gpu-2")
	devices := prepare(t, p, claim)
	r.expectMIG(t, p, nil, claim)
	if got := len(r.instances()); got != 3 {
		t.Errorf("got %d instances: %q", got, r.instances())
	}
	for i, device := range devices[:3] {
		if device.PartUUID == "" || device.UUID != r.uuid(i/2) {
			t.Errorf("got %+v", device)
		}
	}
	if again := prepare(t, r.startMIG(t, nil), claim); !reflect.DeepEqual(devices, again) {
		t.Errorf("got %+v, then %+v", devices, again)
	}
	unprepare(t, p, claim)
	unprepare(t, p, claim)
	r.expectMIG(t, p, nil)
}

// MIG is enabled with the first partition of a GPU and disabled after the last.
func TestTheModeFollowsTheClaims(t *testing.T) {
	r, p := runMIG(t)
	one, two, all := r.allocated("one", small0), r.allocated("two", small1, big0), r.allocated("all", whole0)
	prepare(t, p, one)
	prepare(t, p, two)
	unprepare(t, p, one)
	r.expectMIG(t, p, nil, two)
	if _, err := p.Prepare(within(t), all); err == nil {
		t.Error("a whole GPU was prepared beside its partitions")
	} else {
		fixture.Sentence(t, err, "claim default/all (UID uid-all): it was given a GPU", "claim default/two (UID uid-two) still holds")
	}
	unprepare(t, p, two)
	r.expectMIG(t, p, nil)
	prepare(t, p, all)
	refused(t, p, one, "claim default/one (UID uid-one): it was given a GPU", "claim default/all (UID uid-all) still holds")
	r.expectMIG(t, p, nil, all)
}

// A monitor may keep the mode from being disabled, which the next whole claim does.
func TestAWholeClaimDisablesMIG(t *testing.T) {
	r := newMIGRig(t)
	must(t, r.machine.SetMIGMode(0, true))
	p := r.startMIG(t, nil)
	claim := r.allocated("c", whole0)
	prepare(t, p, claim)
	r.expectMIG(t, p, nil, claim)
}

func TestOverlappingPartitionsConflict(t *testing.T) {
	r, p := runMIG(t)
	old, fresh, beside := r.allocated("old", "gpu-0-mig-2g20gb-14-2"), r.allocated("fresh", "gpu-0-mig-1g10gb-19-3"), r.allocated("beside", small1)
	prepare(t, p, old)
	prepare(t, p, beside)
	refused(t, p, fresh, "claim default/fresh (UID uid-fresh): it was given a GPU", "claim default/old (UID uid-old) still holds")
	r.api.remove(old)
	prepare(t, p, fresh)
	r.expectMIG(t, p, nil, fresh, beside)
}

func TestForeignInstancesAreLeftAlone(t *testing.T) {
	r := newMIGRig(t)
	state := r.foreign(t, 0, "3g.40gb", 4)
	before := r.instances()
	p := r.startMIG(t, nil)
	static, dynamic := r.allocated("static", big0), r.allocated("dynamic", small0)
	devices := prepare(t, p, static)
	if got := devices[0]; len(got.Steps) > 0 || got.PartUUID != state.ComputeInstances[0].UUID {
		t.Errorf("got %+v, want %+v", got, state)
	}
	prepare(t, p, dynamic)
	r.expectMIG(t, p, before, static, dynamic)
	refused(t, p, r.allocated("other", big0), "claim default/static (UID uid-static) still holds")
	unprepare(t, p, static)
	unprepare(t, p, dynamic)
	reconcile(t, p)
	r.expectMIG(t, p, before)
}

// An administrator's partition that is younger than the offer is what the claim was allocated, by
// name: it gets the partition, which stays.
func TestAPartitionMadeSinceTheLook(t *testing.T) {
	r, p := runMIG(t)
	state := r.foreign(t, 0, "3g.40gb", 4)
	before := r.instances()
	claim := r.allocated("c", small0, big0)
	devices := prepare(t, p, claim)
	if got := devices[1]; ours(got) || len(got.Steps) > 0 || got.PartUUID != state.ComputeInstances[0].UUID {
		t.Errorf("got %+v, want %+v", got, state)
	}
	r.expectMIG(t, p, before, claim)
	p = r.startMIG(t, nil) // offers it as it is
	if again := prepare(t, p, claim)[1]; again.PartUUID != devices[1].PartUUID || again.Form != devices[1].Form {
		t.Errorf("got %+v after a restart, want %+v", again, devices[1])
	}
	refused(t, p, r.allocated("other", big0), "claim default/c (UID uid-c) still holds")
	unprepare(t, p, claim)
	r.expectMIG(t, p, before)
}

func TestAPlaceThatIsTaken(t *testing.T) {
	for name, take := range map[string]func(t *testing.T, r *migRig){
		"by another profile": func(t *testing.T, r *migRig) { r.foreign(t, 0, "1g.10gb", 4) },
		"by one that is not complete": func(t *testing.T, r *migRig) {
			made := r.foreign(t, 0, "3g.40gb", 4)
			must(t, r.library.DestroyComputeInstance(r.uuid(0), made.ID, made.ComputeInstances[0].ID))
		},
	} {
		t.Run(name, func(t *testing.T) {
			r, p := runMIG(t)
			take(t, r) // since the plugin has looked
			before := r.instances()
			refused(t, p, r.allocated("c", small0, big0), `claim default/c (UID uid-c): request "r1"`, r.uuid(0), "Mica did not make", "destroy it, or delete the pod")
			r.expectMIG(t, p, before)
			refused(t, p, r.allocated("all", whole0), `claim default/all (UID uid-all): request "r0"`, "gpu-0", "MIG instances that Mica did not make", "destroy them, or delete the pod")
			r.expectMIG(t, p, before)
		})
	}
}

// The driver refuses a place that looked free: nothing stays, not even the mode.
func TestAPlaceThatIsRefused(t *testing.T) {
	r, p := runMIG(t)
	failure := model.Failure{Function: "nvmlDeviceCreateGpuInstanceWithPlacement"}
	set(&failure.Return, nvmlInsufficientResources)
	must(t, r.machine.Fail(failure))
	refused(t, p, r.allocated("c", small0), `claim default/c (UID uid-c): request "r0"`, r.uuid(0), "Mica did not make", "delete the pod")
	r.expectMIG(t, p, nil)
}

// What the board does not have was never offered.
func TestAProfileThatTheBoardLacks(t *testing.T) {
	r, p := runMIG(t)
	refused(t, p, r.allocated("c", "gpu-0-mig-1g5gb-19-0"), `claim default/c (UID uid-c): request "r0": device gpu-0-mig-1g5gb-19-0 is not on this node`, "and 198 more")
	r.expectMIG(t, p, nil)
}

func destroy(t *testing.T, r *migRig, index int) {
	t.Helper()
	for _, instance := range r.machine.Instances(index) {
		must(t, r.machine.DestroyInstance(index, instance.ID))
	}
}

func TestPartitionsDestroyedBehindOurBack(t *testing.T) {
	for name, change := range map[string]func(t *testing.T, r *migRig, p *Preparer) (foreign bool){
		"destroyed":        func(t *testing.T, r *migRig, _ *Preparer) bool { destroy(t, r, 0); return false },
		"and seen so":      func(t *testing.T, r *migRig, p *Preparer) bool { destroy(t, r, 0); r.lookAt(t, p); return false },
		"and MIG disabled": func(t *testing.T, r *migRig, _ *Preparer) bool { destroy(t, r, 0); return disable(t, r) },
		"seen so, and made by another": func(t *testing.T, r *migRig, p *Preparer) bool {
			destroy(t, r, 0)
			r.lookAt(t, p)
			r.foreign(t, 0, "3g.40gb", 4)
			return true
		},
		"with a compute instance left out": func(t *testing.T, r *migRig, _ *Preparer) bool {
			instance := r.machine.Instances(0)[0]
			must(t, r.library.DestroyComputeInstance(r.uuid(0), instance.ID, 0))
			return false
		},
	} {
		t.Run(name, func(t *testing.T) {
			for _, next := range []string{"prepare", "unprepare", "reconcile"} {
				r, p := runMIG(t)
				claim := r.allocated("c", big0)
				prepare(t, p, claim)
				corrected := correctionsOf(t)
				foreign := change(t, r, p)
				before := r.instances()
				switch {
				case next == "reconcile":
					reconcile(t, p)
					reconcile(t, p) // nothing is left to put right
					if got := corrected(); got != "cdi-withdrawn 1" {
						t.Errorf("put right: %q", got)
					}
					if p.CDI.Has(claim.UID) {
						t.Error("the CDI file may lead to an administrator's partition")
					}
					unprepare(t, p, claim)
				case next == "prepare":
					if got := prepare(t, p, claim)[0]; ours(got) == foreign {
						t.Errorf("the claim has %+v", got)
					}
					r.expect(t, claim)
				}
				unprepare(t, p, claim)
				if !foreign {
					before = nil
				}
				r.expectMIG(t, p, before)
			}
		})
	}
}

func disable(t *testing.T, r *migRig) bool {
	t.Helper()
	must(t, r.machine.SetMIGMode(0, false))
	return false
}

// A CDI file that cannot be written is no reason to destroy what containers use.
func TestAPartitionOutlivesItsCDIFile(t *testing.T) {
	r, p := runMIG(t)
	claim := r.allocated("c", big0)
	prepare(t, p, claim)
	before := r.instances()
	remove(t, r.spec(claim))
	r.edits.FailGPU(r.uuid(0), errAway)
	refused(t, p, claim, `claim default/c (UID uid-c): request "r0"`, "connection refused")
	if got := r.instances(); !slices.Equal(got, before) {
		t.Errorf("got the instances %q, want %q", got, before)
	}
	r.edits.FailGPU(r.uuid(0), nil)
	prepare(t, p, claim)
	r.expectMIG(t, p, nil, claim)
	if got := r.instances(); !slices.Equal(got, before) {
		t.Errorf("got the instances %q, want %q", got, before)
	}
}

// What is in use stays recorded, and is unmade when it is free.
func TestAPartitionInUse(t *testing.T) {
	r, p := runMIG(t)
	claim := r.allocated("c", big0)
	prepare(t, p, claim)
	id := r.machine.Instances(0)[0].ID
	occupy(t, r, id, true)
	err := p.Unprepare(shortly(t), claim.UID)
	fixture.Sentence(t, err, "claim default/c", `request "r0"`, "compute instance 0", r.uuid(0), "end the processes that still use it", "kubelet tries again")
	refused(t, p, r.allocated("next", whole0), "claim default/c (UID uid-c) still holds")
	// Kubelet tries again, and the process ends meanwhile.
	done := make(chan error, 1)
	go func() { done <- p.Unprepare(within(t), claim.UID) }()
	occupy(t, r, id, false)
	must(t, <-done)
	r.expectMIG(t, p, nil)
}

// The other claims of a GPU do not wait for the one whose partition is in use.
func TestAPartitionInUseLeavesTheGPUToOthers(t *testing.T) {
	r, p := runMIG(t)
	claim, neighbour := r.allocated("c", big0), r.allocated("neighbour", small0)
	prepare(t, p, claim)
	id := r.machine.Instances(0)[0].ID
	occupy(t, r, id, true)
	synctest.Test(t, func(t *testing.T) {
		done := make(chan error, 1)
		go func() { done <- p.Unprepare(within(t), claim.UID) }()
		time.Sleep(3 * time.Second)
		soon, cancel := context.WithTimeout(testContext(t), time.Second)
		defer cancel()
		if _, err := p.Prepare(soon, neighbour); err != nil {
			t.Error(err)
		}
		if err := p.Unprepare(soon, neighbour.UID); err != nil {
			t.Error(err)
		}
		fixture.Sentence(t, <-done, "claim default/c", `request "r0"`, "end the processes that still use it")
		occupy(t, r, id, false)
		unprepare(t, p, claim)
		r.expectMIG(t, p, nil)
	})
}

// A pod whose GPU is lost can end, and what it has left is undone when the GPU is back.
func TestAPartitionOnALostGPU(t *testing.T) {
	for name, lose := range map[string]func(r *migRig) (back func() error, err error){
		"lost": func(r *migRig) (func() error, error) {
			return func() error { return r.machine.Return(0) }, r.machine.Lose(0)
		},
		"unknown to the driver": func(r *migRig) (func() error, error) {
			failure := model.Failure{Function: "nvmlDeviceGetHandleByUUID", GPU: new(int)}
			set(&failure.Return, nvmlNotFound)
			_, err := r.library.Rest() // as after its loss: until then, NVML knows it
			return r.machine.Clear, errors.Join(err, r.machine.Fail(failure))
		},
	} {
		t.Run(name, func(t *testing.T) {
			r, p := runMIG(t)
			claim, next := r.allocated("c", big0, elsewhere), r.allocated("next", big0)
			prepare(t, p, claim)
			back, err := lose(r)
			must(t, err)
			unprepare(t, p, claim)
			if p.CDI.Has(claim.UID) {
				t.Error("the CDI file is still there")
			}
			if got := uids(t, r.claimsDir()); len(got) != 1 {
				t.Errorf("records of %q, want that of the claim", got)
			}
			if got := len(r.machine.Instances(1)); got != 0 {
				t.Errorf("the GPU that is not lost has %d instances", got)
			}
			r.api.remove(claim)
			refused(t, p, next, "claim default/c", r.uuid(0), "reset or replace it")
			unprepare(t, p, next)
			must(t, back())
			reconcile(t, p)
			r.expectMIG(t, p, nil)
			prepare(t, p, next)
			r.expectMIG(t, p, nil, next)
		})
	}
}

// A process that uses one partition of a claim is not forgotten for the sake of
// another that is lost.
func TestAPartitionInUseBesideALostGPU(t *testing.T) {
	r, p := runMIG(t)
	claim := r.allocated("c", big0, elsewhere)
	prepare(t, p, claim)
	occupy(t, r, r.machine.Instances(0)[0].ID, true)
	must(t, r.machine.Lose(1))
	synctest.Test(t, func(t *testing.T) {
		fixture.Sentence(t, p.Unprepare(within(t), claim.UID), "claim default/c", `request "r0"`, "end the processes that still use it")
	})
}

// One partition that stays in use keeps Reconcile neither from the other claims
// nor the GPU from them.
func TestReconcileLeavesWhatIsInUse(t *testing.T) {
	for name, leave := range map[string]func(t *testing.T, r *migRig, p *Preparer, claim *resourceapi.ResourceClaim){
		"unprepared by half": func(t *testing.T, _ *migRig, p *Preparer, claim *resourceapi.ResourceClaim) {
			if err := p.Unprepare(shortly(t), claim.UID); err == nil {
				t.Error("a partition in use was destroyed")
			}
		},
		"gone": func(_ *testing.T, r *migRig, _ *Preparer, claim *resourceapi.ResourceClaim) { r.api.remove(claim) },
	} {
		t.Run(name, func(t *testing.T) {
			r, p := runMIG(t)
			busy, gone := r.allocated("busy", big0), r.allocated("gone", elsewhere)
			prepare(t, p, busy)
			prepare(t, p, gone)
			id := r.machine.Instances(0)[0].ID
			occupy(t, r, id, true)
			leave(t, r, p, busy)
			r.api.remove(gone)
			synctest.Test(t, func(t *testing.T) {
				reconciled := make(chan error, 1)
				go func() { reconciled <- p.Reconcile(testContext(t)) }()
				time.Sleep(time.Second)
				neighbour := r.allocated("neighbour", small0)
				if _, err := p.Prepare(within(t), neighbour); err != nil {
					t.Error(err)
				}
				select {
				case err := <-reconciled:
					fixture.Sentence(t, err, "claim default/busy", "end the processes that still use it")
				case <-time.After(2 * takeOverLimit):
					occupy(t, r, id, false)
					t.Fatal("Reconcile waits for the process to end")
				}
				occupy(t, r, id, false)
				unprepare(t, p, busy)
				r.expectMIG(t, p, nil, neighbour)
			})
		})
	}
}

func occupy(t *testing.T, r *migRig, instance int, inUse bool) {
	t.Helper()
	must(t, r.machine.Occupy(0, &instance, inUse))
}

// While there is no driver, nothing that it would have to undo is forgotten.
func TestWithoutADriverEffectsAreRemembered(t *testing.T) {
	r := newMIGRig(t)
	claim := r.allocated("c", small0)
	prepare(t, r.startMIG(t, nil), claim)
	p := r.start(t)
	p.node.Store(nil)
	fixture.Sentence(t, p.Unprepare(testContext(t), claim.UID), "claim default/c", "the NVIDIA driver on this node does not answer yet")
	reconcile(t, p)
	if got := uids(t, r.claimsDir()); len(got) != 1 {
		t.Errorf("records of %q", got)
	}
	// The pod does not wait for a driver that was looked for and is not there.
	p.NoDriver()
	if err := p.Unprepare(testContext(t), claim.UID); err != nil {
		t.Error(err)
	}
	if got := uids(t, r.claimsDir()); len(got) != 1 {
		t.Errorf("after the pod has ended, records of %q", got)
	}
	p = r.startMIG(t, nil)
	reconcile(t, p)
	r.expectMIG(t, p, nil)
}

// kubelet knows a plugin before it has looked at its GPUs, and may want a claim back then.
func TestAReleaseWaitsForTheFirstLook(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newMIGRig(t)
		claim := r.allocated("c", small0)
		running := r.startMIG(t, nil)
		prepare(t, running, claim)
		p := New(running.Options)
		time.AfterFunc(time.Second, func() { p.SetNode(*running.node.Load()) })
		begun := time.Now()
		unprepare(t, p, claim)
		if waited := time.Since(begun); waited != time.Second {
			t.Errorf("it has waited %s, want 1s", waited)
		}
		r.expectMIG(t, p, nil)
	})
}

func TestAdminAccessToPartitions(t *testing.T) {
	r, p := runMIG(t)
	holder := r.allocated("holder", small0)
	prepare(t, p, holder)
	admin := fixture.Claim("admin", fixture.AdminResult("look", small0), fixture.AdminResult("look", big0), fixture.AdminResult("look", whole0))
	r.api.put(admin)
	devices := prepare(t, p, admin)
	if devices[0].PartUUID == "" || devices[1].PartUUID != "" {
		t.Errorf("got %+v and %+v", devices[0], devices[1])
	}
	r.expectMIG(t, p, nil, holder, admin)
	unprepare(t, p, admin)
	r.expectMIG(t, p, nil, holder)
}

func TestAClaimWhoseSecondDeviceFails(t *testing.T) {
	for _, second := range []string{small1, elsewhere} {
		r, p := runMIG(t)
		index := 0
		if second == elsewhere {
			index = 1
		}
		must(t, r.machine.Fail(model.Failure{Function: "nvmlGpuInstanceCreateComputeInstance", Return: nvmlLost, GPU: &index}))
		// The rollback waits for a monitor that holds the instance.
		must(t, r.machine.Fail(model.Failure{Function: "nvmlGpuInstanceDestroy", Return: nvmlInUse, Times: 2}))
		refused(t, p, r.allocated("c", big0, second), "claim default/c", "create the compute instance", "reset or replace it")
		r.expectMIG(t, p, nil)
		must(t, r.machine.Clear())
		claim := r.allocated("c", big0, second)
		prepare(t, p, claim)
		r.expectMIG(t, p, nil, claim)
	}
}

// What an administrator makes in the place of a partition that was never made, or
// that was undone, is left alone, however the rest of its claim is undone.
func TestAPlaceIsGivenUpAsSoonAsItIsFree(t *testing.T) {
	const smallProfile, bigProfile = 19, 9
	for name, tc := range map[string]func(t *testing.T, r *migRig, i *interference) (meanwhile func()){
		"the place was refused": func(t *testing.T, r *migRig, i *interference) func() {
			i.create = func(profile int) error {
				if profile == bigProfile {
					r.foreign(t, 0, "3g.40gb", 4)
				}
				return nil
			}
			i.destroy = func(int) error { return errAway }
			return func() {}
		},
		"the place was undone": func(t *testing.T, r *migRig, i *interference) func() {
			made := 0
			i.createCompute = func(int) error {
				if made++; made > 1 {
					return errAway
				}
				return nil
			}
			destroyed := 0
			i.destroy = func(int) error {
				if destroyed++; destroyed > 1 {
					return errAway
				}
				return nil
			}
			return func() { r.foreign(t, 0, "3g.40gb", 4) }
		},
	} {
		for _, next := range []string{"reconcile", "unprepare", "prepare"} {
			t.Run(name+", then "+next, func(t *testing.T) {
				r := newMIGRig(t)
				i := &interference{create: never, createCompute: never, destroy: never}
				meanwhile := tc(t, r, i)
				p := r.startMIG(t, func(mig MIG) MIG { i.MIG = mig; return i })
				claim := r.allocated("c", small0, big0)
				if _, err := p.Prepare(within(t), claim); err == nil {
					t.Fatal("the claim was prepared")
				}
				meanwhile()
				p = r.startMIG(t, nil)
				switch next {
				case "unprepare":
					unprepare(t, p, claim)
				case "prepare": // with what an administrator has made, which is offered now
					prepare(t, p, claim)
					unprepare(t, p, claim)
				}
				reconcile(t, p)
				got := r.machine.Instances(0)
				if len(got) != 1 || got[0].Profile != "3g.40gb" || len(got[0].ComputeInstances) != 1 {
					t.Errorf("got the instances %+v, want an administrator's alone", got)
				}
				r.expect(t)
			})
		}
	}
}

// An answer that can pass fails no claim, and one that does not says what to do.
func TestQuestionsAreRepeated(t *testing.T) {
	for _, prepared := range []bool{false, true} {
		for code, want := range map[int][]string{
			nvmlTimeout: {"NVML answered", "kubelet tries again"},
			nvmlLost:    {"NVML answered", "reset or replace it"},
		} {
			asked := "nvmlDeviceGetGpuInstances"
			if prepared {
				asked = "nvmlDeviceGetUUID"
			}
			for _, function := range []string{"nvmlDeviceGetHandleByUUID", asked} {
				t.Run(fmt.Sprintf("%s answers %d, prepared=%t", function, code, prepared), func(t *testing.T) {
					r, p := runMIG(t)
					claim := r.allocated("c", big0)
					must(t, r.machine.SetMIGMode(0, true))
					if prepared {
						prepare(t, p, claim)
					}
					failure := model.Failure{Function: function}
					set(&failure.Return, code)
					_, err := r.library.Rest() // or the handle would be known
					must(t, errors.Join(err, r.machine.Fail(failure)))
					synctest.Test(t, func(t *testing.T) {
						refused(t, p, claim, append(want, `claim default/c (UID uid-c): request "r0"`)...)
					})
					must(t, r.machine.Clear())
					if failure.Times = 3; code != nvmlTimeout {
						return
					}
					must(t, r.machine.Fail(failure))
					synctest.Test(t, func(t *testing.T) {
						if _, err := p.Prepare(within(t), claim); err != nil {
							t.Error(err)
						}
						r.expectMIG(t, p, nil, claim)
					})
				})
			}
		}
	}
}

// On a GPU whose other partitions come and go, a list of its MIG devices can lack
// one that is there.
func TestAPartitionThatAListLacks(t *testing.T) {
	r := newMIGRig(t)
	r.foreign(t, 1, "3g.40gb", 4)
	p := r.startMIG(t, nil)
	claim, static := r.allocated("c", big0), r.allocated("static", elsewhere)
	prepare(t, p, claim)
	before := r.instances()
	failure := model.Failure{Function: "nvmlDeviceGetMigDeviceHandleByIndex"}
	set(&failure.Return, nvmlNotFound)
	must(t, r.machine.Fail(failure))
	prepare(t, p, static)
	reconcile(t, p)
	r.expect(t, claim, static)
	prepare(t, p, claim)
	if got := r.instances(); !slices.Equal(got, before) {
		t.Errorf("got the instances %q, want %q", got, before)
	}
}

// A place that was freed stays so while another partition of the claim is in use.
func TestAFreedPlaceOfAClaimInUse(t *testing.T) {
	r, p := runMIG(t)
	claim := r.allocated("c", small0, big0)
	devices := prepare(t, p, claim)
	small, big := devices[0], devices[1]
	occupy(t, r, small.Form.InstanceID, true)
	synctest.Test(t, func(t *testing.T) {
		fixture.Sentence(t, p.Unprepare(within(t), claim.UID), "claim default/c", "end the processes")
	})
	id, err := r.library.CreateInstance(r.uuid(0), big.Form.ProfileID, big.Form.Start, big.Form.Size) // nvidia-smi mig -cgi without -C
	must(t, err)
	occupy(t, r, small.Form.InstanceID, false)
	unprepare(t, p, claim)
	if got := r.machine.Instances(0); len(got) != 1 || got[0].ID != id {
		t.Errorf("got the instances %+v, want an administrator's alone", got)
	}
	r.expect(t)
}

// Seven partitions and their claims, all at once and by two processes.
func TestManyPartitionsAtOnce(t *testing.T) {
	r := newMIGRig(t)
	processes := []*Preparer{r.startMIG(t, nil), r.startMIG(t, nil)}
	var claims []*resourceapi.ResourceClaim
	for index := range 4 {
		for start := range 7 {
			claims = append(claims, r.allocated(fmt.Sprintf("c%d%d", index, start), fmt.Sprintf("gpu-%d-mig-1g10gb-19-%d", index, start)))
		}
	}
	errs := make([]error, len(claims))
	for range 3 {
		parallel(len(claims), func(i int) { _, errs[i] = processes[i%2].Prepare(within(t), claims[i]) })
		must(t, errors.Join(errs...))
		r.expectMIG(t, processes[0], nil, claims...)
		parallel(len(claims), func(i int) { errs[i] = processes[(i+1)%2].Unprepare(within(t), claims[i].UID) })
		must(t, errors.Join(errs...))
		r.expectMIG(t, processes[0], nil)
	}
}

// Return codes of NVML (nvml.h).
const (
	nvmlTimeout, nvmlLost, nvmlInUse, nvmlUnknown    = 10, 15, 19, 999
	nvmlNoPermission, nvmlOS, nvmlMemory             = 4, 17, 20
	nvmlInsufficientResources, nvmlResetRequired     = 23, 16
	nvmlNotFound, nvmlNotSupported, nvmlUninitalised = 6, 3, 1
)
