package explain

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/dynamic-resource-allocation/structured"

	"github.com/mica-gpu/mica/pkg/devices"
	"github.com/mica-gpu/mica/test/fixture"
)

const (
	h100   = "NVIDIA H100 80GB HBM3"
	eighty = `device.capacity["gpu.nvidia.com"].memory.compareTo(quantity("80Gi")) >= 0`
	numa   = "resource.kubernetes.io/numaNode"
)

// blockedCase is a claim that does not fit.
type blockedCase struct {
	machine *machine
	claims  []*resourceapi.ResourceClaim
	blocker string
}

func one(c *resourceapi.ResourceClaim) []*resourceapi.ResourceClaim {
	return []*resourceapi.ResourceClaim{c}
}

func named(claims []*resourceapi.ResourceClaim) []podClaim {
	var all []podClaim
	for _, claim := range claims {
		all = append(all, podClaim{claim, fmt.Sprintf("claim %q", claim.Name)})
	}
	return all
}

func blockedCases() map[string]blockedCase {
	h100s := func(n int) *machine { return newMachine().gpus(n, h100, "81152Mi") }
	return map[string]blockedCase{
		"round number": {h100s(8), one(claimOf("x", wants(8, eighty))), blockerSelector},
		"round number behind another condition": {h100s(2), one(claimOf("x", wants(1,
			`device.attributes["gpu.nvidia.com"].productName.startsWith("NVIDIA") && `+eighty))), blockerSelector},
		"round number in a binding": {h100s(1), one(claimOf("x", wants(1,
			`cel.bind(c, device.capacity["gpu.nvidia.com"], c.memory.isGreaterThan(quantity("1Gi")) && c.memory.compareTo(quantity("80Gi")) >= 0)`))), blockerSelector},
		"far too little memory": {newMachine().gpus(4, "NVIDIA A10G", "23028Mi"), one(claimOf("x", wants(1, eighty))), blockerSelector},
		"part of a product name": {h100s(8), one(claimOf("x", wants(1,
			`device.attributes["gpu.nvidia.com"].productName == "H100"`))), blockerSelector},
		"second selector": {h100s(8), one(claimOf("x", wants(1,
			`device.attributes["gpu.nvidia.com"].index >= 4`, `device.attributes["gpu.nvidia.com"].index == 2`))), blockerSelector},
		"some pass": {h100s(8), one(claimOf("x", wants(4, `device.attributes["gpu.nvidia.com"].index >= 6`))), blockerCount},
		"attribute of a driver not known yet": {h100s(8).imagined(), one(claimOf("x", wants(1,
			`device.attributes["gpu.nvidia.com"].driverVersion.compareTo(semver("550.0.0")) >= 0`))), blockerSelectorError},
		"attribute that only a node knows": {h100s(8).imagined(), one(claimOf("x", wants(1,
			`device.attributes["gpu.nvidia.com"].uuid == "GPU-1"`))), blockerSelectorError},
		"attribute that no device has": {h100s(8), one(claimOf("x", wants(1,
			`device.attributes["gpu.nvidia.com"].colour == "red"`))), blockerSelectorError},
		"attribute asked for with care": {h100s(8), one(claimOf("x", wants(1,
			`device.attributes["gpu.nvidia.com"].?colour.orValue("none") == "red"`))), blockerSelector},
		"no device of the class":                           {h100s(8).share(), one(claimOf("x", ofClass("mig.nvidia.com", 1))), blockerClass},
		"too few of the class, and none passes":            {newMachine().gpus(1, "NVIDIA A10G", "23028Mi"), one(claimOf("x", wants(2, eighty))), blockerSelector},
		"too few of the class, and all pass":               {h100s(1), one(claimOf("x", wants(2, `device.attributes["gpu.nvidia.com"].index == 0`))), blockerCount},
		"unknown class":                                    {h100s(8), one(claimOf("x", ofClass("tpu.google.com", 1))), blockerClass},
		"too few of the class":                             {h100s(8), one(claimOf("x", wants(9))), blockerCount},
		"tainted":                                          {h100s(8).taint(3), one(claimOf("x", wants(6))), blockerTaint},
		"tainted by a rule":                                {h100s(2).taintedAs("example.com/reserved"), one(claimOf("x", wants(1))), blockerTaint},
		"tainted, the others allocated":                    {h100s(4).taint(1).taken("gpu-1", "gpu-2", "gpu-3"), one(claimOf("x", wants(1))), blockerInUse},
		"allocated":                                        {h100s(8).taken("gpu-0", "gpu-1", "gpu-2", "gpu-3", "gpu-4", "gpu-5"), one(claimOf("x", wants(4))), blockerInUse},
		"all, and one allocated":                           {h100s(4).taken("gpu-2"), one(claimOf("x", every)), blockerInUse},
		"all of an incomplete pool, beside a complete one": {withSecondPool(h100s(1)), one(claimOf("x", every)), blockerPoolIncomplete},
		"pool incomplete":                                  {h100s(8).halfPublished(), one(claimOf("x", wants(1))), blockerPoolIncomplete},
		"no slices":                                        {&machine{}, one(claimOf("x", wants(1))), blockerNoDevices},
		"whole GPU that is cut":                            {h100s(1).partitions(2).taken("gpu-0-mig-1"), one(claimOf("x", wants(1))), blockerCounters},
		"more partitions than fit":                         {h100s(1).partitions(4), one(claimOf("x", ofClass("mig.nvidia.com", 3))), blockerCount},
		"share that is too large":                          {newMachine().share(), one(claimOf("x", memoryOf("timeslice.nvidia.com", "48Gi"))), blockerCapacity},
		"share that has too much used":                     {newMachine().share().consumed("gpu-0-timeslice", "35Gi"), one(claimOf("x", memoryOf("timeslice.nvidia.com", "5500Mi"))), blockerCapacity},
		"a share of whole GPUs": {h100s(2), one(claimOf("x", func(r *resourceapi.ExactDeviceRequest) {
			r.Capacity = &resourceapi.CapacityRequirements{Requests: map[resourceapi.QualifiedName]resource.Quantity{"shares": resource.MustParse("1")}}
		})), blockerCapacity},
		"memory of whole GPUs that are allocated": {h100s(2).taken("gpu-0", "gpu-1"), one(claimOf("x", memoryOf("gpu.nvidia.com", "2Gi"))), blockerInUse},
		"more memory than whole GPUs have":        {h100s(2), one(claimOf("x", memoryOf("gpu.nvidia.com", "100Gi"))), blockerCapacity},
		"most memory of whole GPUs":               {h100s(2).taken("gpu-0", "gpu-1"), one(claimOf("x", memoryOf("gpu.nvidia.com", "41Gi"))), blockerInUse},
		"capacity that there is not": {newMachine().share(), one(claimOf("x", func(r *resourceapi.ExactDeviceRequest) {
			memoryOf("timeslice.nvidia.com", "1Gi")(r)
			r.Capacity.Requests["cores"] = r.Capacity.Requests["memory"]
		})), blockerCapacity},
		"alike":                           {h100s(8), one(alike(claimOf("x", wants(4)), numa)), blockerConstraint},
		"alike, while some are allocated": {h100s(4).taken("gpu-0", "gpu-2"), one(alike(claimOf("x", wants(2)), numa)), blockerConstraint},
		"alike in what is not published":  {h100s(8), one(alike(claimOf("x", wants(2)), driver+"/colour")), blockerConstraint},
		"different":                       {h100s(4), one(different(claimOf("x", wants(3)), numa)), blockerConstraint},
		"requests that fit one by one":    {h100s(4), one(claimOf("x", wants(3), wants(2))), blockerTogether},
		"claims that fit one by one": {h100s(4), []*resourceapi.ResourceClaim{
			claimOf("x", wants(3)), claimOf("y", wants(2))}, blockerTogether},
		"alternatives": {h100s(2), one(firstOf(claimOf("x", wants(4), ofClass("mig.nvidia.com", 1)))), blockerCount},
	}
}

