package prepare

import (
	"fmt"
	"slices"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/mica-gpu/mica/pkg/gpu"
	"github.com/mica-gpu/mica/test/fixture"
	"github.com/mica-gpu/mica/test/nvmlsim/model"
)

// moments crash a process at one of them: before and after each change of a GPU,
// and at the end of each phase, between which files are written. They are
// counted, so that a loop finds all there are.
type moments struct {
	MIG
	left int
}

type errMoment string

func (m *moments) pass(what string) {
	if m.left--; m.left == 0 {
		panic(errMoment(what))
	}
}

// ObservePhase implements Phases.
func (m *moments) ObservePhase(operation, phase string, _ time.Duration) {
	m.pass(operation + " " + phase)
}

func (m *moments) around(what string, change func() error) error {
	m.pass("before " + what)
	err := change()
	m.pass("after " + what)
	return err
}

func (m *moments) SetMIG(uuid string, enabled bool) error {
	return m.around(fmt.Sprint("SetMIG ", enabled), func() error { return m.MIG.SetMIG(uuid, enabled) })
}

func (m *moments) CreateInstance(uuid string, profileID, start, size int) (instance int, err error) {
	err = m.around("CreateInstance", func() error {
		instance, err = m.MIG.CreateInstance(uuid, profileID, start, size)
		return err
	})
	return instance, err
}

func (m *moments) CreateComputeInstance(uuid string, instance int) (device gpu.MIGDevice, err error) {
	err = m.around("CreateComputeInstance", func() error {
		device, err = m.MIG.CreateComputeInstance(uuid, instance)
		return err
	})
	return device, err
}

func (m *moments) DestroyComputeInstance(uuid string, instance, compute int) error {
	return m.around("DestroyComputeInstance", func() error { return m.MIG.DestroyComputeInstance(uuid, instance, compute) })
}

func (m *moments) DestroyInstance(uuid string, instance int) error {
	return m.around("DestroyInstance", func() error { return m.MIG.DestroyInstance(uuid, instance) })
}

// liveAndCrash prepares and unprepares the claim and crashes at a moment, which
// it returns, empty when that many do not come.
func liveAndCrash(t *testing.T, r *migRig, claim *resourceapi.ResourceClaim, at int) (moment string) {
	t.Helper()
	m := &moments{left: at}
	return crashMoment(func() {
		p := r.startMIG(t, func(mig MIG) MIG { m.MIG = mig; return m }, func(o *Options) { o.Phases = m })
		prepare(t, p, claim)
		unprepare(t, p, claim)
	})
}

// crashMoment is the moment at which the process ended, empty if it went on.
func crashMoment(process func()) (moment string) {
	defer func() {
		switch crash := recover().(type) {
		case nil:
		case errMoment:
			moment = string(crash)
		default:
			panic(crash)
		}
	}()
	process()
	return ""
}

// After a crash at any moment the next process finds everything in order or
// brings it into order, whether or not the claim is still there.
func TestACrashAtEachEffect(t *testing.T) {
	for _, devices := range [][]string{{big0}, {small0, small1, big0}} {
		seen := map[string]bool{}
		for at := 1; ; at++ {
			moment := ""
			t.Run(fmt.Sprintf("%d of %q", at, devices), func(t *testing.T) {
				for _, next := range afterwards("reconcile", "prepare", "unprepare", "another", "gone") {
					t.Run("then "+next, func(t *testing.T) {
						t.Parallel()
						crashed := crashOnce(t, devices, at, next)
						if next == "reconcile" { // it is the same moment before all of them
							moment = crashed
						}
					})
				}
			})
			if moment == "" {
				break
			}
			seen[moment] = true
		}
		for _, effect := range []string{"SetMIG true", "CreateInstance", "CreateComputeInstance", "DestroyComputeInstance", "DestroyInstance", "SetMIG false"} {
			if !seen["before "+effect] || !seen["after "+effect] {
				t.Errorf("%q: no crash before and after %s: %v", devices, effect, seen)
			}
		}
	}
}

