package model

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mica-gpu/mica/pkg/catalog"
)

// Machine is a simulated machine: the driver and the GPUs. All sessions share
// it. Its methods may be called from any goroutine.
type Machine struct {
	file File

	// mu guards everything below, the mutable fields of every gpu, and the
	// queues of every event set. Nothing blocks while holding it.
	mu       sync.Mutex
	gpus     []*gpu
	fabric   Fabric
	driver   Driver
	sessions map[*Session]struct{}
	faults   faults
	// slow are the calls that an injected latency keeps waiting.
	slow map[*SlowCall]struct{}
	// calls counts the calls of each function.
	calls    map[string]int
	contexts map[*Contexts]struct{}
	watchers []func(gpu int, instances []InstanceState)
	// driverWatchers are called after each change of the driver.
	driverWatchers []func(now Driver, installed bool)
	// attachments are called for each GPU that is attached or detached.
	attachments []func(gpu int, attached bool)
}

var _ Control = (*Machine)(nil)

// Load builds the machine that the description describes.
func Load(f File) (*Machine, error) {
	if err := f.Validate(); err != nil {
		return nil, fmt.Errorf("machine %q cannot be simulated: %w", f.Name, err)
	}
	// The caller may go on to change what it passed.
	f.GPUs, f.NVSwitches = slices.Clone(f.GPUs), slices.Clone(f.NVSwitches)
	for i := range f.GPUs {
		f.GPUs[i].MIG = f.GPUs[i].MIG.clone()
	}
	m := &Machine{
		file: f, sessions: map[*Session]struct{}{}, slow: map[*SlowCall]struct{}{}, contexts: map[*Contexts]struct{}{},
		driver: f.Habits.Driver.or(Driver{Library: f.DriverVersion, Module: f.DriverVersion}),
		calls:  map[string]int{}, fabric: cmp.Or(f.Habits.Fabric, FabricCompleted),
	}
	for i := range f.GPUs {
		g, err := newGPU(f, i)
		if err != nil {
			return nil, fmt.Errorf("machine %q cannot be simulated: %w", f.Name, err)
		}
		m.gpus = append(m.gpus, g)
	}
	var err error
	if m.faults, err = f.Habits.Latency.faults(); err != nil {
		return nil, fmt.Errorf("machine %q cannot be simulated: %w", f.Name, err)
	}
	return m, nil
}

// File returns the description that the machine was loaded from.
func (m *Machine) File() File { return m.file }

// Library returns a session that sees every GPU, as a process on the host does.
func (m *Machine) Library() nvml.Interface { return m.NewSession() }

// GPUs returns what never changes about the machine's GPUs, in the order of
// their index. The emission of device nodes, /proc and /sys builds on it.
func (m *Machine) GPUs() []GPUInfo {
	infos := make([]GPUInfo, 0, len(m.gpus))
	for _, g := range m.gpus {
		infos = append(infos, GPUInfo{GPU: g.spec, Index: g.index, Address: g.address, Board: g.board, Attached: g.spec.Presence != Absent})
	}
	return infos
}

// GPUInfo is what never changes about a GPU.
type GPUInfo struct {
	// GPU is the description with the UUID filled in.
	GPU
	Index   int
	Address PCIAddress
	Board   catalog.Board
	// Attached says that the driver has the GPU when the machine starts.
	Attached bool
}

// Inject implements Control.
func (m *Machine) Inject(e Event) error {
	if err := m.validateEvent(e); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.deliver(m.gpus[e.GPU], e)
	m.recoverLater(m.gpus[e.GPU], e)
	return nil
}

// deliver is called with Machine.mu held.
func (m *Machine) deliver(g *gpu, e Event) {
	for s := range m.sessions {
		for set := range s.sets {
			set.deliver(g, e)
		}
	}
}

func (m *Machine) validateEvent(e Event) error {
	g, err := m.gpu(e.GPU)
	if err != nil {
		return err
	}
	if e.Type == 0 || e.Type&(e.Type-1) != 0 {
		return fmt.Errorf("event type %#x is not exactly one NVML event type", e.Type)
	}
	if supported := m.supportedEvents(g); e.Type&supported == 0 {
		return fmt.Errorf("GPU %d of machine %q supports events %#x, not %#x", e.GPU, m.file.Name, supported, e.Type)
	}
	return nil
}

// State implements Control.
func (m *Machine) State() (State, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	state := State{
		Machine:           m.file.Name,
		Driver:            m.driver,
		CUDADriverVersion: m.file.CUDADriverVersion,
		Sessions:          len(m.sessions),
		Latencies:         m.faults.latencyStates(),
		Failures:          slices.Clone(m.faults.failures),
		SlowCalls:         m.slowCalls(),
		Calls:             maps.Clone(m.calls),
	}
	if len(m.file.NVSwitches) > 0 {
		state.Fabric = m.fabric
	}
	for _, g := range m.gpus {
		of := g.state()
		of.Processes, of.Clients = m.processStates(g), m.clients(g)
		state.GPUs = append(state.GPUs, of)
	}
	return state, nil
}

// gpu is a GPU that the driver has.
func (m *Machine) gpu(index int) (*gpu, error) {
	g, err := m.slot(index)
	if err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if g.presence == Absent {
		return nil, fmt.Errorf("GPU %d of machine %q is absent; attach it first", index, m.file.Name)
	}
	return g, nil
}

// slot is where a GPU is, or would be.
func (m *Machine) slot(index int) (*gpu, error) {
	if index < 0 || index >= len(m.gpus) {
		return nil, fmt.Errorf("machine %q has no GPU %d; it has %d GPUs, counted from 0", m.file.Name, index, len(m.gpus))
	}
	return m.gpus[index], nil
}
