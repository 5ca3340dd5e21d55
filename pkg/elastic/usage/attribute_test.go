package usage

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

	"github.com/mica-gpu/mica/pkg/devices"
	"github.com/mica-gpu/mica/pkg/elastic/workload"
	"github.com/mica-gpu/mica/test/fixture"
)

const gi = 1 << 30

func reads(utilization, usedGi, totalGi float64) Reading {
	return Reading{Utilization: &utilization, MemoryUsed: ptr.To(usedGi * gi), MemoryTotal: ptr.To(totalGi * gi)}
}

func near(a, b float64) bool { return math.Abs(a-b) < 1e-9 }

func TestReadingsAreAttributedByPart(t *testing.T) {
	type share = map[resourceapi.QualifiedName]resource.Quantity
	sliced := map[string]share{
		"gpu-0":           {},
		"gpu-1":           {},
		"gpu-2-timeslice": amounts("shares=4", "memory=80Gi"),
		"gpu-3-mps":       amounts("cores=100", "memory=80Gi"),
		"gpu-4-mps":       amounts("cores=100"),
		"gpu-5-timeslice": amounts("gpu.nvidia.com/shares=4"),
	}
	readings := map[string]Reading{
		"gpu-0":           reads(0.9, 72, 80),
		"gpu-1":           reads(0.1, 8, 80),
		"gpu-2-timeslice": reads(0.8, 30, 80),
		"gpu-3-mps":       reads(0.6, 40, 80),
		"gpu-4-mps":       reads(0.4, 40, 80),
		"gpu-5-timeslice": reads(0.2, 20, 80),
	}
	quarter := amounts("shares=1", "memory=20Gi")
	for name, test := range map[string]struct {
		// own are the claims of the workload, others those of others.
		own, others         []map[string]share
		utilization, memory float64
		devices             int
	}{
		"none":                {},
		"a device alone":      {own: []map[string]share{{"gpu-0": nil}}, utilization: 0.9, memory: 0.9, devices: 1},
		"a claim of two":      {own: []map[string]share{{"gpu-0": nil, "gpu-1": nil}}, utilization: 0.5, memory: 0.5, devices: 2},
		"two claims of one":   {own: []map[string]share{{"gpu-0": nil}, {"gpu-1": nil}}, utilization: 0.5, memory: 0.5, devices: 2},
		"the only time-slice": {own: []map[string]share{{"gpu-2-timeslice/a": quarter}}, utilization: 0.8, memory: 1, devices: 1},
		"two time-slices of two workloads": {
			own: []map[string]share{{"gpu-2-timeslice/a": quarter}}, others: []map[string]share{{"gpu-2-timeslice/b": quarter}},
			utilization: 0.8, memory: 0.75, devices: 1,
		},
		"two time-slices of one workload": {
			own:         []map[string]share{{"gpu-2-timeslice/a": quarter}, {"gpu-2-timeslice/b": quarter}},
			utilization: 0.8, memory: 0.75, devices: 2,
		},
		"two time-slices of one claim": {
			own:         []map[string]share{{"gpu-2-timeslice/a": quarter, "gpu-2-timeslice/b": quarter}},
			utilization: 0.8, memory: 0.75, devices: 2,
		},
		"a large share and a small one": {
			own:         []map[string]share{{"gpu-2-timeslice/a": amounts("shares=3", "memory=20Gi")}},
			others:      []map[string]share{{"gpu-2-timeslice/b": amounts("shares=1", "memory=60Gi")}},
			utilization: 0.8, memory: 0.375, devices: 1,
		},
		"a share beside a device alone": {
			own:         []map[string]share{{"gpu-0": nil}, {"gpu-2-timeslice/a": quarter}},
			others:      []map[string]share{{"gpu-2-timeslice/b": quarter}},
			utilization: (0.9 + 0.8*0.25) / 1.25, memory: (0.9 + 0.75*0.25) / 1.25, devices: 2,
		},
		"MPS has weights of its own for cores and memory": {
			own:         []map[string]share{{"gpu-1": nil}, {"gpu-3-mps/a": amounts("cores=50", "memory=8Gi")}},
			others:      []map[string]share{{"gpu-3-mps/b": amounts("cores=25", "memory=72Gi")}},
			utilization: (0.1 + 0.6*0.5) / 1.5, memory: (0.1 + 0.5*0.1) / 1.1, devices: 2,
		},
		"MPS without memory": {
			own: []map[string]share{{"gpu-4-mps/a": amounts("cores=25")}}, others: []map[string]share{{"gpu-4-mps/b": amounts("cores=75")}},
			utilization: 0.4, memory: 0.5, devices: 1,
		},
		"names with the driver's": {
			own:         []map[string]share{{"gpu-5-timeslice/a": amounts("gpu.nvidia.com/shares=2")}},
			utilization: 0.2, memory: 0.5, devices: 1,
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newIndexed(t, poolSlice("s", 1, sliced))
			var own []*resourceapi.ResourceClaim
			for i, devices := range test.own {
				own = append(own, holder(fmt.Sprintf("own-%d", i), devices))
				r.add(t, own[i])
			}
			for i, devices := range test.others {
				r.add(t, holder(fmt.Sprintf("other-%d", i), devices))
			}
			got := attribute(holdsOf(t, r, ofClaims(own...), readings))
			if got.Utilization.Err != nil || got.Memory.Err != nil {
				t.Fatalf("got errors: %v, %v", got.Utilization.Err, got.Memory.Err)
			}
			if !near(got.Utilization.Value, test.utilization) || !near(got.Memory.Value, test.memory) || got.Devices != test.devices {
				t.Errorf("got %+v, want utilization %v, memory %v of %d devices", got, test.utilization, test.memory, test.devices)
			}
		})
	}
}

