package slice

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/dynamic-resource-allocation/structured"
	"k8s.io/utils/ptr"

	"github.com/mica-gpu/mica/pkg/catalog"
	"github.com/mica-gpu/mica/pkg/gpu"
	"github.com/mica-gpu/mica/test/fixture"
)

// The scheduler's allocator admits exactly the sets of partitions that geometry
// and engines admit, and a whole GPU beside none. What counters admit stays
// admitted with less, so it is enough that it gives each partition beside each
// set with which it fits, and refuses each that fits beside all parts of a set
// and not beside all of it.
func TestSchedulerAdmitsExactlyWhatFits(t *testing.T) {
	t.Parallel()
	checked := map[string]string{}
	for _, geometry := range catalog.Geometries() {
		t.Run(geometry.Name, func(t *testing.T) {
			g := gpu.GPU{MIG: gpu.MIGDisabled, MIGSwitchable: true, Profiles: geometry.GPUProfiles(), MemoryBytes: 1 << 40}
			signature := consumptions(pool(t, gpu.Node{GPUs: []gpu.GPU{g}}))
			if same, seen := checked[signature]; seen {
				t.Logf("consumes counters exactly as %s", same)
				return
			}
			checked[signature] = geometry.Name
			t.Parallel()
			e := checkExact(t, g, gpu.ByDefault(g))
			t.Logf("%d were given and %d refused", e.given, e.refused)
		})
	}
}

// The same holds for what is left beside instances that an administrator has made.
func TestSchedulerAdmitsExactlyWhatFitsBesideOthers(t *testing.T) {
	t.Parallel()
	geometries := catalog.Geometries()
	for seed := range uint64(25) {
		random := rand.New(rand.NewPCG(seed, 2))
		geometry := geometries[random.IntN(len(geometries))]
		g := gpu.GPU{MIG: gpu.MIGEnabled, MIGSwitchable: random.IntN(2) == 0, Profiles: geometry.GPUProfiles()}
		for range 1 + random.IntN(3) {
			free := g.Partitions()
			if len(free) == 0 {
				break
			}
			g.Instances = append(g.Instances, instanceOf(free[random.IntN(len(free))]))
		}
		if g.OffersWhole() {
			t.Fatalf("seed %d: a GPU with instances is offered whole", seed)
		}
		t.Run(fmt.Sprintf("%s/%d", geometry.Name, seed), func(t *testing.T) {
			t.Parallel()
			checkExact(t, g, gpu.ByDefault(g))
		})
	}
}

// Shares change nothing of what partitions fit together, and each two shapes meet
// in nothing or exclude each other: everything beside an entire GPU, and what
// overlaps, or is the same place for one claim and in shares.
func TestSchedulerAdmitsExactlyWhatFitsInShares(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"h100-80gb", "a30-24gb"} {
		g := boardOf(name)
		all := gpu.Policy{Whole: true, MIG: true, TimeSlicing: &quarters, MPS: &fourClients, SharedProfiles: map[string]gpu.Sharing{}}
		for i, p := range g.Profiles {
			if i%2 == 0 { // the others are for one claim only
				all.SharedProfiles[p.Name] = quarters
			}
		}
		onlyShares := gpu.Policy{MPS: &fourClients, SharedProfiles: all.SharedProfiles}
		noEntire := gpu.Policy{MIG: true, SharedProfiles: map[string]gpu.Sharing{g.Profiles[0].Name: fourClients}}
		for policyName, policy := range map[string]gpu.Policy{"all": all, "only shares": onlyShares, "no entire GPU": noEntire} {
			t.Run(name+"/"+policyName, func(t *testing.T) {
				t.Parallel()
				checkPairs(t, g, policy)
			})
		}
	}
	t.Run("beside partitions in shares", func(t *testing.T) {
		t.Parallel()
		g := boardOf("a30-24gb")
		checkExact(t, g, gpu.Policy{Whole: true, MIG: true, SharedProfiles: map[string]gpu.Sharing{g.Profiles[0].Name: quarters}})
	})
	t.Run("a board that cannot be divided", func(t *testing.T) {
		t.Parallel()
		checkPairs(t, gpu.GPU{MemoryBytes: 24 << 30}, gpu.Policy{Whole: true, TimeSlicing: &quarters, MPS: &fourClients})
	})
}

// boardOf is a GPU of a geometry.
func boardOf(geometry string) gpu.GPU {
	all := catalog.Geometries()
	i := slices.IndexFunc(all, func(g catalog.Geometry) bool { return g.Name == geometry })
	return gpu.GPU{MIG: gpu.MIGDisabled, MIGSwitchable: true, Profiles: all[i].GPUProfiles(), MemoryBytes: 24 << 30}
}

