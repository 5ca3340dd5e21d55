package profile

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"sync"
	"time"

	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
)

// interval is how often Source reads the file. kubelet takes a minute to update a ConfigMap in a pod.
const interval = 10 * time.Second

// Source follows an operator's file with profiles. Its methods may be called concurrently.
type Source struct {
	path  string
	clock clock.WithTicker

	mu      sync.Mutex
	set     Set
	content []byte
	changed chan struct{}
}

// NewSource reads the file once. An empty path means Mica's own profiles.
func NewSource(path string, clock clock.WithTicker) (*Source, error) {
	s := &Source{path: path, clock: clock, changed: make(chan struct{})}
	if path != "" {
		var err error
		if s.content, err = os.ReadFile(path); err != nil {
			return nil, fmt.Errorf("read the file with profiles: %w", err)
		}
	}
	var err error
	if s.set, err = Load(s.content); err != nil {
		return nil, fmt.Errorf("file %s with profiles: %w", path, err)
	}
	return s, nil
}

// NeedLeaderElection is false: each replica uses the profiles.
func (s *Source) NeedLeaderElection() bool { return false }

// Start follows the file until ctx ends. It logs an unusable file once, and keeps the last profiles.
func (s *Source) Start(ctx context.Context) error {
	if s.path == "" {
		<-ctx.Done()
		return nil
	}
	ticker := s.clock.NewTicker(interval)
	defer ticker.Stop()
	var logged string
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C():
		}
		err := s.refresh(ctx)
		if err == nil {
			logged = ""
		} else if err.Error() != logged {
			logged = err.Error()
			klog.FromContext(ctx).Error(err, "Cannot use the file with profiles; keeping the last profiles", "file", s.path)
		}
	}
}

// refresh reads the file and uses its changes.
func (s *Source) refresh(ctx context.Context) error {
	content, err := os.ReadFile(s.path)
	if err != nil {
		return err
	}
	if bytes.Equal(content, s.content) {
		return nil
	}
	set, err := Load(content)
	if err != nil {
		return err
	}
	klog.FromContext(ctx).Info("Read changed profiles", "file", s.path)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.set, s.content = set, content
	close(s.changed)
	s.changed = make(chan struct{})
	return nil
}

// Set returns the current profiles.
func (s *Source) Set() Set {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.set
}

// Get returns the current profile with this name.
func (s *Source) Get(name string) (Profile, error) { return s.Set().Get(name) }

// Names returns the names of the current profiles.
func (s *Source) Names() []string { return s.Set().Names() }

// Changed returns a channel that is closed at the next change. Call it before Set, to miss none.
func (s *Source) Changed() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.changed
}
