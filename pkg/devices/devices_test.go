package devices

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/structured"
	"k8s.io/utils/ptr"
)

// published is a slice of a pool that is to have so many slices, as driver/pool.
func published(name, pool string, generation, announced int64, devices ...resourceapi.Device) *resourceapi.ResourceSlice {
	driver, pool, _ := strings.Cut(pool, "/")
	return &resourceapi.ResourceSlice{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: resourceapi.ResourceSliceSpec{
			Driver: driver, NodeName: ptr.To("node"), Devices: devices,
			Pool: resourceapi.ResourcePool{Name: pool, Generation: generation, ResourceSliceCount: announced},
		},
	}
}

func device(name string) resourceapi.Device { return resourceapi.Device{Name: name} }

func TestOfAPoolTheNewestGenerationCounts(t *testing.T) {
	foreign := published("foreign", "a/p", 9, 1)
	foreign.Spec.NodeName = ptr.To("other")
	network := published("network", "a/p", 9, 1)
	network.Spec.NodeName = nil
	var got []string
	for _, p := range OfNode("node", []*resourceapi.ResourceSlice{
		published("old", "a/p", 1, 1), published("2", "b/q", 4, 2), published("new-2", "a/p", 2, 3), foreign, network,
		published("new-1", "a/p", 2, 3), published("older", "a/p", 1, 1), published("1", "b/q", 4, 2), published("0", "b/p", 0, 1),
	}) {
		var names []string
		for _, slice := range p.Slices {
			names = append(names, slice.Name)
		}
		got = append(got, fmt.Sprintf("%s/%s: %s of %d, complete %t", p.ID.Driver, p.ID.Name, strings.Join(names, " "), p.Announced(), p.Complete()))
	}
	want := []string{"a/p: new-1 new-2 of 3, complete false", "b/p: 0 of 1, complete true", "b/q: 1 2 of 2, complete true"}
	if !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}

func TestADeviceIsAsItWasPublishedLast(t *testing.T) {
	with := func(name, memory string) resourceapi.Device {
		d := device(name)
		d.Capacity = map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{"memory": {Value: resource.MustParse(memory)}}
		return d
	}
	pool := []resourceapi.ResourceSlice{
		*published("a", "d/p", 2, 2, with("gpu-0", "2Gi")), *published("b", "d/p", 1, 2, with("gpu-0", "1Gi"), with("gpu-1", "1Gi")),
	}
	for name, want := range map[string]string{"gpu-0": "2Gi", "gpu-1": "1Gi", "gpu-2": ""} {
		got := ""
		if d := Last(pool, name); d != nil {
			value := d.Capacity["memory"].Value
			got = value.String()
		}
		if got != want {
			t.Errorf("%s has %q, want %q", name, got, want)
		}
	}
}

func result(device string, change func(*resourceapi.DeviceRequestAllocationResult)) resourceapi.DeviceRequestAllocationResult {
	r := resourceapi.DeviceRequestAllocationResult{Driver: "d", Pool: "p", Device: device}
	if change != nil {
		change(&r)
	}
	return r
}

// held is the holding of the only result of an allocation.
func held(r resourceapi.DeviceRequestAllocationResult) Holding {
	for h := range HoldingsWithAdmin(&resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{Results: []resourceapi.DeviceRequestAllocationResult{r}}}) {
		return h
	}
	return Holding{}
}

func share(memory string) func(*resourceapi.DeviceRequestAllocationResult) {
	return func(r *resourceapi.DeviceRequestAllocationResult) {
		r.ShareID = ptr.To(types.UID("share-" + memory))
		r.ConsumedCapacity = map[resourceapi.QualifiedName]resource.Quantity{"memory": resource.MustParse(memory)}
	}
}

