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

// interval is how often an operator's file is looked at. kubelet takes a minute to bring a
// changed ConfigMap to a pod: nothing would be gained by being told at once.
const interval = 10 * time.Second

// Source is the profiles as an operator's file has them now. All methods may be called
// concurrently.
type Source struct {
	path  string
	clock clock.WithTicker

	mu      sync.Mutex
	set     Set
	content []byte
	changed chan struct{}
}

// NewSource reads the file at path once; an empty path gives the profiles that come with Mica.
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
		return nil, fmt.Errorf("the file with profiles %s cannot be used: %w", path, err)
	}
	return s, nil
}

// NeedLeaderElection is false: each replica answers by the profiles.
func (s *Source) NeedLeaderElection() bool { return false }

// Start follows the file until ctx ends. A file that cannot be read or used changes nothing,
// and is logged once.
func (s *Source) Start(ctx context.Context) error {
	if s.path == "" {
		<-ctx.Done()
		return nil
	}
	ticker := s.clock.NewTicker(interval)
	defer ticker.Stop()
	var said string
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C():
		}
		err := s.refresh(ctx)
		if err == nil {
			said = ""
		} else if err.Error() != said {
			said = err.Error()
			klog.FromContext(ctx).Error(err, "Cannot use the file with profiles; keeping the profiles that were read before", "file", s.path)
		}
	}
}

// refresh reads the file, and takes over what is new in it.
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

// Set is all profiles as they are now.
func (s *Source) Set() Set {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.set
}

// Get is Set's.
func (s *Source) Get(name string) (Profile, error) { return s.Set().Get(name) }

// Names is Set's.
func (s *Source) Names() []string { return s.Set().Names() }

// Changed is closed when the profiles differ from what Set gave before: ask for it first, then
// for the profiles.
func (s *Source) Changed() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.changed
}