// A process that ends in the middle of a rollback has written down what its attempt learned: what
// an administrator has made in the place that was refused is not taken for the claim's.
func TestACrashInARollback(t *testing.T) {
	const bigProfile = 9
	for _, next := range []string{"reconcile", "unprepare", "another claim"} {
		t.Run("then "+next, func(t *testing.T) {
			r := newMIGRigOf(t, 1)
			claim := r.allocated("c", small0, big0)
			i := &interference{createCompute: never}
			i.create = func(profile int) error {
				if profile == bigProfile {
					r.foreign(t, 0, "3g.40gb", 4)
				}
				return nil
			}
			i.destroy = func(int) error { panic(errMoment("rollback")) }
			if crashed := crashMoment(func() { prepare(t, r.startMIG(t, func(mig MIG) MIG { i.MIG = mig; return i }), claim) }); crashed == "" {
				t.Fatal("nothing was undone")
			}
			p := r.startMIG(t, nil)
			switch next {
			case "unprepare":
				unprepare(t, p, claim)
			case "another claim":
				r.api.remove(claim)
				another := r.allocated("another", small0)
				prepare(t, p, another)
				unprepare(t, p, another)
			}
			reconcile(t, p)
			got := r.machine.Instances(0)
			if len(got) != 1 || got[0].Profile != "3g.40gb" || len(got[0].ComputeInstances) != 1 {
				t.Errorf("got the instances %+v, want the administrator's alone", got)
			}
			r.expect(t)
		})
	}
}

// afterwards are what follows a crash; with -short, as under the race detector, only the first
// and the last, because each crash is a world of its own.
func afterwards(all ...string) []string {
	if testing.Short() {
		return []string{all[0], all[len(all)-1]}
	}
	return all
}

func crashOnce(t *testing.T, devices []string, at int, next string) (moment string) {
	t.Helper()
	r := newMIGRigOf(t, 2)
	r.foreign(t, 1, "2g.20gb", 0)
	before := r.instances()
	other := r.allocated("other", elsewhere)
	prepare(t, r.startMIG(t, nil), other)
	claim := r.allocated("c", devices...)
	moment = liveAndCrash(t, r, claim, at)
	if next == "gone" {
		r.api.remove(claim)
	}
	p := r.startMIG(t, nil)
	survivors := []*resourceapi.ResourceClaim{other}
	switch next {
	case "prepare":
		prepare(t, p, claim)
	case "unprepare":
		unprepare(t, p, claim)
	case "another": // it was allocated the same because the first claim is gone
		r.api.remove(claim)
		claim = r.allocated("another", whole0)
		prepare(t, p, claim)
	}
	reconcile(t, p)
	// A claim that lives on is prepared, or not at all.
	if next != "unprepare" && next != "gone" && (next != "reconcile" || slices.Contains(uids(t, r.claimsDir()), string(claim.UID))) {
		survivors = append(survivors, claim)
	}
	r.expectMIG(t, p, before, survivors...)
	if next == "reconcile" {
		prepare(t, p, claim)
		r.expectMIG(t, p, before, other, claim)
	}
	return moment
}

// errorsOfNVML are what calls may answer. NOT_FOUND, NOT_SUPPORTED and
// INVALID_ARGUMENT after an effect, and INSUFFICIENT_RESOURCES in the same way,
// would be lies.
var errorsOfNVML = []int{nvmlUninitalised, nvmlNoPermission, nvmlTimeout, nvmlLost, nvmlResetRequired, nvmlOS, nvmlInUse, nvmlMemory, nvmlUnknown}

var answersBefore = append([]int{nvmlInsufficientResources, nvmlNotFound, nvmlNotSupported}, errorsOfNVML...)

