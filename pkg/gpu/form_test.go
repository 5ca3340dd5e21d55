package gpu

import (
	"errors"
	"reflect"
	"strings"
	"testing"
)

func TestEveryShapeIsRestoredFromItsForm(t *testing.T) {
	slicing, mps := TimeSlicing{Replicas: 4, Interval: ShortInterval}, MPS{Clients: 3}
	policy := Policy{Whole: true, MIG: true, TimeSlicing: &slicing, MPS: &mps, SharedProfiles: map[string]Sharing{
		"1g.1gb": TimeSlicing{Replicas: 2, Interval: DefaultInterval}, "2g.2gb": mps,
	}}
	for _, shares := range []ConsumableShares{{By: ByNothing}, {By: ByMemory}, {By: ByCount, Count: 5}} {
		shape := Consumable{Whole: Whole{GPU: halves(0, MIGDisabled, true)}, Shares: shares}
		if restored, err := Restore(shape.GPU, shape.Form()); err != nil || !reflect.DeepEqual(restored, shape) {
			t.Errorf("got %+v, %v from the form of %+v", restored, err, shares)
		}
	}
	for _, g := range []GPU{halves(0, MIGDisabled, true), halves(0, MIGEnabled, true, instance(2, 1, 1, 1)), halves(0, MIGEnabled, false, instance(1, 0, 1, 1))} {
		for _, shape := range Shapes([]GPU{g}, func(GPU) Policy { return policy }) {
			form := shape.Form()
			form.Profile = "" // which a record does not keep
			if restored, err := Restore(g, form); err != nil || !reflect.DeepEqual(restored, shape) {
				t.Errorf("got %+v, %v from the form of %s", restored, err, shape.Name())
			}
		}
	}
}

func TestWhatAGPUCannotBeAnyMoreIsNotRestored(t *testing.T) {
	partitioned := halves(0, MIGEnabled, false, instance(1, 0, 1, 1))
	for _, form := range []Form{
		{Base: BaseWhole},
		{Base: BaseWhole, Sharing: "mps", Shares: 2},
		{Base: BasePartition, Placement: Placement{ProfileID: 3, Size: 2}},
	} {
		if shape, err := Restore(partitioned, form); !errors.Is(err, ErrNotOffered) {
			t.Errorf("got %+v, %v of %+v", shape, err, form)
		}
	}
}

// Nothing that is unknown is taken for the whole GPU.
func TestAnUnknownFormIsRefused(t *testing.T) {
	for want, form := range map[string]Form{
		`shape "" is unknown`:      {},
		`shape "later" is unknown`: {Base: "later"},
		`sharing "later" is`:       {Base: BaseWhole, Sharing: "later", Shares: 2},
		`sharing "memory" of`:      {Base: BasePartition, Sharing: "memory", Placement: Placement{ProfileID: 3, Size: 2}},
	} {
		if shape, err := Restore(halves(0, MIGDisabled, true), form); shape != nil || err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %+v, %v of %+v", shape, err, form)
		}
	}
}

func TestPlacementsOverlap(t *testing.T) {
	low, high, entire := Placement{Size: 2}, Placement{Start: 2, Size: 2}, Placement{}
	if low.Overlaps(high) || high.Overlaps(low) || !low.Overlaps(low) || !low.Overlaps(entire) || !entire.Overlaps(high) {
		t.Error("placements overlap that have nothing in common, or the reverse")
	}
}
