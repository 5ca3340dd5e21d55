package keda

import (
	"context"
	"sync"
)

// querySlots bound concurrent queries, and share them among namespaces. A namespace gets another slot only
// while it holds fewer than are free. Alone it gets half of them, and a namespace without slots finds one.
type querySlots struct {
	mu   sync.Mutex
	free int
	held map[string]int
	// freed is closed when a slot is given back.
	freed chan struct{}
}

func newQuerySlots(n int) *querySlots {
	return &querySlots{free: n, held: map[string]int{}, freed: make(chan struct{})}
}

// take waits for a slot. It returns false if ctx ends first.
func (s *querySlots) take(ctx context.Context, namespace string) bool {
	for {
		got, freed := s.try(namespace)
		if got {
			return true
		}
		select {
		case <-freed:
		case <-ctx.Done():
			return false
		}
	}
}

func (s *querySlots) try(namespace string) (got bool, freed <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.held[namespace] >= s.free {
		return false, s.freed
	}
	s.free--
	s.held[namespace]++
	return true, nil
}

func (s *querySlots) give(namespace string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.free++
	if s.held[namespace]--; s.held[namespace] == 0 {
		delete(s.held, namespace)
	}
	close(s.freed)
	s.freed = make(chan struct{})
}
