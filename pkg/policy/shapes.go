package policy

import (
	"cmp"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/mica-gpu/mica/api/v1alpha1"
	"github.com/mica-gpu/mica/pkg/gpu"
)

// read converts the shapes of a policy. gpu.Policy.Check checks the bounds of numbers.
func read(shapes v1alpha1.Shapes) (gpu.Policy, error) {
	if shapes == (v1alpha1.Shapes{}) {
		return gpu.Policy{}, errors.New("whole, mig, timeSlice, mps: none is there: name at least one shape")
	}
	policy := gpu.Policy{Whole: shapes.Whole != nil}
	if shapes.Whole != nil && shapes.Whole.ConsumableShares != nil {
		policy.Consumable = consumable(*shapes.Whole.ConsumableShares)
	}
	if shapes.TimeSlice != nil {
		slicing := timeSlicing(*shapes.TimeSlice)
		policy.TimeSlicing = &slicing
	}
	if shapes.MPS != nil {
		policy.MPS = &gpu.MPS{Clients: int(shapes.MPS.Clients)}
	}
	if shapes.MIG == nil {
		return policy, nil
	}
	switch shapes.MIG.Creation {
	case "", v1alpha1.CreationOnDemand:
	case v1alpha1.CreationNever:
		policy.OnlyExisting = true
	default:
		return gpu.Policy{}, fmt.Errorf("mig.creation is %q: choose %s or %s", shapes.MIG.Creation, v1alpha1.CreationOnDemand, v1alpha1.CreationNever)
	}
	// With shared profiles alone, no partition is offered to a single claim.
	policy.MIG = len(shapes.MIG.Profiles) > 0 || len(shapes.MIG.Shared) == 0
	for _, name := range shapes.MIG.Profiles {
		policy.Profiles = append(policy.Profiles, string(name))
	}
	for i, shared := range shapes.MIG.Shared {
		sharing, err := sharingOf(shared)
		if err != nil {
			return gpu.Policy{}, fmt.Errorf("mig.shared[%d]: %w", i, err)
		}
		if policy.SharedProfiles == nil {
			policy.SharedProfiles = map[string]gpu.Sharing{}
		}
		if _, twice := policy.SharedProfiles[string(shared.Profile)]; twice {
			return gpu.Policy{}, fmt.Errorf("mig.shared[%d]: profile %s is there twice: keep one entry", i, shared.Profile)
		}
		policy.SharedProfiles[string(shared.Profile)] = sharing
	}
	return policy, nil
}

func sharingOf(shared v1alpha1.SharedProfile) (gpu.Sharing, error) {
	switch {
	case (shared.TimeSlice == nil) == (shared.MPS == nil):
		return nil, fmt.Errorf("profile %s needs exactly one of timeSlice and mps", shared.Profile)
	case shared.TimeSlice != nil:
		return timeSlicing(*shared.TimeSlice), nil
	default:
		return gpu.MPS{Clients: int(shared.MPS.Clients)}, nil
	}
}

func consumable(shares intstr.IntOrString) *gpu.ConsumableShares {
	if shares.Type == intstr.Int {
		return &gpu.ConsumableShares{By: gpu.ByCount, Count: shares.IntValue()}
	}
	return &gpu.ConsumableShares{By: shares.StrVal}
}

func timeSlicing(t v1alpha1.TimeSlice) gpu.TimeSlicing {
	return gpu.TimeSlicing{Replicas: int(t.Replicas), Interval: cmp.Or(gpu.Interval(t.Interval), gpu.DefaultInterval)}
}