func TestUseCountsWhatClaimsHave(t *testing.T) {
	admin := func(r *resourceapi.DeviceRequestAllocationResult) { r.AdminAccess = ptr.To(true) }
	claim := &resourceapi.ResourceClaim{}
	for range Holdings(claim.Status.Allocation) {
		t.Error("a claim that is not allocated has a result")
	}
	claim.Status.Allocation = &resourceapi.AllocationResult{}
	claim.Status.Allocation.Devices.Results = []resourceapi.DeviceRequestAllocationResult{
		result("whole", nil), result("admin", admin), result("shared", share("1Gi")), result("shared", share("2Gi")),
		result("bare", func(r *resourceapi.DeviceRequestAllocationResult) { r.ShareID = ptr.To(types.UID("x")) }),
	}
	used := Use{}
	for h := range Holdings(claim.Status.Allocation) {
		used.Add(h)
	}
	before := used.Clone()
	used.Add(held(result("shared", share("4Gi"))))
	for _, tc := range []struct {
		used   Use
		memory string
	}{{before, "3Gi"}, {used, "7Gi"}} {
		id := func(name string) ID { return ID{PoolID{"d", "p"}, name} }
		memory := tc.used[id("shared")].Consumed["memory"]
		if len(tc.used) != 3 || !tc.used[id("whole")].Whole || tc.used[id("whole")].Shared || tc.used[id("shared")].Whole ||
			!tc.used[id("shared")].Shared || memory.String() != tc.memory || !tc.used[id("bare")].Shared {
			t.Errorf("used is %+v, want %s", tc.used, tc.memory)
		}
		state := tc.used.State()
		if len(state.AllocatedDevices) != 1 || len(state.AllocatedSharedDeviceIDs) != 2 || len(state.AggregatedCapacity) != 1 {
			t.Errorf("the allocator is told %+v", state)
		}
	}
}

