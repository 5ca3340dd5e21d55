package model

import (
	"slices"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// Session is one client of a machine: a process that loaded the library. It has
// its own count of initialisations, its own handles and its own event sets;
// everything else it shares with the other sessions of the machine.
type Session struct {
	nvml.Interface // panics when a function that is not modelled is called
	machine        *Machine
	// devices are the handles of all GPUs that the process may see, those that are
	// absent too.
	devices []*device
	// confined is set for a process that sees only some of the machine; then
	// capabilities are the minors of the capability devices that it has.
	confined     bool
	capabilities map[int]bool
	// unprivileged is set for a process that is not root's.
	unprivileged bool
	// library is the version of the driver that the process's library is of, if known.
	library string

	// Machine.mu guards the fields below.
	inits  int
	opened opened
	sets   map[*eventSet]struct{}
	closed chan struct{}
}

var _ nvml.Interface = (*Session)(nil)

// SessionOption restricts what a session sees.
type SessionOption func(*Session)

// VisibleMinors restricts a session to the GPUs with these minor numbers, as
// NVML restricts itself to the /dev/nvidia<minor> that a container was given. Of
// MIG devices such a session sees those of VisibleCapabilities.
func VisibleMinors(minors ...int) SessionOption {
	return func(s *Session) {
		s.confined = true
		s.devices = slices.DeleteFunc(s.devices, func(d *device) bool {
			return !slices.Contains(minors, d.gpu.spec.Minor)
		})
	}
}

// VisibleCapabilities lets a session with VisibleMinors use the MIG instances
// whose capability devices, /dev/nvidia-caps/nvidia-cap<minor>, it was given:
// a MIG device needs that of its GPU instance and that of its compute instance.
func VisibleCapabilities(minors ...int) SessionOption {
	return func(s *Session) {
		for _, minor := range minors {
			s.capabilities[minor] = true
		}
	}
}

// Unprivileged makes a session that of a process which is not root's: it may look
// at everything and set no mode of a GPU.
func Unprivileged() SessionOption { return func(s *Session) { s.unprivileged = true } }

// NewSession connects a client, which sees every GPU unless an option says
// otherwise. Close it when the client is gone.
func (m *Machine) NewSession(options ...SessionOption) *Session {
	s := &Session{machine: m, capabilities: map[int]bool{}, sets: map[*eventSet]struct{}{}, closed: make(chan struct{})}
	for _, g := range m.gpus {
		s.devices = append(s.devices, newDevice(s, g))
	}
	for _, option := range options {
		option(s)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.sessions[s] = struct{}{}
	return s
}

// Close ends the session as the death of its process does: whatever waits in it
// is woken, its event sets are freed, and every later call answers UNINITIALIZED.
// Closing twice does nothing more.
func (s *Session) Close() {
	m := s.machine
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, open := m.sessions[s]; !open {
		return
	}
	delete(m.sessions, s)
	close(s.closed)
	s.inits = 0
	s.opened = opened{}
	s.freeSets()
}

// freeSets is called with Machine.mu held.
func (s *Session) freeSets() {
	for set := range s.sets {
		set.free()
	}
}

// enter begins every call of the library: it refuses a session that is not
// initialised, waits for the function's latency, and returns an injected failure
// or that the GPU is lost. gpu is nil for functions that take no GPU.
func (s *Session) enter(function string, g *gpu) nvml.Return {
	m := s.machine
	m.mu.Lock()
	defer m.mu.Unlock()
	m.calls[function]++
	if s.inits == 0 {
		return nvml.ERROR_UNINITIALIZED
	}
	if s.lag(function, g, false); s.inits == 0 {
		return nvml.ERROR_UNINITIALIZED
	}
	if ret := m.faults.failure(function, g, false); ret != nvml.SUCCESS {
		return ret
	}
	if g != nil && !g.reachable() {
		return nvml.ERROR_GPU_IS_LOST
	}
	return nvml.SUCCESS
}

// lag waits for the latency of function, before its effect or after it, for the end of a stall, or until
// the session is closed. It is called with Machine.mu held and releases it meanwhile.
func (s *Session) lag(function string, g *gpu, after bool) {
	m := s.machine
	latency := m.faults.latency(function, after)
	if !after {
		latency = max(latency, time.Until(m.faults.stalled))
	}
	if latency <= 0 {
		return
	}
	call := &SlowCall{Function: function, After: after}
	if g != nil {
		call.GPU = &g.index
	}
	m.slow[call] = struct{}{}
	defer delete(m.slow, call)
	m.mu.Unlock()
	defer m.mu.Lock()
	timer := time.NewTimer(latency)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-s.closed:
	}
}

// Init implements nvml.Interface.
func (s *Session) Init() nvml.Return { return s.init("nvmlInit_v2") }

func (s *Session) init(function string) nvml.Return {
	m := s.machine
	m.mu.Lock()
	defer m.mu.Unlock()
	m.calls[function]++
	s.lag(function, nil, false)
	if _, open := m.sessions[s]; !open {
		return nvml.ERROR_DRIVER_NOT_LOADED
	}
	if ret := m.faults.failure(function, nil, false); ret != nvml.SUCCESS {
		return ret
	}
	if ret := s.meetsModule(); ret != nvml.SUCCESS {
		return ret
	}
	if m.file.Habits.DeviceNodes == NodesOnOpen && s.unprivileged && !s.confined {
		return nvml.ERROR_DRIVER_NOT_LOADED
	}
	s.inits++
	return nvml.SUCCESS
}

// Shutdown implements nvml.Interface. The call that undoes the first
// initialisation frees the session's event sets and wakes those who wait on them.
func (s *Session) Shutdown() nvml.Return {
	if ret := s.enter("nvmlShutdown", nil); ret != nvml.SUCCESS {
		return ret
	}
	s.machine.mu.Lock()
	defer s.machine.mu.Unlock()
	if s.inits == 0 {
		return nvml.ERROR_UNINITIALIZED
	}
	s.inits--
	if s.inits == 0 {
		s.freeSets()
		s.opened = opened{}
	}
	return nvml.SUCCESS
}

// ErrorString implements nvml.Interface and needs no initialisation.
func (s *Session) ErrorString(ret nvml.Return) string { return ret.Error() }

// refuser begins the calls on a handle.
type refuser struct {
	session *Session
	gpu     *gpu
	// target is the object behind the handle; nil if it cannot go.
	target *existence
}

// enter begins a call on the handle, which is invalid once its target is gone.
func (r refuser) enter(function string) nvml.Return {
	if ret := r.session.enter(function, r.gpu); ret != nvml.SUCCESS || r.target == nil {
		return ret
	}
	r.session.machine.mu.Lock()
	defer r.session.machine.mu.Unlock()
	if r.target.ended {
		return nvml.ERROR_INVALID_ARGUMENT
	}
	return nvml.SUCCESS
}

// Refuse answers a call of a function that is not modelled, by its C name: a client in C may
// call any function of the header. The device is nil for a function that takes none.
func (s *Session) Refuse(function string, about nvml.Device) nvml.Return {
	r := refuser{session: s}
	switch d := about.(type) {
	case migDevice:
		r = d.refuser
	case *device:
		r = d.refuser
	}
	if ret := r.enter(function); ret != nvml.SUCCESS {
		return ret
	}
	return nvml.ERROR_NOT_SUPPORTED
}
