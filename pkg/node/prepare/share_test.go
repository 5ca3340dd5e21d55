package prepare

import (
	"context"
	"errors"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/mica-gpu/mica/pkg/gpu"
	"github.com/mica-gpu/mica/pkg/node/journal"
	"github.com/mica-gpu/mica/pkg/node/mps"
	"github.com/mica-gpu/mica/pkg/node/nvml"
	"github.com/mica-gpu/mica/test/fixture"
	"github.com/mica-gpu/mica/test/nvmlsim/model"
)

// sharedDevices are one of each kind.
var sharedDevices = []string{slicedGPU, servedGPU, slicedSmall, servedBig, several0}

// The first share sets what a device needs, further ones find it, and after the last
// one nothing is left of it, whatever the order in which they go.
func TestSharesOfOneDevice(t *testing.T) {
	for _, device := range sharedDevices {
		t.Run(device, func(t *testing.T) {
			for _, order := range [][]int{{0, 1, 2}, {2, 1, 0}, {1, 2, 0}} {
				r, p := runShares(t)
				var claims []*resourceapi.ResourceClaim
				for i := range 3 {
					claims = append(claims, r.sharing(fmt.Sprint("c", i), device))
					devices := prepare(t, p, claims[i])
					if got := devices[0]; got.ShareID != fmt.Sprintf("share-c%d-0", i) || got.Form.Shares != 4 {
						t.Errorf("got %+v", got)
					}
					r.expectShares(t, p, claims...)
				}
				for _, i := range order {
					unprepare(t, p, claims[i])
					claims[i] = nil
					r.expectShares(t, p, slices.DeleteFunc(slices.Clone(claims), func(c *resourceapi.ResourceClaim) bool { return c == nil })...)
				}
				if r.daemons.starts > 1 {
					t.Errorf("its daemon was started %d times", r.daemons.starts)
				}
			}
		})
	}
}

func TestAClientGetsItsOwnLimits(t *testing.T) {
	r, p := runShares(t)
	small, large := r.sharing("small", servedGPU), r.sharing("large", servedGPU)
	delete(large.Status.Allocation.Devices.Results[0].ConsumedCapacity, "gpu.nvidia.com/memory")
	prepare(t, p, small)
	prepare(t, p, large)
	for claim, want := range map[*resourceapi.ResourceClaim]string{small: "TEST_MPS=gpu-0-mps,10737418240,25", large: "TEST_MPS=gpu-0-mps,0,25"} {
		if spec := read(t, r.spec(claim)); !strings.Contains(spec, want) || !strings.Contains(spec, "TEST_GPU_"+r.uuid(0)) || !strings.Contains(spec, `"/mps/gpu-0-mps"`) {
			t.Errorf("%s: %q or its GPU is not in %s", claim.Name, want, spec)
		}
	}
}

// Two shares of one device in one claim are two devices for the runtime.
func TestAClaimWithTwoShares(t *testing.T) {
	for _, device := range sharedDevices {
		t.Run(device, func(t *testing.T) {
			r, p := runShares(t)
			claim := r.sharing("c", device, device)
			devices := prepare(t, p, claim)
			if devices[0].CDIDeviceIDs[0] == devices[1].CDIDeviceIDs[0] {
				t.Errorf("both are %s", devices[0].CDIDeviceIDs)
			}
			if !reflect.DeepEqual(devices[0].Form, devices[1].Form) || devices[0].PartUUID != devices[1].PartUUID {
				t.Errorf("got the partitions %+v and %+v", devices[0].Form, devices[1].Form)
			}
			r.expectShares(t, p, claim)
			other := r.sharing("other", device)
			prepare(t, p, other)
			unprepare(t, p, claim)
			r.expectShares(t, p, other)
			unprepare(t, p, other)
			r.expectShares(t, p)
		})
	}
}

// A claim that was allocated anew has other shares, of the same device too.
func TestAnotherShareIsAnotherAllocation(t *testing.T) {
	r, p := runShares(t)
	claim := r.sharing("c", servedGPU)
	before := prepare(t, p, claim)
	claim.Status.Allocation.Devices.Results[0].ShareID = ptr.To(types.UID("share-later"))
	r.api.put(claim)
	after := prepare(t, p, claim)
	if after[0].ShareID != "share-later" || after[0].CDIDeviceIDs[0] == before[0].CDIDeviceIDs[0] {
		t.Errorf("got %+v after %+v", after, before)
	}
	r.expectShares(t, p, claim)
}

