package slice

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/utils/ptr"

	"github.com/mica-gpu/mica/pkg/catalog"
	"github.com/mica-gpu/mica/pkg/gpu"
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
			g := gpu.GPU{MIG: gpu.MIGDisabled, MIGSwitchable: true, Profiles: geometry.GPUProfiles()}
			signature := consumptions(pool(t, gpu.Node{GPUs: []gpu.GPU{g}}))
			if same, seen := checked[signature]; seen {
				t.Logf("consumes counters exactly as %s", same)
				return
			}
			checked[signature] = geometry.Name
			t.Parallel()
			e := checkExact(t, g)
			t.Logf("%d were given and %d refused", e.given, e.refused)
		})
	}
}

// The same holds for what is left beside instances that somebody else has made.
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
			p := free[random.IntN(len(free))]
			g.Instances = append(g.Instances, gpu.Instance{
				ProfileID: p.Profile.ID, Start: p.Start, Size: p.Profile.Size,
				Devices: []gpu.MIGDevice{{UUID: p.Name(), Slices: p.Profile.Slices}},
			})
		}
		if g.OffersWhole() {
			t.Fatalf("seed %d: a GPU with instances is offered whole", seed)
		}
		t.Run(fmt.Sprintf("%s/%d", geometry.Name, seed), func(t *testing.T) {
			t.Parallel()
			checkExact(t, g)
		})
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
	given, refused int
}

// place is an attribute that only these tests publish: it selects one device.
const place = "place"

func newExact(t *testing.T, g gpu.GPU) *exact {
	published := pool(t, gpu.Node{GPUs: []gpu.GPU{g}})
	e := &exact{t: t, claims: map[string]*resourceapi.ResourceClaim{}}
	for _, slice := range published.Slices {
		for i := range slice.Devices {
			device := &slice.Devices[i]
			device.Attributes = map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{place: {StringValue: ptr.To(device.Name)}}
			e.claims[device.Name] = claimOf(anyClass, 1, fmt.Sprintf("device.attributes[%q].%s == %q", "gpu.nvidia.com", place, device.Name), nil)
		}
	}
	e.cluster = newClusterOf(published, 1)
	return e
}

func (e *exact) check(device string, beside []string, fits bool) {
	e.t.Helper()
	e.cluster.take(beside...)
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

func checkExact(t *testing.T, g gpu.GPU) *exact {
	t.Helper()
	e := newExact(t, g)
	partitions := g.Partitions()
	var extend func(from int, room gpu.Room, set []int)
	extend = func(from int, room gpu.Room, set []int) {
		for i, p := range partitions {
			fits := room.Fits(p.Profile, p.Start)
			switch {
			case fits && i >= from:
				e.check(p.Name(), names(partitions, set), true)
				extend(i+1, room.Take(p.Profile, p.Start), append(set[:len(set):len(set)], i))
			case !fits && !slices.Contains(set, i) && fitsBesideParts(g, partitions, set, i):
				e.check(p.Name(), names(partitions, set), false)
			}
		}
	}
	extend(0, g.Room(), nil)
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

// fitsBesideParts tells whether a partition fits beside every smaller part of a set.
func fitsBesideParts(g gpu.GPU, partitions []gpu.Partition, set []int, more int) bool {
	for leave := range set {
		room := g.Room()
		for k, i := range set {
			if k != leave {
				room = room.Take(partitions[i].Profile, partitions[i].Start)
			}
		}
		if !room.Fits(partitions[more].Profile, partitions[more].Start) {
			return false
		}
	}
	return true
}

// A claim with admin access gets a GPU that another claim has whole, though the
// scheduler counts it like any other, and not one that is divided.
func TestSchedulerLetsAdminsLookAtUsedGPUs(t *testing.T) {
	geometry := catalog.Geometries()[0]
	g := gpu.GPU{MIG: gpu.MIGDisabled, MIGSwitchable: true, Profiles: geometry.GPUProfiles()}
	whole := gpu.Whole{GPU: g}.Name()
	e := newExact(t, g)
	e.claims[whole].Spec.Devices.Requests[0].Exactly.AdminAccess = ptr.To(true)
	e.check(whole, nil, true)
	e.check(whole, []string{whole}, true)
	for _, p := range g.Partitions() {
		e.check(whole, []string{p.Name()}, false)
	}
}
