package model

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// Process is a program that computes on GPUs.
type Process struct {
	PID  int
	Name string
	// VisibleDevices is its CUDA_VISIBLE_DEVICES; nil if that is not set.
	VisibleDevices *string
}

// Contexts are those of one process, on all devices that it sees. What has one is in
// use. Machine.mu guards the mutable fields.
type Contexts struct {
	machine *Machine
	process Process
	places  []place
	open    bool
	ended   chan struct{}
}

// place is a GPU, or a MIG device on it.
type place struct {
	gpu      *gpu
	instance *computeInstance
}

func (p place) uuid() string {
	if p.instance != nil {
		return p.instance.uuid
	}
	return p.gpu.spec.UUID
}

// ContextDevice is a device that a process computes on.
type ContextDevice struct {
	UUID        string
	MemoryBytes uint64
	// ComputeCapability is the major number of CUDA's.
	ComputeCapability int
}

// OpenContexts creates a context of the process on each device that it sees, or on
// none. The error begins with the name of a CUDA error.
func (m *Machine) OpenContexts(p Process) (*Contexts, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	places, err := m.visiblePlaces(p.VisibleDevices)
	if err != nil {
		return nil, err
	}
	for _, at := range places {
		if err := m.admits(at, p.PID); err != nil {
			return nil, err
		}
	}
	c := &Contexts{machine: m, process: p, places: places, open: true, ended: make(chan struct{})}
	m.contexts[c] = struct{}{}
	c.count(1)
	return c, nil
}

// admits reports whether a process may have a context there.
func (m *Machine) admits(at place, pid int) error {
	g := at.gpu
	switch {
	case !g.reachable():
		return fmt.Errorf("CUDA_ERROR_DEVICE_UNAVAILABLE: GPU %d is lost", g.index)
	case g.switched() && m.fabric != FabricCompleted:
		return fmt.Errorf("CUDA_ERROR_SYSTEM_NOT_READY: the fabric manager is not done with GPU %d", g.index)
	case g.computeMode == nvml.COMPUTEMODE_PROHIBITED:
		return fmt.Errorf("CUDA_ERROR_DEVICE_UNAVAILABLE: the compute mode of GPU %d prohibits contexts", g.index)
	case g.computeMode != nvml.COMPUTEMODE_EXCLUSIVE_PROCESS:
		return nil
	}
	for c := range m.contexts {
		if c.process.PID != pid && c.on(func(other place) bool { return other.gpu == g }) {
			return fmt.Errorf("CUDA_ERROR_DEVICE_UNAVAILABLE: GPU %d is in exclusive use by process %d (%s)", g.index, c.process.PID, c.process.Name)
		}
	}
	return nil
}

// visiblePlaces follows CUDA_VISIBLE_DEVICES as CUDA does: an entry that names no
// device hides itself and all that come after it, a process sees one MIG device at
// most, and with that no GPU; of the GPUs on which MIG is enabled it sees none.
func (m *Machine) visiblePlaces(visible *string) ([]place, error) {
	var places []place
	if visible == nil {
		for _, g := range m.gpus {
			if !g.migEnabled() && g.presence != Absent {
				places = append(places, place{gpu: g})
			}
		}
	} else {
		for _, entry := range strings.Split(*visible, ",") {
			at, found := m.find(strings.TrimSpace(entry))
			if !found {
				break
			}
			places = append(places, at)
			if at.instance != nil {
				break
			}
		}
	}
	if len(places) > 0 && places[len(places)-1].instance != nil {
		places = places[len(places)-1:]
	}
	if len(places) == 0 {
		return nil, errors.New("CUDA_ERROR_NO_DEVICE: no GPU and no MIG device is visible to the process")
	}
	return places, nil
}

// find finds a GPU by its index or the first characters of its UUID, or a MIG device
// by its UUID.
func (m *Machine) find(entry string) (place, bool) {
	index, err := strconv.Atoi(entry)
	for _, g := range m.gpus {
		if g.presence == Absent {
			continue
		}
		if g.migEnabled() {
			for _, i := range g.instances.byID {
				for _, c := range i.compute {
					if c.uuid == entry {
						return place{gpu: g, instance: c}, true
					}
				}
			}
			continue
		}
		if err == nil && index == g.index || strings.HasPrefix(entry, "GPU-") && strings.HasPrefix(g.spec.UUID, entry) {
			return place{gpu: g}, true
		}
	}
	return place{}, false
}

// Devices are those of the contexts, in the process's order.
func (c *Contexts) Devices() []ContextDevice {
	var devices []ContextDevice
	for _, at := range c.places {
		major, _ := at.gpu.board.CUDAComputeCapability()
		d := ContextDevice{UUID: at.uuid(), MemoryBytes: at.gpu.board.MemoryBytes(), ComputeCapability: major}
		if at.instance != nil {
			d.MemoryBytes = at.instance.parent.profile.MemoryMiB << 20
		}
		devices = append(devices, d)
	}
	return devices
}

// Ended is closed when the contexts are no more, of whatever cause.
func (c *Contexts) Ended() <-chan struct{} { return c.ended }

// Close ends the contexts, as the end of the process does.
func (c *Contexts) Close() {
	c.machine.mu.Lock()
	defer c.machine.mu.Unlock()
	c.end()
}

// end is called with Machine.mu held.
func (c *Contexts) end() {
	if c.open {
		c.open = false
		delete(c.machine.contexts, c)
		c.count(-1)
		close(c.ended)
	}
}

// count adds to the contexts of each place.
func (c *Contexts) count(by int) {
	for _, at := range c.places {
		if at.instance != nil {
			at.instance.parent.contexts += by
		} else {
			at.gpu.contexts += by
		}
	}
}

func (c *Contexts) on(where func(place) bool) bool { return slices.ContainsFunc(c.places, where) }

// endContexts ends those on the GPU. It is called with Machine.mu held.
func (m *Machine) endContexts(g *gpu) {
	for c := range m.contexts {
		if c.on(func(at place) bool { return at.gpu == g }) {
			c.end()
		}
	}
}

// processes are those with a context where it says, by their IDs.
func (s *Session) processes(where func(place) bool) []nvml.ProcessInfo {
	s.machine.mu.Lock()
	defer s.machine.mu.Unlock()
	list := []nvml.ProcessInfo{}
	for c := range s.machine.contexts {
		for _, at := range c.places {
			if !where(at) {
				continue
			}
			info := nvml.ProcessInfo{Pid: uint32(c.process.PID), GpuInstanceId: WholeGPU, ComputeInstanceId: WholeGPU}
			if at.instance != nil {
				info.GpuInstanceId, info.ComputeInstanceId = uint32(at.instance.parent.id), uint32(at.instance.id)
			}
			list = append(list, info)
		}
	}
	slices.SortFunc(list, func(a, b nvml.ProcessInfo) int { return int(a.Pid) - int(b.Pid) })
	return list
}

// processStates is called with Machine.mu held.
func (m *Machine) processStates(g *gpu) []ProcessState {
	var states []ProcessState
	for c := range m.contexts {
		for _, at := range c.places {
			if at.gpu == g {
				states = append(states, ProcessState{PID: c.process.PID, Name: c.process.Name, Device: at.uuid()})
			}
		}
	}
	slices.SortFunc(states, func(a, b ProcessState) int { return a.PID - b.PID })
	return states
}