// A share excludes every other shape of its GPU, and of a partition what overlaps it.
func TestSharesExcludeOtherShapes(t *testing.T) {
	for held, excluded := range map[string][]string{
		slicedGPU:   {whole0, servedGPU, small0, slicedSmall, several0},
		servedGPU:   {whole0, slicedGPU, servedBig},
		slicedSmall: {whole0, slicedGPU, small0},
		servedBig:   {whole0, servedGPU, big0},
		whole0:      {slicedGPU, servedGPU, slicedSmall, several0},
		several0:    {whole0, slicedGPU, servedGPU, small0, servedBig},
	} {
		r, p := runShares(t)
		holder := r.sharing("holder", held)
		prepare(t, p, holder)
		for _, device := range excluded {
			refused(t, p, r.sharing("next", device), "claim default/next (UID uid-next): it was given a GPU", "claim default/holder (UID uid-holder) still holds on this node")
		}
		r.expectShares(t, p, holder)
	}
}

// What a claim was about to do to a device that is shared is not known.
func TestAnIntentExcludesOtherShares(t *testing.T) {
	r, p := runShares(t)
	first := r.sharing("first", servedGPU)
	prepare(t, p, first)
	record, _, err := p.Journal.Get(string(first.UID))
	must(t, err)
	record.State = journal.Intent
	must(t, p.Journal.Put(testContext(t), record))
	next := r.sharing("next", servedGPU)
	refused(t, p, next, "claim default/next (UID uid-next): it was given a GPU", "that claim default/first (UID uid-first) shares and that is being prepared or released", "kubelet tries again")
	corrected := correctionsOf(t)
	reconcile(t, p)
	if got := corrected(); got != "preparation-undone 1" {
		t.Errorf("put right: %q", got)
	}
	prepare(t, p, next)
	r.expectShares(t, p, next)
}

func TestTheDefaultIntervalTakesNoEffect(t *testing.T) {
	r := newShareRigWith(t, gpu.DefaultInterval)
	recorder := &phaseLog{}
	p := r.startShares(t, nil, func(o *Options) { o.Phases = recorder })
	claim := r.sharing("c", slicedGPU)
	prepare(t, p, claim)
	unprepare(t, p, claim)
	if slices.Contains(recorder.phases, "prepare intent") {
		t.Errorf("an intent was written: %q", recorder.phases)
	}
}

// A further share changes nothing, so it is recorded once.
func TestAFurtherShareHasNoIntent(t *testing.T) {
	for _, device := range sharedDevices {
		r := newShareRig(t)
		recorder := &phaseLog{}
		p := r.startShares(t, nil, func(o *Options) { o.Phases = recorder })
		prepare(t, p, r.sharing("first", device))
		if !slices.Contains(recorder.phases, "prepare intent") && device != several0 {
			t.Errorf("%s: the first share has no intent: %q", device, recorder.phases)
		}
		recorder.phases = nil
		prepare(t, p, r.sharing("further", device))
		if slices.Contains(recorder.phases, "prepare intent") {
			t.Errorf("%s: a further share has an intent: %q", device, recorder.phases)
		}
	}
}

// The mode that an administrator has set for a GPU comes back after MPS.
func TestTheComputeModeIsRestored(t *testing.T) {
	r := newShareRig(t)
	must(t, r.library.SetComputeMode(r.uuid(0), nvml.Prohibited))
	p := r.startShares(t, nil)
	one, two := r.sharing("one", servedGPU), r.sharing("two", servedGPU)
	prepare(t, p, one)
	prepare(t, p, two)
	unprepare(t, p, one)
	unprepare(t, r.startShares(t, nil), two)
	if mode, err := r.library.ComputeMode(r.uuid(0)); err != nil || mode != nvml.Prohibited {
		t.Errorf("got %s, %v, want %s", mode, err, nvml.Prohibited)
	}
}

func TestAModeThatAnAdministratorSetsMeanwhileStays(t *testing.T) {
	r, p := runShares(t)
	claim := r.sharing("c", servedGPU)
	prepare(t, p, claim)
	must(t, r.library.SetComputeMode(r.uuid(0), nvml.Prohibited))
	unprepare(t, p, claim)
	if mode, err := r.library.ComputeMode(r.uuid(0)); err != nil || mode != nvml.Prohibited {
		t.Errorf("got %s, %v, want %s", mode, err, nvml.Prohibited)
	}
}

