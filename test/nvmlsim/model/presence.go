package model

import (
	"fmt"
	"slices"
)

// Presence reports whether a GPU can be reached. The zero value is present.
type Presence string

// The ways in which a GPU can be there, or not.
const (
	Present Presence = "present"
	// Lost is a GPU that has fallen off the bus: NVML counts it, and every call on it
	// answers GPU_IS_LOST (NVML_ERROR_GPU_IS_LOST in nvml.h).
	Lost Presence = "lost"
	// Absent is a GPU that the driver does not have, or not yet. NVML does not count
	// it: the enumeration of a process that runs changes as GPUs come and go, and a
	// handle of one that went is worth nothing (nvmlDeviceDiscoverGpus and
	// nvmlDeviceRemoveGpu_v2 in nvml.h). That calls on such a handle answer GPU_IS_LOST
	// is a guess.
	Absent Presence = "absent"
)

func (p Presence) validate() error {
	if p == "" || p == Present || p == Lost || p == Absent {
		return nil
	}
	return fmt.Errorf("presence %q; it is %s, %s or %s", p, Present, Lost, Absent)
}

// reachable reports whether calls on the GPU can succeed. It is called with Machine.mu held.
func (g *gpu) reachable() bool { return g.presence == Present }

// Lose implements Control.
func (m *Machine) Lose(gpu int) error { return m.setPresence(gpu, Lost, Present) }

// Return implements Control.
func (m *Machine) Return(gpu int) error { return m.setPresence(gpu, Present, Lost) }

// Attach implements Control.
func (m *Machine) Attach(gpu int) error { return m.setPresence(gpu, Present, Absent) }

// Detach implements Control.
func (m *Machine) Detach(gpu int) error { return m.setPresence(gpu, Absent, Present, Lost) }

func (m *Machine) setPresence(index int, want Presence, from ...Presence) error {
	g, err := m.slot(index)
	if err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case !slices.Contains(from, g.presence):
		return fmt.Errorf("GPU %d of machine %q is %s, so that it cannot become %s", index, m.file.Name, g.presence, want)
	case want == Absent && (g.busy() || m.held(g, nil)):
		return fmt.Errorf("GPU %d of machine %q is in use and cannot be detached: end its processes, MIG instances and clients of NVML", index, m.file.Name)
	}
	was := g.presence
	g.presence = want
	if want != Present {
		m.endContexts(g)
	}
	for s := range m.sessions {
		for set := range s.sets {
			set.wake()
		}
	}
	if (was == Absent) != (want == Absent) {
		for _, changed := range m.attachments {
			changed(index, want != Absent)
		}
	}
	return nil
}

// WatchAttachments calls changed when the driver gets or loses a GPU, before Attach or
// Detach returns. It must not call the machine's methods.
func (m *Machine) WatchAttachments(changed func(gpu int, attached bool)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.attachments = append(m.attachments, changed)
}
