package model

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mica-gpu/mica/pkg/catalog"
)

// ledger is a naive picture of one GPU: a cell for every memory unit, and every
// engine counted anew for every question.
type ledger struct {
	geometry catalog.Geometry
	placed   []entry
}

type entry struct {
	profile catalog.Profile
	start   int
	handle  nvml.GpuInstance
	compute []nvml.ComputeInstance
	// cells are the profiles' sizes of the compute instances, a cell a slice.
	cells []bool
}

func (l *ledger) admits(p catalog.Profile, start int) bool {
	cells := make([]int, l.geometry.MemorySlices)
	var memory uint64
	var used, most [6]int
	count := func(to *[6]int, p catalog.Profile, add func(a, b int) int) {
		for i, n := range []int{p.Multiprocessors, p.CopyEngines, p.Decoders, p.Encoders, p.JPEGEngines, p.OFAEngines} {
			to[i] = add(to[i], n)
		}
	}
	sum := func(a, b int) int { return a + b }
	larger := func(a, b int) int { return max(a, b) }
	var totalMemory uint64
	for _, any := range l.geometry.Profiles {
		count(&most, any, larger)
		totalMemory = max(totalMemory, any.MemoryMiB)
	}
	for _, e := range append(l.placed, entry{profile: p, start: start}) {
		for unit := range e.profile.Size {
			cells[e.start+unit]++
		}
		count(&used, e.profile, sum)
		memory += e.profile.MemoryMiB
	}
	for _, n := range cells {
		if n > 1 {
			return false
		}
	}
	for i := range used {
		if used[i] > most[i] {
			return false
		}
	}
	return memory <= totalMemory
}

// capacity is how many of a profile can be added, by adding them.
func (l *ledger) capacity(p catalog.Profile) int {
	more := ledger{geometry: l.geometry, placed: append([]entry(nil), l.placed...)}
	for _, start := range p.Starts {
		if more.admits(p, start) {
			more.placed = append(more.placed, entry{profile: p, start: start})
		}
	}
	return len(more.placed) - len(l.placed)
}

// TestRandomStreams creates and destroys at random and holds every answer
// against the naive picture.
func TestRandomStreams(t *testing.T) {
	boards := map[string]bool{}
	for _, board := range catalog.Boards() {
		if board.MIG == nil || boards[board.Geometry] {
			continue
		}
		boards[board.Geometry] = true
		t.Run(board.Geometry, func(t *testing.T) {
			t.Parallel()
			for seed := range uint64(20) {
				stream := newStream(t, board, seed)
				for range 150 {
					stream.step()
				}
			}
		})
	}
}

type stream struct {
	t       *testing.T
	rng     *rand.Rand
	machine *Machine
	device  nvml.Device
	ledger  ledger
	// places are where on the GPU each UUID was seen.
	places map[string]string
}

func newStream(t *testing.T, board catalog.Board, seed uint64) *stream {
	m := load(t, fmt.Sprintf(`
name: stream
driverVersion: "580.95.05"
cudaDriverVersion: "13.0"
gpus: [{board: %s, pciBusID: "0000:53:00.0", pciRoot: "pci0000:44", numaNode: 0, minor: 4, mig: {}}]
`, board.Name))
	return &stream{
		t: t, rng: rand.New(rand.NewPCG(seed, 17)), machine: m, device: handle(t, initialised(t, m), 0),
		ledger: ledger{geometry: *board.MIG}, places: map[string]string{},
	}
}

func (s *stream) step() {
	s.t.Helper()
	switch n := s.rng.IntN(10); {
	case n < 5 || len(s.ledger.placed) == 0:
		s.create()
	case n < 8:
		s.createCompute()
	default:
		s.destroy()
	}
	s.compare()
}

func (s *stream) profile() (catalog.Profile, *nvml.GpuInstanceProfileInfo) {
	p := s.ledger.geometry.Profiles[s.rng.IntN(len(s.ledger.geometry.Profiles))]
	return p, &nvml.GpuInstanceProfileInfo{Id: uint32(p.ID), InstanceCount: uint32(p.MaxInstances)}
}

func (s *stream) create() {
	s.t.Helper()
	p, info := s.profile()
	start := p.Starts[s.rng.IntN(len(p.Starts))]
	fits := s.ledger.admits(p, start)
	gi, ret := s.device.CreateGpuInstanceWithPlacement(info, &nvml.GpuInstancePlacement{Start: uint32(start), Size: uint32(p.Size)})
	want := nvml.ERROR_INSUFFICIENT_RESOURCES
	if fits {
		want = nvml.SUCCESS
	}
	if ret != want {
		s.t.Fatalf("creating %s at %d beside %v returned %v, want %v", p.Name, start, s.ledger.placed, ret, want)
	}
	if fits {
		s.ledger.placed = append(s.ledger.placed, entry{profile: p, start: start, handle: gi, cells: make([]bool, p.Slices)})
	}
}