// A policy can change the interval while shares are in use: the newest claim's counts,
// and when it goes, that of those that are left.
func TestAChangedInterval(t *testing.T) {
	r, p := runShares(t)
	old := r.sharing("old", slicedGPU)
	prepare(t, p, old)
	r.policy.TimeSlicing.Interval = gpu.ShortInterval
	p = r.startShares(t, nil)
	fresh := r.sharing("fresh", slicedGPU)
	prepare(t, p, fresh)
	for _, want := range []gpu.Interval{gpu.ShortInterval, gpu.LongInterval, ""} {
		if got := r.intervals.all()[r.uuid(0)]; got != want {
			t.Errorf("got the interval %q, want %q", got, want)
		}
		unprepare(t, p, map[gpu.Interval]*resourceapi.ResourceClaim{gpu.ShortInterval: fresh, gpu.LongInterval: old, "": old}[want])
	}
}

// A claim may also look at what it has. It gets what it has, whichever result is first.
func TestAClaimThatLooksAtItsOwnDevice(t *testing.T) {
	for device, config := range map[string]string{
		whole0: mpsObject(""), small0: object("MigDeviceConfig", `,"sharing":{"strategy":"MPS"}`),
	} {
		for _, first := range []bool{true, false} {
			r, p := runShares(t)
			results := []resourceapi.DeviceRequestAllocationResult{fixture.AdminResult("look", device), fixture.Result("use", device)}
			if !first {
				slices.Reverse(results)
			}
			claim := fixture.Claim("c", results...)
			claim.Status.Allocation.Devices.Config = []resourceapi.DeviceAllocationConfiguration{configured(config)}
			r.api.put(claim)
			prepare(t, p, claim)
			spec, entireGPU := read(t, r.spec(claim)), "TEST_GPU_"+r.uuid(0)+"=1"
			if !strings.Contains(spec, "TEST_MPS=claim-uid-c-0") || strings.Contains(spec, entireGPU) != (device == whole0) {
				t.Errorf("%s, looking first=%t: the CDI file is %s", device, first, spec)
			}
			r.expect(t, claim)
		}
	}
}

func TestANodeWithoutSupervisor(t *testing.T) {
	r := newShareRig(t)
	without := func(tools Tools) Tools { tools.Daemons = nil; return tools }
	p := r.startShares(t, without)
	claim := r.sharing("c", servedGPU)
	refused(t, p, claim, `claim default/c (UID uid-c): request "r0": this node runs no supervisor of MPS daemons: install the chart with mps.enabled=true`)
	r.expectShares(t, p)
	// One whose supervisor was taken away does not keep its pods from ending.
	prepare(t, r.startShares(t, nil), claim)
	r.daemons.running = nil
	unprepare(t, r.startShares(t, without), claim)
	r.expectShares(t, p)
}

func TestADaemonThatDoesNotStart(t *testing.T) {
	for _, device := range []string{servedGPU, servedBig} {
		r, p := runShares(t)
		claim := r.sharing("c", device)
		r.daemons.broken("nvidia-cuda-mps-control is not in the driver root")
		refused(t, p, claim, `claim default/c (UID uid-c): request "r0": start MPS control daemon `+device+": nvidia-cuda-mps-control is not in the driver root", "what was done already is undone later", "stop MPS control daemon "+device)
		r.daemons.broken("")
		reconcile(t, p)
		r.expectShares(t, p)
		prepare(t, p, claim)
		r.expectShares(t, p, claim)
	}
}

func TestAGPUWithoutComputeModes(t *testing.T) {
	for _, function := range []string{"nvmlDeviceGetComputeMode", "nvmlDeviceSetComputeMode"} {
		r, p := runShares(t)
		failure := model.Failure{Function: function, Times: 1}
		set(&failure.Return, nvmlNotSupported)
		must(t, r.machine.Fail(failure))
		_, err := p.Prepare(testContext(t), r.sharing("c", servedGPU))
		fixture.Sentence(t, err, `claim default/c (UID uid-c): request "r0": `, "MPS needs the GPU's compute mode to be changed", "keep MPS from it by a GPUPolicy")
		if strings.Contains(err.Error(), "MIG") {
			t.Errorf("%v speaks of MIG", err)
		}
		r.expectShares(t, p)
	}
}

// A prepared claim's daemon runs again after the claim is prepared again.
func TestPrepareAgainStartsTheDaemonAgain(t *testing.T) {
	r, p := runShares(t)
	claim := r.sharing("c", servedGPU)
	before := prepare(t, p, claim)
	r.daemons.running = nil
	if after := prepare(t, p, claim); !reflect.DeepEqual(after, before) {
		t.Errorf("got %+v after %+v", after, before)
	}
	r.expectShares(t, p, claim)
	r.daemons.broken("it crashes")
	refused(t, p, claim, "claim default/c", "start MPS control daemon gpu-0-mps: it crashes")
}

