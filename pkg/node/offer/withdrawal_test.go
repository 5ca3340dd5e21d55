package offer

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mica-gpu/mica/pkg/gpu"
	"github.com/mica-gpu/mica/pkg/node/journal"
	"github.com/mica-gpu/mica/pkg/slice"
	"github.com/mica-gpu/mica/test/fixture"
)

// ofOne offers a policy's shapes of the first GPU of a node with H100s.
type ofOne struct {
	gpus    []gpu.GPU
	history history
	now     time.Time
	offer   desired
}

func newOfOne(t *testing.T) *ofOne {
	return &ofOne{gpus: fixture.Node(t, "p5.48xlarge").GPUs[:1], now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)}
}

func (o *ofOne) apply(after time.Duration, policy gpu.Policy, held ...journal.Device) {
	for i := range held {
		held[i].UUID = o.gpus[0].UUID
	}
	o.now = o.now.Add(after)
	o.history, o.offer = o.history.next(o.gpus, map[string]gpu.Policy{o.gpus[0].UUID: policy}, held, o.now)
}

// expect lists what is published, withdrawn shapes with a minus sign.
func (o *ofOne) expect(t *testing.T, want ...string) {
	t.Helper()
	var got []string
	for _, shape := range o.offer.shapes {
		name := strings.TrimPrefix(shape.Name(), "gpu-")
		if len(o.offer.taints[shape.Name()]) > 0 {
			name = "-" + name
		}
		got = append(got, name)
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

var (
	wholeOnly = gpu.Policy{Whole: true}
	sliced    = func(replicas int, interval gpu.Interval) gpu.Policy {
		return gpu.Policy{TimeSlicing: &gpu.TimeSlicing{Replicas: replicas, Interval: interval}}
	}
)

func TestAShapeIsWithdrawnForAMinuteAndWhileHeld(t *testing.T) {
	o := newOfOne(t)
	o.apply(0, wholeOnly)
	o.expect(t, "0")
	o.apply(time.Hour, sliced(4, gpu.DefaultInterval))
	o.expect(t, "0-timeslice", "-0")
	if !o.offer.until.Equal(o.now.Add(withdrawalTime)) {
		t.Errorf("it changes by itself at %s", o.offer.until)
	}
	held := journal.Device{Device: "gpu-0", Form: gpu.Form{Base: "whole"}}
	o.apply(withdrawalTime-1, sliced(4, gpu.DefaultInterval), held)
	o.expect(t, "0-timeslice", "-0")
	o.apply(1, sliced(4, gpu.DefaultInterval), held)
	o.expect(t, "0-timeslice", "-0")
	if !o.offer.passing || !o.offer.until.IsZero() {
		t.Errorf("got %+v", o.offer)
	}
	o.apply(1, sliced(4, gpu.DefaultInterval))
	o.expect(t, "0-timeslice")
	if o.offer.passing {
		t.Error("nothing is withdrawn, and it is looked at for ever")
	}
}

func TestAPolicyThatComesBackWithdrawsOnlyWhatCameBetween(t *testing.T) {
	o := newOfOne(t)
	o.apply(0, wholeOnly)
	o.apply(time.Second, gpu.Policy{MPS: &gpu.MPS{Clients: 2}})
	o.expect(t, "0-mps", "-0")
	o.apply(time.Second, wholeOnly)
	o.expect(t, "0", "-0-mps")
	o.apply(withdrawalTime, wholeOnly)
	o.expect(t, "0")
}

// Whoever writes policies faster than withdrawals end makes no plugin grow.
func TestPoliciesThatTakeTurnsAreRememberedOnce(t *testing.T) {
	o := newOfOne(t)
	for range 100 {
		o.apply(time.Second/10, wholeOnly)
		o.apply(time.Second/10, sliced(4, gpu.DefaultInterval))
	}
	o.expect(t, "0-timeslice", "-0")
	if !o.offer.until.Equal(o.now.Add(withdrawalTime)) {
		t.Errorf("it changes by itself at %s", o.offer.until)
	}
	if past := o.history.past[o.gpus[0].UUID]; len(past) != 2 {
		t.Errorf("%d policies are remembered", len(past))
	}
}

// The newest withdrawal is looked at first, and the oldest ends first.
func TestTheOfferChangesWithTheFirstWithdrawalThatEnds(t *testing.T) {
	o := newOfOne(t)
	o.apply(0, wholeOnly)
	o.apply(time.Second, gpu.Policy{MPS: &gpu.MPS{Clients: 2}})
	first := o.now.Add(withdrawalTime)
	o.apply(time.Second, sliced(4, gpu.DefaultInterval))
	o.expect(t, "0-timeslice", "-0", "-0-mps")
	if !o.offer.until.Equal(first) {
		t.Errorf("it changes by itself at %s, want %s", o.offer.until, first)
	}
}

// This version cannot know the shape of such a device.
func TestADeviceOfANewerVersionIsNotRebuilt(t *testing.T) {
	o := newOfOne(t)
	o.apply(0, sliced(2, gpu.DefaultInterval), journal.Device{Newer: true, Device: "gpu-0"})
	o.expect(t, "0-timeslice")
	if len(o.offer.unknown) > 0 {
		t.Errorf("got %v", o.offer.unknown)
	}
}

func TestWhatClaimsHoldIsRebuiltAfterARestart(t *testing.T) {
	for name, test := range map[string]struct {
		held journal.Device
		want gpu.Shape
	}{
		"shares by time": {journal.Device{Device: "gpu-0-timeslice", Form: gpu.Form{Base: "whole", Sharing: "timeslice", Shares: 8, Interval: "Long"}}, gpu.Share{Sharing: gpu.TimeSlicing{Replicas: 8, Interval: gpu.LongInterval}}},
		"MPS":            {journal.Device{Device: "gpu-0-mps", Form: gpu.Form{Base: "whole", Sharing: "mps", Shares: 6}}, gpu.Share{Sharing: gpu.MPS{Clients: 6}}},
		"a partition":    {journal.Device{Device: "gpu-0-mig-1g10gb-19-2", Form: gpu.Form{Base: "partition", Placement: gpu.Placement{ProfileID: 19, Start: 2, Size: 1}}}, gpu.Partition{}},
		"shares of a partition": {journal.Device{Device: "gpu-0-mig-1g10gb-19-2-timeslice", Form: gpu.Form{Base: "partition", Sharing: "timeslice", Shares: 3, Interval: "Default", Placement: gpu.Placement{ProfileID: 19, Start: 2, Size: 1}}},
			gpu.Share{Sharing: gpu.TimeSlicing{Replicas: 3, Interval: gpu.DefaultInterval}}},
	} {
		t.Run(name, func(t *testing.T) {
			o := newOfOne(t)
			o.apply(0, wholeOnly, test.held)
			o.expect(t, "0", "-"+strings.TrimPrefix(test.held.Device, "gpu-"))
			got := o.offer.shapes[len(o.offer.shapes)-1]
			if want, ok := test.want.(gpu.Share); ok && got.(gpu.Share).Sharing != want.Sharing {
				t.Errorf("got %+v", got)
			}
		})
	}
}

// An unknown shape is not taken for the whole GPU, and is logged.
func TestAnUnknownShapeIsNotOfferedAsAWholeGPU(t *testing.T) {
	o := newOfOne(t)
	o.apply(0, sliced(2, gpu.DefaultInterval), journal.Device{Device: "gpu-0", Form: gpu.Form{Base: "later"}})
	o.expect(t, "0-timeslice")
	if len(o.offer.unknown) != 1 || !strings.Contains(o.offer.unknown[0].Error(), `device gpu-0 of GPU `+o.gpus[0].UUID) ||
		!strings.Contains(o.offer.unknown[0].Error(), `shape "later" is unknown`) {
		t.Errorf("got %v", o.offer.unknown)
	}
}

// A shape that the hardware no longer supports is not published, even if a claim holds it.
func TestWhatIsHeldOfAGPUThatIsPartitionedIsNotPublished(t *testing.T) {
	o := newOfOne(t)
	o.gpus[0].MIG = gpu.MIGEnabled
	o.gpus[0].MIGSwitchable = false
	o.apply(0, sliced(2, gpu.DefaultInterval), journal.Device{Device: "gpu-0", Form: gpu.Form{Base: "whole"}})
	o.expect(t)
}

func TestReplicasChangeAtOnceAndTheIntervalWithTheLastShare(t *testing.T) {
	o := newOfOne(t)
	sharing := func() gpu.TimeSlicing { return o.offer.shapes[0].(gpu.Share).Sharing.(gpu.TimeSlicing) }
	o.apply(0, sliced(2, gpu.ShortInterval))
	held := journal.Device{Device: "gpu-0-timeslice", Form: gpu.Form{Base: "whole", Sharing: "timeslice", Shares: 2, Interval: "Short"}}
	o.apply(0, sliced(8, gpu.LongInterval), held)
	o.expect(t, "0-timeslice")
	if want := (gpu.TimeSlicing{Replicas: 8, Interval: gpu.ShortInterval}); sharing() != want || !o.offer.passing {
		t.Errorf("got %+v, want %+v; passing: %t", sharing(), want, o.offer.passing)
	}
	o.apply(0, sliced(8, gpu.LongInterval))
	if want := (gpu.TimeSlicing{Replicas: 8, Interval: gpu.LongInterval}); sharing() != want {
		t.Errorf("got %+v, want %+v", sharing(), want)
	}
}

var (
	several    = gpu.Policy{Whole: true, Consumable: &gpu.ConsumableShares{By: gpu.ByCount, Count: 4}}
	anyNumber  = gpu.Policy{Whole: true, Consumable: &gpu.ConsumableShares{By: gpu.ByNothing}}
	heldAlone  = journal.Device{Device: "gpu-0", Form: gpu.Form{Base: "whole"}}
	heldShared = journal.Device{Device: "gpu-0", Form: gpu.Form{Base: "whole", Sharing: "shares", Shares: 4}}
)

// expectShared also checks whether several claims may have the GPU.
func (o *ofOne) expectShared(t *testing.T, want bool, names ...string) {
	t.Helper()
	o.expect(t, names...)
	if got := o.offer.shapes[0].Form().Shared(); got != want {
		t.Errorf("several claims may have it: %t, want %t", got, want)
	}
}

// The scheduler gives away anew what changes between one claim and several (kubernetes/kubernetes#140798).
func TestAGPUChangesBetweenOneClaimAndSeveralWhenItIsFree(t *testing.T) {
	for _, tc := range []struct {
		before, after gpu.Policy
		held          journal.Device
		shared        bool // before
	}{{wholeOnly, several, heldAlone, false}, {several, wholeOnly, heldShared, true}} {
		o := newOfOne(t)
		o.apply(0, tc.before)
		o.expectShared(t, tc.shared, "0")
		o.apply(time.Hour, tc.after)
		o.expectShared(t, tc.shared, "-0")
		if !o.offer.until.Equal(o.now.Add(withdrawalTime)) || !o.offer.passing {
			t.Errorf("it changes by itself at %s", o.offer.until)
		}
		o.apply(withdrawalTime-1, tc.after, tc.held)
		o.expectShared(t, tc.shared, "-0")
		o.apply(time.Hour, tc.after, tc.held)
		o.expectShared(t, tc.shared, "-0")
		if !o.offer.until.IsZero() || !o.offer.passing {
			t.Errorf("got %+v", o.offer)
		}
		o.apply(1, tc.after)
		o.expectShared(t, !tc.shared, "0")
		if o.offer.passing || !o.offer.until.IsZero() {
			t.Errorf("got %+v", o.offer)
		}
	}
}

func TestAGPUWhosePolicyComesBackIsNotWithdrawn(t *testing.T) {
	o := newOfOne(t)
	o.apply(0, wholeOnly)
	o.apply(time.Second, several)
	o.apply(time.Second, wholeOnly)
	o.expectShared(t, false, "0")
	o.apply(time.Second, several)
	o.apply(withdrawalTime-1, several)
	o.expectShared(t, false, "-0")
	o.apply(1, several)
	o.expectShared(t, true, "0")
}

func TestAGPUThatWasWithdrawnReturnsAsItWas(t *testing.T) {
	o := newOfOne(t)
	o.apply(0, wholeOnly)
	o.apply(time.Second, sliced(2, gpu.DefaultInterval))
	o.expect(t, "0-timeslice", "-0")
	o.apply(time.Second, several)
	o.expectShared(t, false, "-0", "-0-timeslice")
	o.apply(withdrawalTime, several)
	o.expectShared(t, true, "0")
}

// After a restart only records say how claims hold it, and so they do of a claim that was allocated before
// the last change.
func TestAGPUIsPublishedAsItIsHeld(t *testing.T) {
	for _, known := range []bool{false, true} {
		for _, tc := range []struct {
			policy gpu.Policy
			held   journal.Device
		}{{several, heldAlone}, {wholeOnly, heldShared}} {
			o := newOfOne(t)
			if known {
				o.apply(0, tc.policy)
			}
			o.apply(time.Hour, tc.policy, tc.held)
			o.expectShared(t, tc.held.Form.Shared(), "-0")
			o.apply(1, tc.policy)
			o.expectShared(t, tc.policy.Consumable != nil, "0")
		}
	}
}

// What claims may have of it changes at once, as with replicas.
func TestTheLimitOfAGPUForSeveralClaimsChangesAtOnce(t *testing.T) {
	o := newOfOne(t)
	o.apply(0, several)
	o.apply(time.Second, anyNumber, heldShared)
	o.expectShared(t, true, "0")
	if o.offer.shapes[0].Form().Sharing != gpu.ByNothing || o.offer.passing {
		t.Errorf("got %+v", o.offer)
	}
	// It stays as it was last published.
	o.apply(time.Second, wholeOnly, heldShared)
	o.expectShared(t, true, "-0")
	if o.offer.shapes[0].Form().Sharing != gpu.ByNothing {
		t.Errorf("got %+v", o.offer.shapes[0].Form())
	}
}

func TestAGPUThatIsAwayKeepsItsHistory(t *testing.T) {
	o := newOfOne(t)
	all := o.gpus
	o.apply(0, wholeOnly)
	o.history, o.offer = o.history.next(nil, nil, nil, o.now)
	o.expect(t)
	o.gpus = all
	o.apply(time.Second, sliced(2, gpu.DefaultInterval))
	o.expect(t, "0-timeslice", "-0")
}

func TestIdentitiesDifferByParametersAndWithdrawals(t *testing.T) {
	seen := map[string]bool{}
	g := fixture.Node(t, "p5.48xlarge").GPUs[0]
	for _, offer := range []desired{
		{shapes: shapesOf(g, sliced(2, gpu.DefaultInterval))},
		{shapes: shapesOf(g, sliced(3, gpu.DefaultInterval))},
		{shapes: shapesOf(g, sliced(3, gpu.LongInterval))},
		{shapes: shapesOf(g, sliced(3, gpu.LongInterval)), taints: slice.Taints{"gpu-0-timeslice": {slice.Withdrawn()}}},
		{shapes: shapesOf(g, gpu.Policy{MPS: &gpu.MPS{Clients: 3}})},
	} {
		identity := strings.Join(identities(offer), "\n")
		if seen[identity] {
			t.Errorf("%q is that of two offers", identity)
		}
		seen[identity] = true
	}
}
