package wire

import (
	"reflect"
	"sync"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// firstHandle is the value of a session's first handle. Clients treat handles
// as pointers, so it is one that no process has anything at: a client that
// follows it fails at once.
const firstHandle = 0x6d6963610000

// Library answers the calls of one client process.
type Library interface {
	nvml.Interface
	// Refuse answers for a function of the header that is not among Functions;
	// the device is nil for one that is about no GPU.
	Refuse(function string, about nvml.Device) nvml.Return
	// Close frees everything the client held and ends its waits; the process
	// is gone.
	Close()
}

// session is what NVML keeps for one client process, however many connections
// the process has to the daemon.
type session struct {
	library Library

	mu          sync.Mutex
	connections int
	inits       int
	objects     map[HandleWord]any
	handles     map[any]HandleWord
	next        HandleWord
}

func newSession(library Library) *session {
	return &session{
		library: library,
		objects: map[HandleWord]any{},
		handles: map[any]HandleWord{},
		next:    firstHandle,
	}
}

// handleOf gives an object's handle, the same one each time it is asked.
func (s *session) handleOf(object any) HandleWord {
	s.mu.Lock()
	defer s.mu.Unlock()
	if h, known := s.handles[object]; known {
		return h
	}
	h := s.next
	s.next += 16
	s.handles[object], s.objects[h] = h, object
	return h
}

// object is what a handle stands for, if it is one of the interface.
func (s *session) object(h HandleWord, of reflect.Type) (any, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	object, known := s.objects[h]
	if !known || !reflect.TypeOf(object).Implements(of) {
		return nil, false
	}
	return object, true
}

func (s *session) forget(h HandleWord) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.handles, s.objects[h])
	delete(s.objects, h)
}

func (s *session) initialized() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.inits > 0
}

func (s *session) countInit(by int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.inits += by
}

// attach counts one more connection.
func (s *session) attach() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.connections++
}

// detach counts one connection less and reports whether it was the last.
func (s *session) detach() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.connections--
	return s.connections == 0
}