// A daemon ends before what it serves is taken from it.
func TestADaemonEndsFirst(t *testing.T) {
	for _, device := range []string{servedGPU, servedBig} {
		r := newShareRig(t)
		ending := &ending{Daemons: r.daemons}
		p := r.startShares(t, func(tools Tools) Tools { tools.Daemons = ending; return tools })
		claim := r.sharing("c", device)
		prepare(t, p, claim)
		ending.stop = func() {
			if mode, err := r.library.ComputeMode(r.uuid(0)); device == servedGPU && (err != nil || mode != nvml.ExclusiveProcess) {
				t.Errorf("its GPU has the mode %s, %v already", mode, err)
			}
			if device == servedBig && len(r.instances()) != 1 {
				t.Error("its partition is gone already")
			}
		}
		unprepare(t, p, claim)
		if !ending.stopped {
			t.Errorf("%s: the daemon was not stopped", device)
		}
	}
}

// ending looks around when a daemon is stopped.
type ending struct {
	Daemons
	stop    func()
	stopped bool
}

func (e *ending) Stop(ctx context.Context, id string) error {
	e.stop()
	e.stopped = true
	return e.Daemons.Stop(ctx, id)
}

// As after MPS was switched off and on again while claims had shares.
func TestADaemonWithoutClientsIsReplaced(t *testing.T) {
	r, p := runShares(t)
	left := mps.Daemon{ID: servedGPU, Devices: []string{"GPU-that-was-replaced"}}
	r.daemons.running = map[string]mps.Daemon{left.ID: left}
	claim := r.sharing("c", servedGPU)
	prepare(t, p, claim)
	r.expectShares(t, p, claim)
	r.daemons.running[left.ID] = left // a user meddles
	_, err := p.Prepare(testContext(t), r.sharing("d", servedGPU))
	if _, is := r.daemons.running[left.ID]; !is || !errors.Is(err, mps.ErrOther) {
		t.Errorf("the daemon of another claim was ended: %v", err)
	}
}

func TestAnIntervalThatCannotBeSet(t *testing.T) {
	r, p := runShares(t)
	claim := r.sharing("c", slicedGPU)
	r.intervals.fail = os.ErrPermission
	refused(t, p, claim, `claim default/c (UID uid-c): request "r0": permission denied`)
	r.intervals.fail = nil
	reconcile(t, p)
	prepare(t, p, claim)
	r.expectShares(t, p, claim)
}

// Where no time-slice can be set, a share that needs one is refused, and keeps no claim
// from the GPU.
func TestAGPUWithoutTimeSlices(t *testing.T) {
	for _, reason := range []error{errors.ErrUnsupported, os.ErrNotExist} {
		r, p := runShares(t)
		claim := r.sharing("c", slicedGPU)
		r.intervals.fail = fmt.Errorf("set the time-slice: %w", reason)
		refused(t, p, claim, `claim default/c (UID uid-c): request "r0": set the time-slice`)
		r.expectShares(t, p)
		whole := r.sharing("whole", whole0)
		prepare(t, p, whole)
		r.expectShares(t, p, whole)
	}
}

// A pod ends although its GPU is lost, and what is left there is undone when it is back.
func TestALostGPUThatWasShared(t *testing.T) {
	for _, device := range sharedDevices {
		t.Run(device, func(t *testing.T) {
			r, p := runShares(t)
			claim := r.sharing("c", device)
			prepare(t, p, claim)
			must(t, r.machine.Lose(0))
			r.intervals.fail = os.ErrPermission
			unprepare(t, p, claim)
			must(t, r.machine.Return(0))
			r.intervals.fail = nil
			reconcile(t, p)
			r.expectShares(t, p)
		})
	}
}