func (s *stream) createCompute() {
	s.t.Helper()
	e := &s.ledger.placed[s.rng.IntN(len(s.ledger.placed))]
	enum := s.rng.IntN(5)
	info, ret := e.handle.GetComputeInstanceProfileInfo(enum, 0)
	if ret == nvml.ERROR_NOT_SUPPORTED {
		return
	}
	size := int(info.SliceCount)
	var at []int
	for n := range info.InstanceCount {
		step := (e.profile.Slices + 1) / int(info.InstanceCount)
		start := int(n) * step
		free := true
		for cell := start; cell < start+size; cell++ {
			free = free && !e.cells[cell]
		}
		if free {
			at = append(at, start)
		}
	}
	ci, ret := e.handle.CreateComputeInstance(&info)
	if len(at) == 0 {
		if ret != nvml.ERROR_INSUFFICIENT_RESOURCES {
			s.t.Fatalf("%d compute slices in %v of %s returned %v", size, e.cells, e.profile.Name, ret)
		}
		return
	}
	if ret != nvml.SUCCESS {
		s.t.Fatalf("%d compute slices in %v of %s returned %v", size, e.cells, e.profile.Name, ret)
	}
	placed, _ := ci.GetInfo()
	for cell := int(placed.Placement.Start); cell < int(placed.Placement.Start)+size; cell++ {
		if e.cells[cell] {
			s.t.Fatalf("%d compute slices were put at %d into %v of %s", size, placed.Placement.Start, e.cells, e.profile.Name)
		}
		e.cells[cell] = true
	}
	uuid, _ := placed.Device.GetUUID()
	parent, _ := e.handle.GetInfo()
	place := fmt.Sprintf("GPU instance %d, compute slice %d", parent.Id, placed.Placement.Start)
	if before := s.places[uuid]; before != "" && before != place {
		s.t.Fatalf("the UUID %s comes a second time, at %s; it was at %s", uuid, place, before)
	}
	s.places[uuid] = place
	e.compute = append(e.compute, ci)
}

func (s *stream) destroy() {
	s.t.Helper()
	n := s.rng.IntN(len(s.ledger.placed))
	e := s.ledger.placed[n]
	if len(e.compute) > 0 {
		if ret := e.handle.Destroy(); ret != nvml.ERROR_IN_USE {
			s.t.Fatalf("destroying %s with compute instances returned %v", e.profile.Name, ret)
		}
	}
	for _, ci := range e.compute {
		if ret := ci.Destroy(); ret != nvml.SUCCESS {
			s.t.Fatalf("destroying a compute instance of %s returned %v", e.profile.Name, ret)
		}
	}
	if ret := e.handle.Destroy(); ret != nvml.SUCCESS {
		s.t.Fatalf("destroying %s returned %v", e.profile.Name, ret)
	}
	s.ledger.placed = append(s.ledger.placed[:n:n], s.ledger.placed[n+1:]...)
}

// compare holds what the machine says it has against the ledger.
func (s *stream) compare() {
	s.t.Helper()
	p, info := s.profile()
	if capacity, ret := s.device.GetGpuInstanceRemainingCapacity(info); ret != nvml.SUCCESS || capacity != s.ledger.capacity(p) {
		s.t.Fatalf("the capacity for %s beside %v is %d (%v), want %d", p.Name, s.ledger.placed, capacity, ret, s.ledger.capacity(p))
	}
	ids, minors, indices, uuids := map[int]bool{}, map[int]bool{}, map[int]bool{}, map[string]bool{}
	compute := 0
	for _, gi := range s.machine.Instances(0) {
		if ids[gi.ID] || minors[gi.Capability] {
			s.t.Fatalf("two instances have ID %d or capability %d", gi.ID, gi.Capability)
		}
		ids[gi.ID], minors[gi.Capability] = true, true
		for _, ci := range gi.ComputeInstances {
			if minors[ci.Capability] || indices[ci.Index] || uuids[ci.UUID] {
				s.t.Fatalf("two MIG devices have capability %d, index %d or the UUID %s", ci.Capability, ci.Index, ci.UUID)
			}
			minors[ci.Capability], indices[ci.Index], uuids[ci.UUID] = true, true, true
			compute++
		}
	}
	want := 0
	for _, e := range s.ledger.placed {
		want += len(e.compute)
	}
	if len(ids) != len(s.ledger.placed) || compute != want {
		s.t.Fatalf("the machine has %d instances and %d MIG devices, want %d and %d", len(ids), compute, len(s.ledger.placed), want)
	}
}
