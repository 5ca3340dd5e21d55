package offer

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/mica-gpu/mica/pkg/node/nvml"
	"github.com/mica-gpu/mica/test/fixture"
)

// Codes of NVML (nvml.h).
const (
	success       = 0
	uninitialised = 1
)

// answers fails the test if NVML is open and is not to be, or the other way round.
func (r *rig) answers(t *testing.T, when string, want int) {
	t.Helper()
	synctest.Wait()
	if _, got := r.client.DeviceGetCount(); int(got) != want {
		t.Errorf("%s: NVML answers %d, want %d", when, got, want)
	}
}

// persist has the driver keep all GPUs.
func persist(t *testing.T) func(*rig) {
	return func(r *rig) { keep(t, r, r.library, true) }
}

// persistenced has another user of NVML say whether the driver keeps GPUs.
func persistenced(t *testing.T, r *rig, keeps bool) {
	t.Helper()
	other := fixture.Library(t, r.machine)
	keep(t, r, other, keeps)
	must(t, other.Close())
}

func keep(t *testing.T, r *rig, by *nvml.Library, keeps bool) {
	t.Helper()
	for _, g := range r.machine.GPUs() {
		must(t, by.SetPersistence(g.UUID, keeps))
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
				after(restInterval)
				r.answers(t, "a claim has a GPU", success)
				must(t, r.preparer.Unprepare(t.Context(), claim.UID))
				r.Released()
				r.answers(t, "the claim has ended", uninitialised)
			})
		})
	}
}

// Who watches the GPUs' health asks them, too, and must not keep the driver open by that.
func TestTheDriverRestsAgainAfterOthersHaveUsedIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := live(t, "g5.12xlarge", persist(t))
		r.answers(t, "nothing is held", uninitialised)
		if _, err := r.library.Health(r.machine.GPUs()[0].UUID); err != nil {
			t.Fatal(err)
		}
		r.answers(t, "a GPU was asked", success)
		r.Used()
		r.answers(t, "who asked is done", uninitialised)
	})
}

// nvidia-persistenced may start after the plugin, and end before it. Without it, NVML initialises
// every GPU each time that it is opened.
func TestThePersistenceModeIsFollowed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := live(t, "g5.12xlarge", nothing)
		r.answers(t, "no GPU is kept", success)
		persistenced(t, r, true)
		after(lookInterval)
		r.answers(t, "nvidia-persistenced has started", uninitialised)
		persistenced(t, r, false)
		before, err := r.machine.State()
		must(t, err)
		after(10 * restInterval)
		r.answers(t, "nvidia-persistenced has ended", success)
		now, err := r.machine.State()
		must(t, err)
		if opened := now.Calls.Since(before.Calls)["nvmlInit_v2"]; opened != 1 {
			t.Errorf("the GPUs that the driver does not keep were initialised %d times, want once", opened)
		}
	})
}

// A look that has to open NVML reads everything; with 10 ms per call that is not to keep a core
// busy for more than a fiftieth of the time.
func TestARestingDriverIsLookedAtSeldom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := live(t, "p4d.24xlarge", persist(t))
		synctest.Wait()
		before, err := r.machine.State()
		must(t, err)
		const long = 5 * time.Minute
		after(long)
		now, err := r.machine.State()
		must(t, err)
		calls := now.Calls.Since(before.Calls)
		if busy := time.Duration(calls.Total()) * 10 * time.Millisecond; busy > long/50 {
			t.Errorf("looks at 8 idle GPUs take %s in %s: %v", busy, long, calls)
		}
	})
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