func holdsOf(t *testing.T, r *indexed, state workload.State, readings map[string]Reading) []hold {
	t.Helper()
	var holds []hold
	for _, h := range held(state) {
		h.reading, h.fraction, h.together = readings[h.device.Name], alone, 1
		if isShare(h.device) {
			var err error
			if h.fraction, h.together, err = r.options().cluster().divide(t.Context(), h); err != nil {
				t.Fatal(err)
			}
		}
		holds = append(holds, h)
	}
	return holds
}

// All usage of a device is attributed, and once: however many workloads
// share a device, their parts of its used memory are all of it.
func TestTheUsedMemoryOfASharedDeviceIsThatOfItsSharers(t *testing.T) {
	for seed := range uint64(200) {
		random := rand.New(rand.NewPCG(seed, 1))
		const device = "gpu-0-timeslice"
		r := newIndexed(t, poolSlice("s", 1, map[string]map[resourceapi.QualifiedName]resource.Quantity{device: amounts("shares=128", "memory=80Gi")}))
		workloads := make([][]*resourceapi.ResourceClaim, 1+random.IntN(5))
		for i := range workloads {
			for j := range 1 + random.IntN(3) {
				devices := map[string]map[resourceapi.QualifiedName]resource.Quantity{}
				for k := range 1 + random.IntN(3) {
					devices[fmt.Sprintf("%s/%d", device, k)] = amounts(fmt.Sprintf("shares=%d", 1+random.IntN(3)), fmt.Sprintf("memory=%dMi", 1+random.IntN(1800)))
				}
				claim := holder(fmt.Sprintf("%d-%d", i, j), devices)
				workloads[i] = append(workloads[i], claim)
				r.add(t, claim)
			}
		}
		used := random.Float64() * 80
		sum := 0.0
		for _, claims := range workloads {
			holds := holdsOf(t, r, ofClaims(claims...), map[string]Reading{device: reads(0.5, used, 80)})
			for _, h := range holds {
				sum += h.usedBytes()
			}
			got := attribute(holds)
			if got.Memory.Value < 0 || got.Memory.Value > 1 || !near(got.Utilization.Value, 0.5) {
				t.Fatalf("seed %d: got %+v", seed, got)
			}
		}
		if math.Abs(sum-used*gi) > 1 {
			t.Fatalf("seed %d: %f bytes are attributed of %f", seed, sum, used*gi)
		}
	}
}

// A partition of an A100 reports memory and no utilization.
func TestAFigureThatOneDeviceLacksIsUnknown(t *testing.T) {
	whole := hold{device: workload.Device{Holding: devices.Holding{ID: devices.ID{Name: "gpu-0"}}}, node: "n1", reading: reads(0.5, 40, 80), fraction: alone, together: 1}
	silent := whole
	silent.device.Name = "gpu-1-mig-1g5gb-19-0"
	silent.reading.Utilization = nil
	got := attribute([]hold{whole, silent})
	fixture.Sentence(t, got.Utilization.Err, "device gpu-1-mig-1g5gb-19-0 of node n1 does not report its utilization")
	if got.Memory.Err != nil || !near(got.Memory.Value, 0.5) {
		t.Errorf("memory is %+v", got.Memory)
	}
	for _, lack := range []func(*Reading){func(r *Reading) { r.MemoryUsed = nil }, func(r *Reading) { r.MemoryTotal = nil }} {
		silent := whole
		lack(&silent.reading)
		got := attribute([]hold{whole, silent})
		fixture.Sentence(t, got.Memory.Err, "device gpu-0 of node n1 does not report its memory")
		if got.Utilization.Err != nil || !near(got.Utilization.Value, 0.5) {
			t.Errorf("utilization is %+v", got.Utilization)
		}
	}
}

func TestADeviceCountsOnceForPodsThatShareItsClaim(t *testing.T) {
	claim := holder("c", map[string]map[resourceapi.QualifiedName]resource.Quantity{"gpu-0": nil})
	state := ofClaims(claim, claim, claim)
	if got := held(state); len(got) != 1 {
		t.Errorf("%d devices are held", len(got))
	}
	for i := range state.Pods {
		state.Pods[i].Node = ""
	}
	if got := held(state); len(got) != 0 {
		t.Errorf("pods that are on no node hold %v", got)
	}
}