// The partition of shares that an administrator has destroyed is made anew for the next claim,
// and shares of the old one are not taken for shares of the new one.
func TestASharedPartitionThatWasDestroyed(t *testing.T) {
	for _, device := range []string{slicedSmall, servedBig} {
		for _, seen := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, seen: %t", device, seen), func(t *testing.T) {
				r, p := runShares(t)
				one, two, three := r.sharing("one", device), r.sharing("two", device), r.sharing("three", device)
				first := prepare(t, p, one)[0].Form
				prepare(t, p, two)
				must(t, r.library.DestroyComputeInstance(r.uuid(0), first.InstanceID, first.ComputeID))
				must(t, r.library.DestroyInstance(r.uuid(0), first.InstanceID))
				if seen {
					r.lookAt(t, p)
				}
				later := prepare(t, p, three)[0].Form
				if len(r.instances()) != 1 {
					t.Fatalf("got the instances %v, want one that was made anew", r.instances())
				}
				unprepare(t, p, one)
				if again := prepare(t, p, two)[0].Form; !reflect.DeepEqual(again, later) {
					t.Errorf("got %+v, want that of the other share, %+v", again, later)
				}
				r.expectShares(t, p, two, three)
				unprepare(t, p, three)
				unprepare(t, p, two)
				r.expectShares(t, p)
			})
		}
	}
}

// An administrator's instance is handed out in shares, and stays, also if it is younger than the offer.
func TestSharesOfAStaticPartition(t *testing.T) {
	for name, early := range map[string]bool{"made before the offer": true, "and since": false} {
		t.Run(name, func(t *testing.T) { testSharesOfAStaticPartition(t, early) })
	}
}

func testSharesOfAStaticPartition(t *testing.T, early bool) {
	r := newShareRig(t)
	if early {
		r.foreign(t, 0, "3g.40gb", 4)
	}
	p := r.startShares(t, nil)
	if !early {
		r.foreign(t, 0, "3g.40gb", 4)
	}
	before := r.instances()
	one, two := r.sharing("one", servedBig), r.sharing("two", servedBig)
	if a, b := prepare(t, p, one)[0], prepare(t, p, two)[0]; a.PartUUID == "" || a.PartUUID != b.PartUUID || ours(a) || ours(b) {
		t.Errorf("got %+v and %+v of one partition", a, b)
	}
	if got := len(r.daemons.all()); got != 1 {
		t.Errorf("got %d daemons, want 1", got)
	}
	unprepare(t, p, one)
	unprepare(t, p, two)
	r.expectMIG(t, p, before)
	if got := r.daemons.all(); len(got) != 0 {
		t.Errorf("got the daemons %v after the last share", got)
	}
}

// A program that hangs until a call's time is up does not use up that of its undoing.
func TestAnIntervalThatIsSetTooLate(t *testing.T) {
	r := newShareRig(t)
	ctx, cancel := context.WithCancel(testContext(t))
	defer cancel()
	p := r.startShares(t, func(tools Tools) Tools { tools.TimeSlices = late{r.intervals, cancel}; return tools })
	_, err := p.Prepare(ctx, r.sharing("c", slicedGPU))
	fixture.Sentence(t, err, `claim default/c (UID uid-c): request "r0": context canceled`)
	r.expectShares(t, p)
}

// late sets intervals other than the default one when the call's time is up.
type late struct {
	*intervals
	timeIsUp func()
}

func (l late) Set(ctx context.Context, uuid string, interval gpu.Interval) error {
	if interval != gpu.DefaultInterval {
		l.timeIsUp()
		return errors.Join(l.intervals.Set(ctx, uuid, interval), ctx.Err())
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return l.intervals.Set(ctx, uuid, interval)
}

// Neither outlives a reset of the GPU.
func TestPrepareAgainSetsModesAgain(t *testing.T) {
	r, p := runShares(t)
	slices, client := r.sharing("a", slicedGPU), r.sharing("b", "gpu-1-mps")
	prepare(t, p, slices)
	prepare(t, p, client)
	for _, g := range r.machine.GPUs() {
		must(t, r.library.SetComputeMode(g.UUID, nvml.DefaultComputeMode))
		must(t, r.intervals.Set(t.Context(), g.UUID, gpu.DefaultInterval))
	}
	prepare(t, p, slices)
	prepare(t, p, client)
	r.expectShares(t, p, slices, client)
	unprepare(t, p, slices)
	unprepare(t, p, client)
	r.expectShares(t, p)
}

// The second claim would find the GPU taken, and only CUDA would report it.
func TestTimeSlicesOfAGPUThatAnAdministratorHasMadeExclusive(t *testing.T) {
	r, p := runShares(t)
	uuid := r.machine.GPUs()[0].UUID
	must(t, r.library.SetComputeMode(uuid, nvml.ExclusiveProcess))
	refused(t, p, r.sharing("c", slicedGPU), `request "r0": `+slicedGPU+" cannot be shared", "to ExclusiveProcess", "nvidia-smi -i "+uuid+" -c 0")
	must(t, r.library.SetComputeMode(uuid, nvml.DefaultComputeMode))
	prepare(t, p, r.sharing("c", slicedGPU))
}
