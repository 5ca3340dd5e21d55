package nvml

import (
	"errors"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// session is the state between an initialization of NVML and its shutdown, after which no handle is
// valid.
type session struct {
	api nvml.Interface

	// release is the driver's, such as 580; 0 until read.
	release atomic.Int64

	mu   sync.Mutex
	gpus map[string]*device // by UUID
	// census is common to all sessions.
	census *census
	// outdated: a GPU was lost, or none could be read. NVML finds a GPU that is back, or its replacement,
	// only when it is initialized again.
	outdated bool
	// events is the set that the registered GPUs report to. Both belong to the listening goroutine.
	events     nvml.EventSet
	registered map[*device]bool
	// fillers are the profiles of compute instances that take all of a GPU instance.
	fillers map[nvml.GpuInstanceProfileInfo]nvml.ComputeInstanceProfileInfo
}

// census counts GPUs and looks. Unlike handles, it outlives a session.
type census struct {
	mu sync.Mutex
	// gpus is how many GPUs there were at the last discovery, 0 before the first.
	gpus int
	// looks counts those of Refresh, which is called by one goroutine at a time.
	looks int
}

func newSession(api nvml.Interface, counted *census) *session {
	return &session{
		api: api, census: counted, gpus: map[string]*device{}, registered: map[*device]bool{},
		fillers: map[nvml.GpuInstanceProfileInfo]nvml.ComputeInstanceProfileInfo{},
	}
}

func (s *session) filler(of nvml.GpuInstanceProfileInfo) (filler nvml.ComputeInstanceProfileInfo, known bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	filler, known = s.fillers[of]
	return filler, known
}

// keepFiller remembers the filling profile of a known profile.
func (s *session) keepFiller(of nvml.GpuInstanceProfileInfo, filler nvml.ComputeInstanceProfileInfo) {
	if of.SliceCount == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fillers[of] = filler
}

// sessions are those of a Library, one at a time. A call begins one if there is none.
type sessions struct {
	api nvml.Interface
	// use is read-locked by calls, and write-locked while a session begins or ends. Some calls lock it
	// twice, so no goroutine may wait for the write lock while there is a session.
	use sync.RWMutex
	// beginning serializes the start of sessions.
	beginning sync.Mutex
	current   atomic.Pointer[session]
	closed    atomic.Bool
	census    census
	waits     waits
	// listening has room for one goroutine that waits for events or ends a session.
	listening chan struct{}
}

// stopListening keeps others from waiting for events until allow is called. It gives up on a wait that
// does not end.
func (s *sessions) stopListening() (allow func(), stopped bool) {
	select {
	case s.listening <- struct{}{}:
		return func() { <-s.listening }, true
	case <-time.After(4 * eventWait):
		return func() {}, false
	}
}

// enter begins a call. leave ends it.
func (s *sessions) enter() (in *session, leave func(), err error) {
	for {
		s.use.RLock()
		if in := s.current.Load(); in != nil {
			return in, s.use.RUnlock, nil
		}
		s.use.RUnlock()
		if err := s.begin(); err != nil {
			return nil, nil, err
		}
	}
}

func (s *sessions) begin() error {
	s.beginning.Lock()
	defer s.beginning.Unlock()
	if s.current.Load() != nil {
		return nil // another call began it
	}
	s.use.Lock()
	defer s.use.Unlock()
	if s.closed.Load() {
		return &Error{Call: "use NVML after it was closed", Return: nvml.ERROR_UNINITIALIZED}
	}
	if err := check(s.api.Init(), "initialize", ""); err != nil {
		return err
	}
	s.current.Store(newSession(s.api, &s.census))
	return nil
}

// end ends the session unless a call is running.
func (s *sessions) end() (ended bool, err error) {
	if s.current.Load() == nil {
		return true, nil
	}
	allow, stopped := s.stopListening()
	defer allow()
	if !stopped || !s.use.TryLock() {
		return false, nil
	}
	defer s.use.Unlock()
	return true, s.shut()
}

// shut ends the session, if there is one. The caller holds use and keeps others from listening.
func (s *sessions) shut() error {
	in := s.current.Swap(nil)
	if in == nil {
		return nil
	}
	in.stopListening()
	return check(s.api.Shutdown(), "shut down", "")
}

// closeWait is how long Closed waits for running calls.
const closeWait = 5 * time.Second

// during calls do while there is no session. Other calls wait for its end.
func (s *sessions) during(do func() error) error {
	allow, stopped := s.stopListening()
	defer allow()
	if !stopped || !s.lockSoon() {
		return &Error{Call: "shut down while another call does not end", Return: nvml.ERROR_IN_USE}
	}
	defer s.use.Unlock()
	if err := s.shut(); err != nil {
		return err
	}
	return do()
}

// lockSoon write-locks use. Unlike Lock it does not block new calls while one does not end.
func (s *sessions) lockSoon() bool {
	for deadline := time.Now().Add(closeWait); !s.use.TryLock(); time.Sleep(eventWait / 10) {
		if time.Now().After(deadline) {
			return false
		}
	}
	return true
}

// within makes a call if the session is still alive.
func (s *sessions) within(in *session, call func() error) error {
	s.use.RLock()
	defer s.use.RUnlock()
	if s.current.Load() != in {
		return nil
	}
	return call()
}

// renew ends a session that does not show all GPUs, unless it is in use.
func (s *sessions) renew() error {
	in := s.current.Load()
	if in == nil || !in.isOutdated() {
		return nil
	}
	_, err := s.end()
	return err
}

// close ends the last session, even if a call has not returned.
func (s *sessions) close() error {
	twice := s.closed.Swap(true)
	allow, stopped := s.stopListening()
	defer allow()
	idle := s.use.TryLock()
	if idle {
		defer s.use.Unlock()
	}
	in := s.current.Swap(nil)
	if in == nil && !twice {
		return nil
	}
	if in != nil && stopped && idle {
		in.stopListening()
	}
	return check(s.api.Shutdown(), "shut down", "")
}

func (s *session) isOutdated() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.outdated
}