// Whatever a call answers, once or for as long as the operation lasts, the node
// is in order afterwards: at once, or with the next attempt.
func TestEachErrorAtEachCall(t *testing.T) {
	effects := []string{
		"nvmlDeviceSetMigMode", "nvmlDeviceCreateGpuInstanceWithPlacement", "nvmlGpuInstanceCreateComputeInstance",
		"nvmlComputeInstanceDestroy", "nvmlGpuInstanceDestroy",
	}
	questions := []string{
		"nvmlDeviceGetHandleByUUID", "nvmlDeviceGetMigMode", "nvmlDeviceGetFieldValues", "nvmlDeviceGetGpuInstances", "nvmlGpuInstanceGetInfo",
		"nvmlDeviceGetGpuInstanceById", "nvmlGpuInstanceGetComputeInstanceProfileInfo", "nvmlDeviceGetGpuInstanceRemainingCapacity",
		"nvmlComputeInstanceGetInfo_v2", "nvmlDeviceGetAttributes_v2", "nvmlDeviceGetUUID",
		"nvmlDeviceGetGpuInstanceProfileInfo", "nvmlGpuInstanceGetComputeInstanceById",
	}
	for _, times := range []int{1, 0} {
		for _, function := range questions {
			for _, code := range []int{nvmlNotFound, nvmlNotSupported, nvmlLost, nvmlInUse, nvmlUnknown} {
				failOnce(t, model.Failure{Function: function, Times: times}, code)
			}
		}
		for _, function := range effects {
			for _, code := range answersBefore {
				failOnce(t, model.Failure{Function: function, Times: times}, code)
			}
		}
		for _, function := range effects {
			for _, code := range errorsOfNVML {
				failOnce(t, model.Failure{Function: function, Times: times, After: true}, code)
			}
		}
	}
}

func failOnce(t *testing.T, failure model.Failure, code int) {
	t.Helper()
	set(&failure.Return, code)
	for _, operation := range []string{"prepare", "unprepare"} {
		t.Run(fmt.Sprintf("%s answers %d, after=%t, times=%d, in %s", failure.Function, code, failure.After, failure.Times, operation), func(t *testing.T) {
			t.Parallel()
			r := newMIGRigOf(t, 2)
			r.foreign(t, 1, "2g.20gb", 0)
			before := r.instances()
			p := r.startMIG(t, nil)
			claim := r.allocated("c", small0, big0)
			if operation == "unprepare" {
				prepare(t, p, claim)
			}
			must(t, r.machine.Fail(failure))
			var err error
			if operation == "prepare" {
				_, err = p.Prepare(shortly(t), claim)
			} else {
				err = p.Unprepare(shortly(t), claim.UID)
			}
			if clearing := r.machine.Clear(); clearing != nil {
				t.Fatal(clearing)
			}
			checkAfterError(t, r, p, claim, before, operation, err)
		})
	}
}

// set writes one of NVML's codes without naming their type, which is pkg/node/nvml's.
func set[T ~int32](to *T, code int) { *to = T(code) }

// checkAfterError finds the claim prepared, or something that the next attempt
// of kubelet and the next Reconcile put into order.
func checkAfterError(t *testing.T, r *migRig, p *Preparer, claim *resourceapi.ResourceClaim, before []string, operation string, err error) {
	t.Helper()
	if err != nil {
		fixture.Sentence(t, err, "claim default/c")
	}
	if err == nil && operation == "prepare" {
		r.expectMIG(t, p, before, claim)
	}
	if operation == "unprepare" {
		unprepare(t, p, claim) // kubelet repeats what failed
	}
	reconcile(t, p)
	if err != nil || operation == "unprepare" {
		// The mode may have stayed; a whole claim is what it matters to.
		whole := r.allocated("whole", whole0)
		prepare(t, p, whole)
		r.expectMIG(t, p, before, whole)
		unprepare(t, p, whole)
	}
	prepare(t, p, claim)
	r.expectMIG(t, p, before, claim)
	unprepare(t, p, claim)
	r.expectMIG(t, p, before)
}
