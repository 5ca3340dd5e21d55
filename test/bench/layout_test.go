package bench

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/dynamic-resource-allocation/resourceslice"

	"github.com/mica-gpu/mica/pkg/gpu"
	"github.com/mica-gpu/mica/pkg/slice"
	"github.com/mica-gpu/mica/test/fixture"
)

// machine is what every node of the benchmarks is.
const machine = "p5.48xlarge"

// A layout is one way to publish a node. All announce the same devices.
type layout struct {
	name string
	pool func(t testing.TB, node gpu.Node) resourceslice.Pool
}

var layouts = []layout{
	{"ours", ours},
	{"nvidias", nvidias},
	{"ours-all-counters", func(t testing.TB, node gpu.Node) resourceslice.Pool { return withAllCounters(ours(t, node), node) }},
	{"ours-largest-first", func(t testing.TB, node gpu.Node) resourceslice.Pool { return largestFirst(ours(t, node)) }},
	{"ours-by-profile", func(t testing.TB, node gpu.Node) resourceslice.Pool { return byProfile(ours(t, node)) }},
	{"ours-bare", func(t testing.TB, node gpu.Node) resourceslice.Pool { return bare(ours(t, node)) }},
	{"ours-scarce-last", func(t testing.TB, node gpu.Node) resourceslice.Pool { return scarceLast(ours(t, node), 0) }},
	{"ours-spares-last", func(t testing.TB, node gpu.Node) resourceslice.Pool { return scarceLast(ours(t, node), 1) }},
	{"ours-by-profile-largest-first", func(t testing.TB, node gpu.Node) resourceslice.Pool { return byProfile(largestFirst(ours(t, node))) }},
}

func ours(t testing.TB, node gpu.Node) resourceslice.Pool {
	t.Helper()
	return slice.Pool(node, gpu.Shapes(node.GPUs, gpu.ByDefault), nil)
}

// nvidias is the layout of NVIDIA's driver with dynamic MIG (partitions.go of
// dra-driver-nvidia-gpu): counters for everything, in a slice that comes first,
// then a slice a GPU with the whole GPU and its partitions as NVML lists them.
func nvidias(t testing.TB, node gpu.Node) resourceslice.Pool {
	t.Helper()
	pool := withAllCounters(ours(t, node), node)
	whole, rest := pool.Slices[0], pool.Slices[1:]
	counters := rest[len(rest)-1]
	grouped := resourceslice.Pool{Slices: []resourceslice.Slice{counters}}
	for i, g := range gpu.SortByLocality(node.GPUs) {
		devices := slices.Concat([]resourceapi.Device{whole.Devices[i]}, rest[i].Devices)
		listed := map[string]int{}
		for position, p := range g.Profiles {
			for _, start := range p.Starts {
				listed[gpu.Partition{GPU: g, Profile: p, Start: start}.Name()] = 1 + position*16 + start
			}
		}
		slices.SortFunc(devices, func(a, b resourceapi.Device) int { return cmp.Compare(listed[a.Name], listed[b.Name]) })
		grouped.Slices = append(grouped.Slices, resourceslice.Slice{Devices: devices})
	}
	return grouped
}

// withAllCounters counts what never decides as well.
func withAllCounters(pool resourceslice.Pool, node gpu.Node) resourceslice.Pool {
	uses := map[string]map[string]resourceapi.Counter{}
	var sets []resourceapi.CounterSet
	for _, g := range gpu.SortByLocality(node.GPUs) {
		all := map[string]resourceapi.Counter{}
		for _, p := range g.Profiles {
			for _, start := range p.Starts {
				used := amounts(p)
				for i := start; i < start+p.Size; i++ {
					used[fmt.Sprint("memory-slice-", i)] = pieces(1)
				}
				uses[gpu.Partition{GPU: g, Profile: p, Start: start}.Name()] = used
				for name, counter := range used {
					if have, known := all[name]; !known || have.Value.Cmp(counter.Value) < 0 {
						all[name] = counter
					}
				}
			}
		}
		uses[gpu.Whole{GPU: g}.Name()] = all
		sets = append(sets, resourceapi.CounterSet{Name: fmt.Sprintf("gpu-%d-counter-set", g.Minor), Counters: all})
	}
	counted := resourceslice.Pool{}
	for _, s := range pool.Slices {
		if len(s.Devices) == 0 {
			continue
		}
		devices := slices.Clone(s.Devices)
		for i := range devices {
			devices[i].ConsumesCounters = []resourceapi.DeviceCounterConsumption{{
				CounterSet: devices[i].ConsumesCounters[0].CounterSet,
				Counters:   uses[devices[i].Name],
			}}
		}
		counted.Slices = append(counted.Slices, resourceslice.Slice{Devices: devices})
	}
	counted.Slices = append(counted.Slices, resourceslice.Slice{SharedCounters: sets})
	return counted
}

