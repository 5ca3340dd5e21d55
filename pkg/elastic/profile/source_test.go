package profile

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"

	"github.com/mica-gpu/mica/test/fixture"
)

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

// follow starts a source, and stops it when the test ends.
func follow(t *testing.T, path string) (*Source, *clocktesting.FakeClock) {
	t.Helper()
	clock := clocktesting.NewFakeClock(time.Date(2026, 10, 1, 12, 0, 0, 0, time.UTC))
	s, err := NewSource(path, clock)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Start(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return s, clock
}

// step makes the source read its file once. The ticker buffers one tick.
func step(t *testing.T, clock *clocktesting.FakeClock) {
	t.Helper()
	fixture.Eventually(t, "the source waits", func() error {
		if !clock.HasWaiters() {
			return errors.New("it does not")
		}
		return nil
	})
	clock.Step(interval)
}

func utilization(t *testing.T, s *Source) float64 {
	t.Helper()
	p, err := s.Get("realtime")
	if err != nil {
		t.Fatal(err)
	}
	return p.Targets[GPUUtilization]
}

func TestAChangedFileIsTakenOver(t *testing.T) {
	path := filepath.Join(t.TempDir(), "profiles.yaml")
	write(t, path, "profiles: {realtime: {targets: {gpuUtilization: 75}}}")
	s, clock := follow(t, path)
	changed := s.Changed()
	if got := utilization(t, s); got != 75 {
		t.Errorf("began with %v", got)
	}
	write(t, path, "profiles: {realtime: {targets: {gpuUtilization: 65}}}")
	step(t, clock)
	<-changed
	if got := utilization(t, s); got != 65 {
		t.Errorf("has %v after the change", got)
	}
}

func TestABrokenFileChangesNothing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "profiles.yaml")
	write(t, path, "profiles: {realtime: {targets: {gpuUtilization: 75}}}")
	s, err := NewSource(path, clocktesting.NewFakeClock(time.Time{}))
	if err != nil {
		t.Fatal(err)
	}
	changed := s.Changed()
	write(t, path, "profiles: {realtime: {targets: {gpuUtilization: 750}}}")
	fixture.Sentence(t, s.refresh(t.Context()), "750")
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	fixture.Sentence(t, s.refresh(t.Context()), path)
	write(t, path, "profiles: {realtime: {targets: {gpuUtilization: 75}}}")
	if err := s.refresh(t.Context()); err != nil {
		t.Error(err)
	}
	if got := utilization(t, s); got != 75 {
		t.Errorf("has %v", got)
	}
	select {
	case <-changed:
		t.Error("a change was reported without one")
	default:
	}
}

func TestWithoutAFileTheProfilesStay(t *testing.T) {
	s, _ := follow(t, "")
	if got := utilization(t, s); got != 70 {
		t.Errorf("has %v", got)
	}
}

func TestAFileThatCannotBeUsedAtTheStartIsRefused(t *testing.T) {
	clock := clocktesting.NewFakeClock(time.Time{})
	missing := filepath.Join(t.TempDir(), "missing.yaml")
	_, err := NewSource(missing, clock)
	fixture.Sentence(t, err, "read the file with profiles", missing)
	path := filepath.Join(t.TempDir(), "profiles.yaml")
	write(t, path, "scaleOut: {pods: 0}")
	_, err = NewSource(path, clock)
	fixture.Sentence(t, err, path, "scaleOut.pods is 0")
}