// checkPairs asks for each device beside each other, and beside a share of itself.
func checkPairs(t *testing.T, g gpu.GPU, policy gpu.Policy) {
	t.Helper()
	shapes := gpu.Shapes([]gpu.GPU{g}, func(gpu.GPU) gpu.Policy { return policy })
	e := newExact(t, g, policy)
	for _, a := range shapes {
		e.check(a.Name(), nil, true)
		for _, b := range shapes {
			e.check(b.Name(), []string{a.Name()}, fitTogether(a, b))
		}
	}
	if e.given == 0 || e.refused == 0 {
		t.Errorf("%d were given and %d refused", e.given, e.refused)
	}
}

// fitTogether reports whether two claims can have a device of one GPU each, by the
// rule and not by counters.
func fitTogether(a, b gpu.Shape) bool {
	if a.Name() == b.Name() {
		_, shared := a.(gpu.Share)
		return shared
	}
	p, divided := partition(a)
	q, alsoDivided := partition(b)
	if !divided || !alsoDivided || !p.GPU.FreeResources().Fits(p.Profile, p.Start) {
		return false
	}
	return p.GPU.FreeResources().Take(p.Profile, p.Start).Fits(q.Profile, q.Start)
}

func partition(shape gpu.Shape) (gpu.Partition, bool) {
	if share, shared := shape.(gpu.Share); shared {
		shape = share.Of
	}
	p, is := shape.(gpu.Partition)
	return p, is
}

// An administrator's instance that a claim has for itself is not shared before
// the claim ends, though the policy has changed.
func TestSchedulerKeepsApartTheClaimsOfAnInstance(t *testing.T) {
	g := gpu.GPU{
		MIG:       gpu.MIGEnabled,
		Profiles:  []gpu.Profile{{ID: 1, Name: "1g.1gb", Slices: 1, Starts: []int{0, 1}, Size: 1, MemoryBytes: 1 << 30}},
		Instances: []gpu.Instance{{ProfileID: 1, Size: 1, Devices: []gpu.MIGDevice{{UUID: "MIG", Slices: 1}}}},
	}
	before := gpu.Shapes([]gpu.GPU{g}, gpu.ByDefault)
	after := gpu.Shapes([]gpu.GPU{g}, func(gpu.GPU) gpu.Policy {
		return gpu.Policy{SharedProfiles: map[string]gpu.Sharing{"1g.1gb": quarters}}
	})
	cluster := newClusterOf(Pool(gpu.Node{}, slices.Concat(before[:1], after), Taints{before[0].Name(): {Withdrawn()}}), 1)
	inShares := claimOf(migTimesliceClass, 1, `device.attributes["gpu.nvidia.com"].?uuid.hasValue()`, nil)
	if got := cluster.allocate(t, inShares); len(got) != 1 {
		t.Fatalf("got %q of an instance that no claim has", got)
	}
	cluster.take(before[0].Name())
	if got := cluster.allocate(t, inShares); got != nil {
		t.Errorf("got %q though a claim has %s", got, before[0].Name())
	}
}

// consumptions are what the devices of a pool consume, and of how much.
func consumptions(pool resourceslice.Pool) string {
	var text strings.Builder
	for _, slice := range pool.Slices {
		for _, device := range slice.Devices {
			fmt.Fprintln(&text, device.ConsumesCounters)
		}
		fmt.Fprintln(&text, slice.SharedCounters)
	}
	return text.String()
}

// exact asks the allocator for one device of a GPU beside others.
type exact struct {
	t              *testing.T
	cluster        *cluster
	claims         map[string]*resourceapi.ResourceClaim
	devices        map[string]resourceapi.Device
	given, refused int
}

// place is an attribute that only these tests publish: it selects one device.
const place = "place"

func newExact(t *testing.T, g gpu.GPU, policy gpu.Policy) *exact {
	published := poolUnder(policy, gpu.Node{GPUs: []gpu.GPU{g}})
	e := &exact{t: t, claims: map[string]*resourceapi.ResourceClaim{}, devices: map[string]resourceapi.Device{}}
	for _, slice := range published.Slices {
		for i := range slice.Devices {
			device := &slice.Devices[i]
			device.Attributes = map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{place: {StringValue: ptr.To(device.Name)}}
			e.devices[device.Name] = *device
			e.claims[device.Name] = claimOf(anyClass, 1, fmt.Sprintf("device.attributes[%q].%s == %q", "gpu.nvidia.com", place, device.Name), nil)
		}
	}
	e.cluster = newClusterOf(published, 1)
	return e
}