func amounts(p gpu.Profile) map[string]resourceapi.Counter {
	return map[string]resourceapi.Counter{
		"memory":          {Value: *resource.NewQuantity(int64(p.MemoryBytes), resource.BinarySI)},
		"multiprocessors": pieces(p.Multiprocessors),
		"copy-engines":    pieces(p.CopyEngines),
		"decoders":        pieces(p.Decoders),
		"encoders":        pieces(p.Encoders),
		"jpeg-engines":    pieces(p.JPEGEngines),
		"ofa-engines":     pieces(p.OFAEngines),
	}
}

func pieces(n int) resourceapi.Counter {
	return resourceapi.Counter{Value: *resource.NewQuantity(int64(n), resource.DecimalSI)}
}

// largestFirst tries large profiles before small ones, placements as before.
func largestFirst(pool resourceslice.Pool) resourceslice.Pool {
	reordered := resourceslice.Pool{Slices: slices.Clone(pool.Slices)}
	for i := range reordered.Slices[1:] {
		devices := slices.Clone(reordered.Slices[i+1].Devices)
		slices.SortStableFunc(devices, func(a, b resourceapi.Device) int { return cmp.Compare(profileOf(b), profileOf(a)) })
		reordered.Slices[i+1].Devices = devices
	}
	return reordered
}

// byProfile tries a profile on every GPU before the next profile.
func byProfile(pool resourceslice.Pool) resourceslice.Pool {
	whole, counters := pool.Slices[0], pool.Slices[len(pool.Slices)-1]
	var devices []resourceapi.Device
	var order []string
	for _, s := range pool.Slices[1 : len(pool.Slices)-1] {
		for _, device := range s.Devices {
			if !slices.Contains(order, profileOf(device)) {
				order = append(order, profileOf(device))
			}
			devices = append(devices, device)
		}
	}
	slices.SortStableFunc(devices, func(a, b resourceapi.Device) int {
		return cmp.Compare(slices.Index(order, profileOf(a)), slices.Index(order, profileOf(b)))
	})
	regrouped := resourceslice.Pool{Slices: []resourceslice.Slice{whole}}
	for chunk := range slices.Chunk(devices, resourceapi.ResourceSliceMaxDevicesWithAdvancedFeatures) {
		regrouped.Slices = append(regrouped.Slices, resourceslice.Slice{Devices: chunk})
	}
	regrouped.Slices = append(regrouped.Slices, counters)
	return regrouped
}

// selected are the attributes that the claims of the benchmarks select by.
var selected = []resourceapi.QualifiedName{gpu.AttributeType, gpu.AttributeProfile, gpu.AttributeProductName}

// bare has no attribute that no claim here selects by, and no capacity.
func bare(pool resourceslice.Pool) resourceslice.Pool {
	without := resourceslice.Pool{Slices: slices.Clone(pool.Slices)}
	for i := range without.Slices {
		devices := slices.Clone(without.Slices[i].Devices)
		for j := range devices {
			attributes := maps.Clone(devices[j].Attributes)
			maps.DeleteFunc(attributes, func(name resourceapi.QualifiedName, _ resourceapi.DeviceAttribute) bool {
				return !slices.Contains(selected, name)
			})
			devices[j].Attributes, devices[j].Capacity = attributes, nil
		}
		without.Slices[i].Devices = devices
	}
	return without
}

// scarceLast tries profiles with one partition per GPU, wherever it is, after all others of
// the node, but for the first placements on each GPU.
func scarceLast(pool resourceslice.Pool, first int) resourceslice.Pool {
	counters := pool.Slices[len(pool.Slices)-1]
	reordered := resourceslice.Pool{Slices: []resourceslice.Slice{pool.Slices[0]}}
	var last []resourceapi.Device
	for _, s := range pool.Slices[1 : len(pool.Slices)-1] {
		var early []resourceapi.Device
		scarce := 0
		for _, device := range s.Devices {
			if !strings.Contains(profileOf(device), "+") {
				early = append(early, device)
			} else if scarce++; scarce <= first {
				early = append(early, device)
			} else {
				last = append(last, device)
			}
		}
		reordered.Slices = append(reordered.Slices, resourceslice.Slice{Devices: early})
	}
	reordered.Slices = append(reordered.Slices, resourceslice.Slice{Devices: last}, counters)
	return reordered
}

func profileOf(device resourceapi.Device) string { return *device.Attributes["profile"].StringValue }

// Every layout announces the same devices, or it would be no comparison.
func TestLayoutsAnnounceTheSameDevices(t *testing.T) {
	node := fixture.Node(t, machine)
	want := announced(ours(t, node))
	for _, l := range layouts {
		if got := announced(l.pool(t, node)); got != want {
			t.Errorf("layout %s announces\n%s\nwant\n%s", l.name, got, want)
		}
	}
}

func announced(pool resourceslice.Pool) string {
	var names []string
	for _, s := range pool.Slices {
		for _, device := range s.Devices {
			names = append(names, device.Name)
		}
	}
	slices.Sort(names)
	return strings.Join(names, "\n")
}
