package gpu

import (
	"fmt"
	"slices"
)

// Consumable is the shape of an entire GPU that several claims may have at once under the name
// and type of a whole GPU, as NVIDIA's driver publishes it with consumable shares.
type Consumable struct {
	Whole
	Shares ConsumableShares
}

// ConsumableShares limits the claims that have a GPU at once.
type ConsumableShares struct {
	// By is ByNothing, ByMemory or ByCount.
	By string
	// Count is the number of shares for ByCount, otherwise 0.
	Count int
}

// Limits of consumable shares. The names are in records and, but for ByCount, in GPUPolicies.
const (
	// ByNothing admits any number of claims. They count only the memory that they request.
	ByNothing = "unlimited"
	// ByMemory divides the memory. A claim that requests none gets all of it.
	ByMemory = "memory"
	// ByCount divides the GPU into shares. A claim that requests none gets one.
	ByCount = "shares"
	// MaxConsumable bounds the number of shares. NVIDIA's driver has no bound.
	MaxConsumable = 1024
)

// Form is the whole GPU's with the limit.
func (c Consumable) Form() Form {
	f := c.Whole.Form()
	f.Sharing, f.Shares = c.Shares.By, c.Shares.Count
	return f
}

// Describe adds the capacities that claims divide, with the defaults of NVIDIA's driver. Engines are
// left out: one claim would take all of a capacity without a default.
func (c Consumable) Describe(d Description) {
	c.identify(d)
	memory := Divisible{Total: c.MemoryBytes() / memoryStep * memoryStep, Step: memoryStep, Bytes: true}
	if c.Shares.By == ByMemory {
		memory.Min, memory.Default = memoryStep, memory.Total
	}
	if memory.Total >= memory.Min+memory.Step { // the API server's least range
		d.Divisible(CapacityMemory, memory)
	}
	if c.Shares.By == ByCount {
		d.Divisible(CapacityShares, Divisible{Total: uint64(c.Shares.Count), Min: 1, Step: 1, Default: 1})
	}
}

func (s ConsumableShares) check(g GPU) error {
	switch {
	case !slices.Contains([]string{ByNothing, ByMemory, ByCount}, s.By):
		return fmt.Errorf("%q is unknown: choose %s, %s or a number", s.By, ByNothing, ByMemory)
	case s.By == ByCount && (s.Count < MinShares || s.Count > MaxConsumable):
		return fmt.Errorf("the number is %d: choose %d to %d", s.Count, MinShares, MaxConsumable)
	case s.By == ByMemory && g.MemoryBytes < 2*memoryStep: // without the capacity, any number of claims would fit
		return fmt.Errorf("it is %s, but NVML reports none for %s: choose %s or a number, or keep the policy from this GPU", ByMemory, g.ProductName, ByNothing)
	}
	return nil
}
