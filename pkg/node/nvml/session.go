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

// session is what was learned between an initialisation of NVML and its shutdown, after which
// no handle means anything.
type session struct {
	api nvml.Interface

	// release is that of the driver, such as 580; 0 until it was read.
	release atomic.Int64

	mu   sync.Mutex
	gpus map[string]*device // by UUID
	// census is of all sessions.
	census *census
	// outdated tells that a GPU was lost, or none could be read: NVML finds one that is back, or another in its
	// place, when it is initialised anew.
	outdated bool
	// events is the set that GPUs report to, and heard are those that do. They belong to who is
	// listening.
	events nvml.EventSet
	heard  map[*device]bool
	// fillers are the profiles of compute instances that take all of a GPU instance.
	fillers map[nvml.GpuInstanceProfileInfo]nvml.ComputeInstanceProfileInfo
}

// census is what is counted. Unlike handles, it outlives a session.
type census struct {
	mu sync.Mutex
	// gpus is how many GPUs there were at the last discovery, 0 before the first.
	gpus int
	// looks counts those of Refresh, which is called by one goroutine at a time.
	looks int
}

func newSession(api nvml.Interface, counted *census) *session {
	return &session{
		api: api, census: counted, gpus: map[string]*device{}, heard: map[*device]bool{},
		fillers: map[nvml.GpuInstanceProfileInfo]nvml.ComputeInstanceProfileInfo{},
	}
}

func (s *session) filler(of nvml.GpuInstanceProfileInfo) (filler nvml.ComputeInstanceProfileInfo, known bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	filler, known = s.fillers[of]
	return filler, known
}

// keepFiller remembers one of a profile that is known.
func (s *session) keepFiller(of nvml.GpuInstanceProfileInfo, filler nvml.ComputeInstanceProfileInfo) {
	if of.SliceCount == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fillers[of] = filler
}

// sessions are those of a Library, one at a time. A call begins one where there is none.
type sessions struct {
	api nvml.Interface
	// use is held for reading by calls, and for writing while a session begins or ends. Some calls
	// lock it twice, so nobody waits to lock it for writing while there is a session.
	use sync.RWMutex
	// beginning is held by the one who begins a session.
	beginning sync.Mutex
	current   atomic.Pointer[session]
	closed    atomic.Bool
	census    census
	waits     waits
	// listening has room for one, who waits for events or ends a session.
	listening chan struct{}
}

// stopListening keeps others from waiting for events until the returned function is called.
// It gives up on a wait that does not end.
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
	if err := check(s.api.Init(), "initialise", ""); err != nil {
		return err
	}
	s.current.Store(newSession(s.api, &s.census))
	return nil
}

// end ends the session, unless a call is under way.
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
	in := s.current.Swap(nil)
	if in == nil {
		return true, nil
	}
	in.stopListening()
	return true, check(s.api.Shutdown(), "shut down", "")
}

// closeWait is how long Closed waits for calls that are under way.
const closeWait = 5 * time.Second

// during does something while there is no session. Calls wait for its end.
func (s *sessions) during(do func() error) error {
	allow, stopped := s.stopListening()
	defer allow()
	if !stopped || !s.lockSoon() {
		return &Error{Call: "shut down while another call does not end", Return: nvml.ERROR_IN_USE}
	}
	defer s.use.Unlock()
	if in := s.current.Swap(nil); in != nil {
		in.stopListening()
		if err := check(s.api.Shutdown(), "shut down", ""); err != nil {
			return err
		}
	}
	return do()
}

// lockSoon locks use for writing. Unlike Lock it does not stop new calls while one does not end.
func (s *sessions) lockSoon() bool {
	for deadline := time.Now().Add(closeWait); !s.use.TryLock(); time.Sleep(eventWait / 10) {
		if time.Now().After(deadline) {
			return false
		}
	}
	return true
}

// within makes a call if the session goes on.
func (s *sessions) within(in *session, call func() error) error {
	s.use.RLock()
	defer s.use.RUnlock()
	if s.current.Load() != in {
		return nil
	}
	return call()
}

// renew ends a session that does not show all GPUs. One that is in use goes on.
func (s *sessions) renew() error {
	in := s.current.Load()
	if in == nil || !in.isOutdated() {
		return nil
	}
	_, err := s.end()
	return err
}

// close ends the last session, whether or not a GPU owes an answer to a call.
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

// counted remembers how many GPUs a discovery has counted.
func (s *session) counted(count int) {
	s.census.mu.Lock()
	defer s.census.mu.Unlock()
	s.census.gpus = count
}

// device returns what is known of a GPU, whose handle NVML is asked for once: to find a UUID
// it may look at all GPUs and MIG devices, and take seconds.
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

// known is what is known of a GPU, nil for nothing.
func (s *session) known(uuid string) *device {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.gpus[uuid]
}

// migHandle is that of a MIG device of any GPU, if it is known.
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

// keep remembers the handle of a GPU. What is known of the GPU stays as long as that is the
// same.
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

// judge forgets what is known of a GPU, if anything is, when an answer tells that it may not be
// the same any more, and returns the answer.
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

// on makes calls of one GPU.
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

// ask asks one GPU something, as what says, which may be sick: the error is ErrSilent where it does
// not answer.
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

// Rest shuts NVML down unless a call is under way, and tells whether it is. While it rests, the
// kernel driver can be unloaded and a GPU be reset. The next call initialises it again, and
// learns every handle anew.
func (l *Library) Rest() (resting bool, err error) { return l.sessions.end() }

// Closed does something while this process has NVML shut down, as a reset of a GPU needs. Calls
// wait for its end. It is ErrInUse where a call is under way and does not end soon.
func (l *Library) Closed(do func() error) error { return l.sessions.during(do) }

// Persistence tells whether the persistence mode of a GPU is enabled. It is not on a board without
// one. The error is ErrSilent where the GPU does not answer.
func (l *Library) Persistence(uuid string) (enabled bool, err error) {
	return ask(l, "read the persistence mode", uuid, func(d *device) (bool, error) {
		mode, ret := d.GetPersistenceMode()
		if ret == nvml.ERROR_NOT_SUPPORTED {
			return false, nil
		}
		return mode == nvml.FEATURE_ENABLED, check(ret, "read the persistence mode", uuid)
	})
}

// SetPersistence enables or disables the persistence mode of a GPU. The error is ErrSilent where the
// GPU does not answer, and until it does, so that the last call that is made counts.
func (l *Library) SetPersistence(uuid string, enabled bool) error {
	mode := map[bool]nvml.EnableState{true: nvml.FEATURE_ENABLED, false: nvml.FEATURE_DISABLED}[enabled]
	_, err := ask(l, "set the persistence mode", uuid, func(d *device) (struct{}, error) {
		return struct{}{}, check(d.SetPersistenceMode(mode), "set the persistence mode", uuid)
	})
	return err
}

// Persistent tells whether the driver keeps every GPU initialised that has been asked for,
// also while nobody uses it. Without that, NVML wakes them up, one after the other, and what
// was set of them is lost when the last user goes.
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