func (e *exact) check(device string, beside []string, fits bool) {
	e.t.Helper()
	e.cluster.take()
	e.cluster.state.AllocatedSharedDeviceIDs = sets.New[structured.SharedDeviceID]()
	e.cluster.state.AggregatedCapacity = structured.NewConsumedCapacityCollection()
	for _, other := range beside {
		e.hold(other)
	}
	got := e.cluster.allocate(e.t, e.claims[device])
	if given := slices.Equal(got, []string{device}); given != fits {
		e.t.Fatalf("%s beside %v: given %t, fits %t", device, beside, given, fits)
	}
	if fits {
		e.given++
	} else {
		e.refused++
	}
}

// hold gives a device to a claim, of one in shares what is a share by default.
func (e *exact) hold(name string) {
	id := structured.MakeDeviceID(fixture.Driver, nodeName(0), name)
	device := e.devices[name]
	if device.AllowMultipleAllocations == nil {
		e.cluster.state.AllocatedDevices.Insert(id)
		return
	}
	consumed := map[resourceapi.QualifiedName]resource.Quantity{}
	for name, capacity := range device.Capacity {
		consumed[name] = *capacity.RequestPolicy.Default
	}
	e.cluster.state.AllocatedSharedDeviceIDs.Insert(structured.MakeSharedDeviceID(id, ptr.To(types.UID("share"))))
	e.cluster.state.AggregatedCapacity.Insert(structured.NewDeviceConsumedCapacity(id, consumed))
}

func checkExact(t *testing.T, g gpu.GPU, policy gpu.Policy) *exact {
	t.Helper()
	e := newExact(t, g, policy)
	partitions := g.Partitions()
	var extend func(from int, free gpu.Resources, set []int)
	extend = func(from int, free gpu.Resources, set []int) {
		for i, p := range partitions {
			fits := free.Fits(p.Profile, p.Start)
			switch {
			case fits && i >= from:
				e.check(p.Name(), names(partitions, set), true)
				extend(i+1, free.Take(p.Profile, p.Start), append(set[:len(set):len(set)], i))
			case !fits && !slices.Contains(set, i) && fitsBesideParts(g, partitions, set, i):
				e.check(p.Name(), names(partitions, set), false)
			}
		}
	}
	extend(0, g.FreeResources(), nil)
	if g.OffersWhole() {
		whole := gpu.Whole{GPU: g}.Name()
		e.check(whole, nil, true)
		for _, p := range partitions {
			e.check(whole, []string{p.Name()}, false)
			e.check(p.Name(), []string{whole}, false)
		}
	}
	return e
}

func names(partitions []gpu.Partition, set []int) []string {
	var found []string
	for _, i := range set {
		found = append(found, partitions[i].Name())
	}
	return found
}

// fitsBesideParts reports whether a partition fits beside every smaller part of a set.
func fitsBesideParts(g gpu.GPU, partitions []gpu.Partition, set []int, more int) bool {
	for leave := range set {
		free := g.FreeResources()
		for k, i := range set {
			if k != leave {
				free = free.Take(partitions[i].Profile, partitions[i].Start)
			}
		}
		if !free.Fits(partitions[more].Profile, partitions[more].Start) {
			return false
		}
	}
	return true
}

// A claim with admin access gets a GPU that another claim has whole, though the
// scheduler counts it like any other, and not one that is divided: as many as a memory
// slice has parts, whatever quotas count.
func TestSchedulerLetsAdminsLookAtUsedGPUs(t *testing.T) {
	geometry := catalog.Geometries()[0]
	g := gpu.GPU{MIG: gpu.MIGDisabled, MIGSwitchable: true, Profiles: geometry.GPUProfiles(), MemoryBytes: 1 << 40}
	whole := gpu.Whole{GPU: g}.Name()
	e := newExact(t, g, gpu.ByDefault(g))
	e.claims[whole].Spec.Devices.Requests[0].Exactly.AdminAccess = ptr.To(true)
	e.check(whole, nil, true)
	e.check(whole, []string{whole}, true)
	for _, p := range g.Partitions() {
		e.check(whole, []string{p.Name()}, false)
	}
	e.cluster.take(whole)
	for claims, fit := range map[int]bool{31: true, 32: false} {
		looking := slices.Repeat([]*resourceapi.ResourceClaim{e.claims[whole]}, claims)
		results, err := e.cluster.allocator(t).Allocate(t.Context(), e.cluster.nodes[0], looking)
		if err != nil || (len(results) == claims) != fit {
			t.Errorf("%d claims look at once at a GPU that another has: %d results, %v; want that they fit: %t", claims, len(results), err, fit)
		}
	}
}
