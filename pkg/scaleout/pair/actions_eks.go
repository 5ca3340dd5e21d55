package pair

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/mica-gpu/mica/api/v1alpha1"
)

var errNoEKS = errors.New("the controller has no client of EKS: give it a region and credentials, or choose pairing placeholder or observe")

// setDesired records an intent in the group's status, and then sets the size at EKS.
type setDesired struct {
	unpromised
	Group *v1alpha1.GPUNodeGroup
	Entry v1alpha1.InFlight
}

func (a setDesired) String() string {
	return fmt.Sprintf("set the size of %s to %d", a.Group.Name, a.Entry.Target)
}

func (a setDesired) group() string { return a.Group.Name }

// do records the intent, calls EKS, and records the update's ID. After a crash in between, the recorded intent is sent again;
// EKS recognizes it.
func (a setDesired) do(ctx context.Context, e *Executor, result *Result) error {
	if e.Nodegroups == nil {
		return errNoEKS
	}
	record := func(entry v1alpha1.InFlight) error {
		return e.changeStatus(ctx, result, a.Group.Name, func(status *v1alpha1.GPUNodeGroupStatus) {
			status.InFlight = withEntry(status.InFlight, entry)
		})
	}
	if err := record(a.Entry); err != nil {
		return fmt.Errorf("record the intent before calling EKS: %w", err)
	}
	id, err := e.Nodegroups.SetDesired(ctx, a.Group, a.Entry)
	if err != nil || id == "" {
		return err
	}
	named := a.Entry
	named.ID = id
	status := result.Status[a.Group.Name]
	status.InFlight = withEntry(status.InFlight, named)
	result.Status[a.Group.Name] = status
	if err := record(named); err != nil {
		return fmt.Errorf("record update %s of EKS: %w", id, err)
	}
	return nil
}

// withEntry replaces the intent, and the entry of the same ID.
func withEntry(entries []v1alpha1.InFlight, entry v1alpha1.InFlight) []v1alpha1.InFlight {
	others := slices.DeleteFunc(slices.Clone(entries), func(e v1alpha1.InFlight) bool {
		return e.ID == IntentID || e.ID == entry.ID
	})
	return append(others, entry)
}