func (s *session) outdate() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.outdated = true
}

// counted stores the number of GPUs of a discovery.
func (s *session) counted(count int) {
	s.census.mu.Lock()
	defer s.census.mu.Unlock()
	s.census.gpus = count
}

// device returns a GPU. It reads the handle once: NVML may look at all GPUs and MIG devices for a
// UUID, which takes seconds.
func (s *session) device(uuid string) (*device, error) {
	if known := s.known(uuid); known != nil {
		return known, nil
	}
	handle, ret := s.api.DeviceGetHandleByUUID(uuid)
	if ret != nvml.SUCCESS {
		return nil, &Error{Call: "open", Device: uuid, Return: ret, unknownGPU: ret == nvml.ERROR_NOT_FOUND}
	}
	return s.keep(uuid, handle), nil
}

// known returns a known GPU, or nil.
func (s *session) known(uuid string) *device {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.gpus[uuid]
}

// migHandle returns the handle of a MIG device of any GPU, if known.
func (s *session) migHandle(uuid string) (nvml.Device, bool) {
	s.mu.Lock()
	gpus := slices.Collect(maps.Values(s.gpus))
	s.mu.Unlock()
	for _, d := range gpus {
		if mig, found := d.mig(uuid); found {
			return mig.device, true
		}
	}
	return nil, false
}

// keep stores the handle of a GPU. The GPU's state is kept if the handle is the same.
func (s *session) keep(uuid string, handle nvml.Device) *device {
	s.mu.Lock()
	defer s.mu.Unlock()
	if known := s.gpus[uuid]; known != nil && known.Device == handle {
		return known
	}
	kept := newDevice(s, uuid, handle)
	s.gpus[uuid] = kept
	return kept
}

