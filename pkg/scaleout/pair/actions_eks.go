package pair

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/mica-gpu/mica/api/v1alpha1"
)

// setDesired records the intent in the group's status, and then sets the size at EKS.
type setDesired struct {
	unpromised
	Group *v1alpha1.GPUNodeGroup
	Entry v1alpha1.InFlight
}

func (a setDesired) String() string {
	return fmt.Sprintf("set the size of %s to %d", a.Group.Name, a.Entry.Target)
}

func (a setDesired) group() string { return a.Group.Name }

// do records the intent, calls EKS, and records what EKS calls it. Where the process is
// killed in between, the intent is found in the status and is sent again, which EKS takes for
// the same update.
func (a setDesired) do(ctx context.Context, e *Executor, result *Result) error {
	if e.Nodegroups == nil {
		return errors.New("there is no client of EKS: give the controller a region and credentials, or choose pairing placeholder or observe")
	}
	if err := e.changeStatus(ctx, result, a.Group.Name, func(status *v1alpha1.GPUNodeGroupStatus) {
		status.InFlight = withEntry(status.InFlight, a.Entry)
	}); err != nil {
		return fmt.Errorf("recording the intent, without which EKS is not called: %w", err)
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
	if err := e.changeStatus(ctx, result, a.Group.Name, func(status *v1alpha1.GPUNodeGroupStatus) {
		status.InFlight = withEntry(status.InFlight, named)
	}); err != nil {
		return fmt.Errorf("recording update %s of EKS: %w", id, err)
	}
	return nil
}

// withEntry has the entry in place of the intent and of the entry of its ID.
func withEntry(entries []v1alpha1.InFlight, entry v1alpha1.InFlight) []v1alpha1.InFlight {
	others := slices.DeleteFunc(slices.Clone(entries), func(e v1alpha1.InFlight) bool {
		return e.ID == IntentID || e.ID == entry.ID
	})
	return append(others, entry)
}

// setWarmPool sets how many stopped machines a group of EKS has at least.
type setWarmPool struct {
	unpromised
	Group *v1alpha1.GPUNodeGroup
	Size  int
}

func (a setWarmPool) String() string {
	return fmt.Sprintf("set the warm pool of %s to %d", a.Group.Name, a.Size)
}

func (setWarmPool) group() string { return "" }

func (a setWarmPool) do(ctx context.Context, e *Executor, _ *Result) error {
	if e.Nodegroups == nil {
		return errors.New("there is no client of EKS: give the controller a region and credentials, or do not have warm pools steered")
	}
	_, err := e.Nodegroups.SetWarmPool(ctx, a.Group, a.Size)
	return err
}
