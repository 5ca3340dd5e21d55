package prepare

import (
	"fmt"
	"testing"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/mica-gpu/mica/test/nvmlsim/model"
)

// calls are those of NVML that something makes.
func (r *migRig) calls(t testing.TB, does func()) model.Calls {
	t.Helper()
	before, err := r.machine.State()
	must(t, err)
	does()
	after, err := r.machine.State()
	must(t, err)
	return after.Calls.Since(before.Calls)
}

// Each call can take 10 ms, and look-ups by UUID and walks over MIG devices seconds.
func TestFewCallsOfNVML(t *testing.T) {
	r, p := runMIG(t)
	atMost := func(limit int, what string, does func()) {
		t.Helper()
		calls := r.calls(t, does)
		if calls.Total() > limit || calls["nvmlDeviceGetHandleByUUID"]+calls["nvmlDeviceGetMigDeviceHandleByIndex"] > 0 {
			t.Errorf("%s took %d calls, want at most %d and no search: %v", what, calls.Total(), limit, calls)
		}
	}
	// Profiles of compute instances are asked for once a process.
	first := r.allocated("first", "gpu-1-mig-1g10gb-19-0")
	prepare(t, p, first)
	unprepare(t, p, first)
	var seven []*resourceapi.ResourceClaim
	for i := range 7 {
		seven = append(seven, r.allocated(fmt.Sprint("c", i), fmt.Sprint("gpu-0-mig-1g10gb-19-", i)))
	}
	for i, claim := range seven {
		atMost(8, fmt.Sprintf("partition %d", i), func() { prepare(t, p, claim) })
	}
	for i, claim := range seven {
		atMost(1, fmt.Sprintf("to find partition %d prepared", i), func() { prepare(t, p, claim) })
	}
	p = r.startMIG(t, nil) // a new process has looked at everything
	for i, claim := range seven {
		atMost(6, fmt.Sprintf("the end of partition %d", i), func() { unprepare(t, p, claim) })
	}
	r.expectMIG(t, p, nil)
	whole := r.allocated("whole", whole0)
	atMost(4, "a whole GPU after partitions, whose links may be away", func() { prepare(t, p, whole) })
	unprepare(t, p, whole)
	// An administrator may have enabled MIG since the last look; nothing else is asked.
	atMost(1, "a whole GPU", func() { prepare(t, p, whole) })
	atMost(0, "the end of a whole GPU", func() { unprepare(t, p, whole) })
}

// What an administrator has put in the place of a partition that was gone is not taken for it,
// although it has its UUID and NVML's handles of the partition are known.
func TestKnownHandlesDestroyNothingOfOthers(t *testing.T) {
	r, p := runMIG(t)
	claim := r.allocated("c", big0)
	device := prepare(t, p, claim)[0]
	must(t, r.machine.DestroyInstance(0, device.Form.InstanceID))
	r.lookAt(t, p)
	other := r.foreign(t, 0, "3g.40gb", device.Form.Start)
	if other.ID != device.Form.InstanceID {
		t.Fatalf("the other instance has the ID %d, want that of the partition", other.ID)
	}
	if got := other.ComputeInstances[0].UUID; got != device.PartUUID {
		t.Fatalf("the other instance has the UUID %s, want that of the partition", got)
	}
	unprepare(t, p, claim)
	if left := r.machine.Instances(0); len(left) != 1 || len(left[0].ComputeInstances) != 1 || left[0].ComputeInstances[0].UUID != other.ComputeInstances[0].UUID {
		t.Errorf("got the instances %+v, want an administrator's", left)
	}
}