// judge drops the state of a GPU if the error means that it may have changed, and returns the error.
func (s *session) judge(d *device, err error) error {
	answer := new(Error)
	if !errors.As(err, &answer) {
		return err
	}
	switch answer.Return {
	case nvml.ERROR_NOT_SUPPORTED, nvml.ERROR_NOT_FOUND, nvml.ERROR_IN_USE, nvml.ERROR_INSUFFICIENT_RESOURCES,
		nvml.ERROR_RESET_REQUIRED, nvml.ERROR_NO_PERMISSION:
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if d != nil && s.gpus[d.uuid] == d {
		delete(s.gpus, d.uuid)
	}
	s.outdated = s.outdated || answer.Return == nvml.ERROR_GPU_IS_LOST
	return err
}

// on makes calls for one GPU.
func (l *Library) on(uuid string, call func(*device) error) error {
	in, leave, err := l.sessions.enter()
	if err != nil {
		return err
	}
	defer leave()
	d, err := in.device(uuid)
	if err != nil {
		return err
	}
	return in.judge(d, call(d))
}

// ask makes a call for a GPU that may be sick: it returns ErrSilent if the GPU does not answer.
func ask[T any](l *Library, what, uuid string, question func(*device) (T, error)) (answer T, err error) {
	in, leave, err := l.sessions.enter()
	if err != nil {
		return answer, err
	}
	defer leave()
	return bounded(&l.sessions, what+" of "+uuid, func() (found T, err error) {
		d, err := in.device(uuid)
		if err == nil {
			found, err = question(d)
			err = in.judge(d, err)
		}
		return found, err
	})
}

// Rest closes NVML unless a call is running, and reports whether it did. Meanwhile the kernel driver
// can be unloaded, and GPUs can be reset. The next call initializes NVML and reads every handle again.
func (l *Library) Rest() (resting bool, err error) { return l.sessions.end() }

// Closed calls do while this process has NVML closed, as a reset of a GPU needs. Other calls wait. It
// returns ErrInUse if a running call does not end soon.
func (l *Library) Closed(do func() error) error { return l.sessions.during(do) }

// Persistence reports whether the persistence mode of a GPU is enabled; false on a board without it.
// It returns ErrSilent if the GPU does not answer.
func (l *Library) Persistence(uuid string) (enabled bool, err error) {
	return ask(l, "read the persistence mode", uuid, func(d *device) (bool, error) {
		mode, ret := d.GetPersistenceMode()
		if ret == nvml.ERROR_NOT_SUPPORTED {
			return false, nil
		}
		return mode == nvml.FEATURE_ENABLED, check(ret, "read the persistence mode", uuid)
	})
}

// SetPersistence sets the persistence mode of a GPU. It returns ErrSilent if the GPU does not answer,
// and until the earlier call returns, so that the last call wins.
func (l *Library) SetPersistence(uuid string, enabled bool) error {
	mode := map[bool]nvml.EnableState{true: nvml.FEATURE_ENABLED, false: nvml.FEATURE_DISABLED}[enabled]
	_, err := ask(l, "set the persistence mode", uuid, func(d *device) (struct{}, error) {
		return struct{}{}, check(d.SetPersistenceMode(mode), "set the persistence mode", uuid)
	})
	return err
}

// Persistent reports whether the driver keeps every GPU that was used initialized while idle.
// Otherwise NVML initializes them one by one, and their settings are lost when the last user ends.
func (l *Library) Persistent() (bool, error) {
	in, leave, err := l.sessions.enter()
	if err != nil {
		return false, err
	}
	defer leave()
	return bounded(&l.sessions, "read the persistence modes", func() (bool, error) {
		for _, d := range in.devices() {
			mode, ret := d.GetPersistenceMode()
			if ret != nvml.SUCCESS || mode != nvml.FEATURE_ENABLED {
				return false, check(ret, "read the persistence mode", d.uuid)
			}
		}
		return true, nil
	})
}

// devices are the GPUs that are known.
func (s *session) devices() []*device {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Values(s.gpus))
}
