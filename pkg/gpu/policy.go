package gpu

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// Check refuses what a GPU does not support. The error is a sentence without the
// GPU's name.
func (p Policy) Check(g GPU) error {
	if p.Consumable != nil {
		if err := p.Consumable.check(g); err != nil {
			return fmt.Errorf("whole.consumableShares: %w", err)
		}
	}
	if p.TimeSlicing != nil {
		if err := p.TimeSlicing.check(g); err != nil {
			return fmt.Errorf("timeSlice: %w", err)
		}
	}
	if p.MPS != nil {
		if err := p.MPS.check(g); err != nil {
			return fmt.Errorf("mps: %w", err)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(p.SharedProfiles)) {
		sharing := p.SharedProfiles[name]
		if err := sharing.check(g); err != nil {
			return fmt.Errorf("mig.shared of profile %s: %w", name, err)
		}
		if interval := sharing.TimeSlice(); interval != "" && interval != DefaultInterval {
			return fmt.Errorf("mig.shared of profile %s: the interval of a MIG partition cannot be set: remove interval", name)
		}
	}
	return nil
}

func (t TimeSlicing) check(g GPU) error {
	if t.Replicas < MinShares || t.Replicas > MaxReplicas {
		return fmt.Errorf("replicas is %d: choose %d to %d", t.Replicas, MinShares, MaxReplicas)
	}
	if !slices.Contains(Intervals, t.Interval) {
		return fmt.Errorf("interval is %q: choose one of %q", t.Interval, Intervals)
	}
	if t.Interval != DefaultInterval && g.BeforeVolta() {
		return fmt.Errorf("interval is %s, but a %s (compute capability %s) has none that could be set: use %s, or keep the policy from this GPU",
			t.Interval, g.ProductName, g.ComputeCapability, DefaultInterval)
	}
	return nil
}

func (m MPS) check(g GPU) error {
	if m.Clients < MinShares || m.Clients > MaxClients {
		return fmt.Errorf("clients is %d: choose %d to %d", m.Clients, MinShares, MaxClients)
	}
	if g.BeforeVolta() {
		return fmt.Errorf("a %s (compute capability %s) cannot limit the clients of MPS: keep the policy from this GPU", g.ProductName, g.ComputeCapability)
	}
	return nil
}

// BeforeVolta reports whether the GPU is known to have neither time-slice intervals nor
// limits for the clients of MPS: Volta's compute capability is 7.0.
func (g GPU) BeforeVolta() bool {
	major, _, _ := strings.Cut(g.ComputeCapability, ".")
	n, err := strconv.Atoi(major)
	return err == nil && n < 7
}

// offers reports whether partitions of a profile are for one claim each.
func (p Policy) offers(profile string) bool {
	return p.MIG && (p.Profiles == nil || slices.Contains(p.Profiles, profile))
}