// A share counts once, whether its allocation and the slice name the capacity with the driver's domain or not: for
// Crowded, and for the scheduler's allocator. A driver may drop its domain while claims hold shares, and never adds it.
func TestSharesCountUnderEitherName(t *testing.T) {
	named := func(name resourceapi.QualifiedName) Holding {
		r := result("shared", share("2Gi"))
		r.ConsumedCapacity = map[resourceapi.QualifiedName]resource.Quantity{name: resource.MustParse("2Gi")}
		return held(r)
	}
	for slice, allocated := range map[resourceapi.QualifiedName][]resourceapi.QualifiedName{
		"memory": {"memory", "d/memory"}, "d/memory": {"d/memory", "d/memory"}, "e/memory": {"e/memory", "e/memory"},
	} {
		t.Run(string(slice), func(t *testing.T) {
			d := device("shared")
			d.AllowMultipleAllocations = ptr.To(true)
			d.Capacity = map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{slice: {Value: resource.MustParse("6Gi")}}
			pool := []*resourceapi.ResourceSlice{published("s", "d/p", 1, 1, d)}
			used := Use{}
			for _, name := range allocated {
				used.Add(named(name))
			}
			stock := NewStock(pool, used)
			for amount, fits := range map[string]bool{"2Gi": true, "3Gi": false} {
				asked := &resourceapi.CapacityRequirements{Requests: map[resourceapi.QualifiedName]resource.Quantity{slice: resource.MustParse(amount)}}
				if squeeze := stock.Crowded(stock.Devices[0], asked); (squeeze == nil) != fits {
					t.Errorf("beside 4 of 6 Gi, for %s it is short of %+v", amount, squeeze)
				}
				claim := &resourceapi.ResourceClaim{}
				claim.Spec.Devices.Requests = []resourceapi.DeviceRequest{{Name: "r", Exactly: &resourceapi.ExactDeviceRequest{
					DeviceClassName: "any", AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: 1, Capacity: asked,
				}}}
				allocator, err := structured.NewAllocator(t.Context(), structured.Features{ConsumableCapacity: true}, used.State(), anyClass{}, pool, NewSelectors().Compiled())
				if err != nil {
					t.Fatal(err)
				}
				got, err := allocator.Allocate(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node"}}, []*resourceapi.ResourceClaim{claim})
				if err != nil || (len(got) > 0) != fits {
					t.Errorf("beside 4 of 6 Gi, the allocator gives %s: %v, %v", amount, got, err)
				}
			}
		})
	}
}

// anyClass is a class of all devices.
type anyClass struct{}

func (anyClass) List() ([]*resourceapi.DeviceClass, error) { return nil, nil }
func (anyClass) Get(string) (*resourceapi.DeviceClass, error) {
	return &resourceapi.DeviceClass{}, nil
}

// cut is a pool of a GPU that is offered whole and in two halves, and of one in shares.
func cut() []*resourceapi.ResourceSlice {
	takes := func(name, amount string) resourceapi.Device {
		d := device(name)
		d.ConsumesCounters = []resourceapi.DeviceCounterConsumption{{
			CounterSet: "set", Counters: map[string]resourceapi.Counter{"slices": {Value: resource.MustParse(amount)}, "units": {Value: resource.MustParse(amount)}},
		}}
		return d
	}
	shared := takes("shared", "1")
	shared.AllowMultipleAllocations = ptr.To(true)
	shared.Capacity = map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{"memory": {Value: resource.MustParse("4Gi")}}
	counters := published("counters", "d/p", 1, 2)
	counters.Spec.SharedCounters = []resourceapi.CounterSet{{Name: "set", Counters: map[string]resourceapi.Counter{"slices": {Value: resource.MustParse("2")}, "units": {Value: resource.MustParse("2")}}}}
	return []*resourceapi.ResourceSlice{
		counters, published("devices", "d/p", 1, 2, takes("whole", "2"), takes("half", "1"), shared),
		published("half there", "d/q", 1, 2, device("unseen")),
	}
}

func TestAStockKnowsWhatIsLeft(t *testing.T) {
	fresh := NewStock(cut(), nil)
	if len(fresh.Devices) != 3 || fresh.Incomplete() == nil || fresh.Incomplete().ID.Name != "q" {
		t.Fatalf("there are %d devices, and what is not complete is %v", len(fresh.Devices), fresh.Incomplete())
	}
	whole, half, shared := fresh.Devices[0], fresh.Devices[1], fresh.Devices[2]
	asks := func(memory string) *resourceapi.CapacityRequirements {
		return &resourceapi.CapacityRequirements{Requests: map[resourceapi.QualifiedName]resource.Quantity{"memory": resource.MustParse(memory)}}
	}
	left := func(s *Stock) string { return s.Crowded(shared, asks("99Gi")).Left.String() }

	used := Use{}
	used.Add(held(result("shared", share("1Gi"))))
	used.Add(held(result("shared", share("1Gi"))))
	s := NewStock(cut(), used)
	if short := s.Short(whole); short == nil || short.Counter != "slices" || short.Left.String() != "1" || short.Need.String() != "2" {
		t.Errorf("the whole GPU is short of %+v", short)
	}
	if s.Short(half) != nil || s.Short(shared) != nil || left(s) != "2Gi" || s.Taken(shared) {
		t.Errorf("half is short of %+v, the share of %+v, and has %s left", s.Short(half), s.Short(shared), left(s))
	}
	used.Add(held(result("half", nil)))
	if s = NewStock(cut(), used); !s.Taken(half) || s.Short(shared) != nil {
		t.Error("a share of a device that others share needs no counters")
	}
	if s.Crowded(shared, asks("2Gi")) != nil || s.Crowded(shared, nil) == nil || s.Crowded(half, nil) != nil {
		t.Error("a share with 2Gi left gives 2Gi, and not all of it")
	}
	used = Use{}
	used.Add(held(result("shared", share("3Gi"))))
	if s = NewStock(cut(), used); s.Short(whole) == nil || s.Short(half) != nil || left(s) != "1Gi" {
		t.Errorf("of a share in use %s is left, and the whole GPU is short of %v", left(s), s.Short(whole))
	}
	used = Use{}
	used.Add(held(result("whole", nil)))
	if s = NewStock(cut(), used); !s.Taken(whole) || s.Short(half) == nil || s.Short(shared) == nil {
		t.Error("of a GPU that is taken whole something is left")
	}
}

func TestFieldsMayLeaveTheDriversDomainOut(t *testing.T) {
	d := &Device{
		Device: &resourceapi.Device{
			Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
				"bare": {StringValue: ptr.To("a")}, "d/own": {StringValue: ptr.To("b")}, "other/far": {StringValue: ptr.To("c")},
			},
			Capacity: map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{"memory": {Value: resource.MustParse("1")}},
		},
		ID: ID{Pool: PoolID{Driver: "d"}},
	}
	for f, want := range map[Field]string{
		{SectionAttributes, "d", "bare"}: "a", {SectionAttributes, "d", "own"}: "b", {SectionAttributes, "other", "far"}: "c",
		{SectionAttributes, "other", "bare"}: "", {SectionAttributes, "d", "far"}: "", {SectionCapacity, "d", "bare"}: "",
	} {
		got := ""
		if a := d.AttributeAt(f); a != nil {
			got = *a.StringValue
		}
		if got != want || d.Lacks(f) != (want == "") {
			t.Errorf("%v is %q, want %q", f, got, want)
		}
	}
	if d.CapacityAt(Field{SectionCapacity, "d", "memory"}) == nil || d.Lacks(Field{Section: SectionDriver}) {
		t.Error("the device lacks what it has")
	}
}
