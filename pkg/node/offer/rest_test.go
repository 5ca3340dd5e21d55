package offer

import (
	"testing"
	"testing/synctest"

	"github.com/mica-gpu/mica/test/fixture"
)

// Codes of NVML (nvml.h).
const (
	success       = 0
	uninitialised = 1
	enabled       = 1
)

// answers fails the test if NVML is open and is not to be, or the other way round.
func (r *rig) answers(t *testing.T, when string, want int) {
	t.Helper()
	synctest.Wait()
	if _, got := r.library.API().DeviceGetCount(); int(got) != want {
		t.Errorf("%s: NVML answers %d, want %d", when, got, want)
	}
}

// persist has the driver keep all GPUs.
func persist(t *testing.T) func(*rig) {
	return func(r *rig) {
		for i := range r.machine.GPUs() {
			handle, _ := r.library.API().DeviceGetHandleByIndex(i)
			if ret := handle.SetPersistenceMode(enabled); ret != success {
				t.Fatal(ret)
			}
		}
	}
}

// A driver that NVML holds cannot be unloaded, nor a GPU be reset.
func TestTheDriverIsLetGoWhileNoClaimHasAGPU(t *testing.T) {
	for _, machine := range []string{"g5.12xlarge", "p4d.24xlarge"} {
		t.Run(machine, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := live(t, machine, persist(t))
				r.answers(t, "nothing is held", uninitialised)
				claim := fixture.Claim("c", fixture.Result("r", "gpu-0"))
				if _, err := r.preparer.Prepare(t.Context(), claim); err != nil {
					t.Fatal(err)
				}
				after(2 * lookInterval)
				r.answers(t, "a claim has a GPU", success)
				must(t, r.preparer.Unprepare(t.Context(), claim.UID))
				r.Released()
				r.answers(t, "the claim has ended", uninitialised)
			})
		})
	}
}

func TestTheDriverIsHeld(t *testing.T) {
	for name, tc := range map[string]struct {
		machine string
		before  func(*rig)
	}{
		"where partitions are made on demand": {"p5.48xlarge", persist(t)},
		"where it would let go of the GPUs":   {"g5.12xlarge", nothing},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := live(t, tc.machine, tc.before)
				after(2 * lookInterval)
				r.answers(t, "nothing is held", success)
			})
		})
	}
}