// withSecondPool adds a pool that lacks a slice.
func withSecondPool(m *machine) *machine {
	second := m.offer.slices[0].DeepCopy()
	second.Spec.Pool.Name, second.Spec.Pool.ResourceSliceCount = "other", 2
	m.offer.slices = append(m.offer.slices, second)
	return m
}

func TestDiagnosisNamesTheFirstBlocker(t *testing.T) {
	var said []string
	cases := blockedCases()
	for _, name := range slices.Sorted(maps.Keys(cases)) {
		tc := cases[name]
		// A case that the scheduler accepts would test a text that is never printed. It is not asked without slices or class.
		if tc.machine.node != nil && name != "unknown class" && allocates(t, tc.machine, tc.machine.offer.used, tc.claims) {
			t.Errorf("%s: the scheduler's allocator finds devices", name)
		}
		f := newDiagnoser(classes(), devices.NewSelectors()).diagnose(t.Context(), tc.machine.allocating(t), named(tc.claims))
		if f.Blocker != tc.blocker {
			t.Errorf("%s: blocked by %s, want %s: %s", name, f.Blocker, tc.blocker, f.Text)
		}
		if strings.Contains(f.Text+f.Hint, "\n") {
			t.Errorf("%s: %q is more than one line", name, f.Text)
		}
		said = append(said, fmt.Sprintf("%s (%s)\n  %s\n  %s\n", name, f.Blocker, f.Text, cmp.Or(f.Hint, "-")))
	}
	fixture.Golden(t, "findings.txt", strings.Join(said, "\n"))
}

// No step of the funnel blocks a claim that the scheduler allocates.
func TestFunnelAgreesWithScheduler(t *testing.T) {
	machines := map[string]func() *machine{
		"whole":      func() *machine { return newMachine().gpus(4, h100, "81152Mi") },
		"taken":      func() *machine { return newMachine().gpus(4, h100, "81152Mi").taken("gpu-1", "gpu-3") },
		"tainted":    func() *machine { return newMachine().gpus(4, h100, "81152Mi").taint(2) },
		"partitions": func() *machine { return newMachine().gpus(2, h100, "81152Mi").partitions(3) },
		"cut":        func() *machine { return newMachine().gpus(2, h100, "81152Mi").partitions(3).taken("gpu-0-mig-2") },
		"shares":     func() *machine { return newMachine().share().share().consumed("gpu-0-timeslice", "31Gi") },
		"counted":    func() *machine { return newMachine().countedShare() },
		"in part":    func() *machine { return newMachine().countedShare().consumed("gpu-1-timeslice", "10Gi") },
		"incomplete": func() *machine { return newMachine().gpus(2, h100, "81152Mi").halfPublished() },
	}
	requests := map[string]func(*resourceapi.ExactDeviceRequest){
		"one": wants(1), "two": wants(2), "three": wants(3), "five": wants(5), "all": every,
		"by index": wants(2, `device.attributes["gpu.nvidia.com"].index >= 1`),
		"mig":      ofClass("mig.nvidia.com", 1), "two migs": ofClass("mig.nvidia.com", 2), "three migs": ofClass("mig.nvidia.com", 3),
		"share": ofClass("timeslice.nvidia.com", 1), "two shares": ofClass("timeslice.nvidia.com", 2), "four shares": ofClass("timeslice.nvidia.com", 4),
		"twice a share": ofClass("timeslice.nvidia.com", 1), "twice a large share": memoryOf("timeslice.nvidia.com", "25Gi"),
		"twice a whole": wants(1), "twice three": wants(3), "twice a mig": ofClass("mig.nvidia.com", 1),
		"small share": memoryOf("timeslice.nvidia.com", "100Mi"), "large share": memoryOf("timeslice.nvidia.com", "39500Mi"),
		"too large share": memoryOf("timeslice.nvidia.com", "41Gi"), "memory of a whole": memoryOf("gpu.nvidia.com", "80Gi"),
	}
	agreed := map[bool]int{}
	selectors := devices.NewSelectors()
	for on, build := range machines {
		for what, request := range requests {
			claim := claimOf("x", request)
			if strings.HasPrefix(what, "twice") {
				claim = claimOf("x", request, request)
			}
			m := build()
			d := &diagnosis{diagnoser: newDiagnoser(classes(), selectors), ctx: t.Context(), offer: m.allocating(t), stock: devices.NewStock(m.offer.slices, m.offer.used)}
			finding := d.claim(named(one(claim))[0])
			fits := allocates(t, m, m.offer.used, one(claim))
			if fits != (finding == nil) {
				t.Errorf("%s of %s: the scheduler says %t, the diagnosis %+v", what, on, fits, finding)
			}
			agreed[fits]++
		}
	}
	if agreed[true] < 10 || agreed[false] < 10 {
		t.Errorf("only %v cases: the test shows too little", agreed)
	}
}

// allocates asks the scheduler's allocator with the features of a stock 1.37 cluster.
func allocates(t *testing.T, m *machine, used devices.Use, claims []*resourceapi.ResourceClaim) bool {
	t.Helper()
	features := structured.Features{
		AdminAccess: true, ConsumableCapacity: true, DeviceBindingAndStatus: true,
		DeviceTaints: true, PartitionableDevices: true, PrioritizedList: true,
	}
	allocator, err := structured.NewAllocator(t.Context(), features, used.State(), lister(classes()), m.offer.slices,
		devices.NewSelectors().Compiled())
	if err != nil {
		t.Fatal(err)
	}
	results, err := allocator.Allocate(t.Context(), m.node, claims)
	return err == nil && len(results) == len(claims)
}

// allocating is the machine's offer with the scheduler's allocator.
func (m *machine) allocating(t *testing.T) offer {
	o := m.offer
	o.allocates = func(_ context.Context, unused bool, claims ...*resourceapi.ResourceClaim) bool {
		used := o.used
		if unused {
			used = nil
		}
		return allocates(t, m, used, claims)
	}
	return o
}

type lister []*resourceapi.DeviceClass

func (l lister) List() ([]*resourceapi.DeviceClass, error) { return l, nil }

func (l lister) Get(name string) (*resourceapi.DeviceClass, error) {
	i := slices.IndexFunc(l, func(c *resourceapi.DeviceClass) bool { return c.Name == name })
	if i < 0 {
		return nil, fmt.Errorf("no class %s", name)
	}
	return l[i], nil
}

func TestDistanceOrdersFindings(t *testing.T) {
	cases := blockedCases()
	nearestFirst := []string{"allocated", "tainted", "some pass", "alike", "requests that fit one by one",
		"share that is too large", "round number", "far too little memory", "attribute that no device has", "no device of the class", "no slices"}
	last := -1.0
	for _, name := range nearestFirst {
		tc := cases[name]
		f := newDiagnoser(classes(), devices.NewSelectors()).diagnose(t.Context(), tc.machine.allocating(t), named(tc.claims))
		if f.Distance <= last {
			t.Errorf("%s is at %v, not behind what comes before at %v", name, f.Distance, last)
		}
		last = f.Distance
	}
}
