package mps

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
)

// wanted is the daemon of most tests.
func wanted() Daemon {
	return Daemon{ID: "gpu-0-mps", Devices: []string{"GPU-a", "GPU-b"}, ThreadPercentage: 25, MemoryBytes: []uint64{0, 3 << 30}, MultiUser: true}
}

// fakeRunner runs daemons for tests.
type fakeRunner struct {
	// atStart returns how the nth start ends at once. Empty: it works.
	atStart func(n int, singleUser bool) string
	// deaf daemons ignore quit, and stubborn ones signals, too.
	deaf, stubborn bool

	mu     sync.Mutex
	starts []Daemon
	asked  []string
	live   map[Place]*fakeProcess
}

type fakeProcess struct {
	runner     *fakeRunner
	place      Place
	percentage string
	ended      chan struct{}
	how        string
}

func (r *fakeRunner) Run(daemon Daemon, place Place, singleUser bool) (Process, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	process := &fakeProcess{runner: r, place: place, percentage: "100.0\n", ended: make(chan struct{})}
	n := len(r.starts)
	r.starts = append(r.starts, daemon)
	if r.atStart != nil {
		if how := r.atStart(n, singleUser); how != "" {
			process.how = how
			close(process.ended)
			return process, nil
		}
	}
	if r.live == nil {
		r.live = map[Place]*fakeProcess{}
	}
	r.live[place] = process
	return process, nil
}

// die ends the daemon of a place, as a crash does.
func (r *fakeRunner) die(place Place, how string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if process := r.live[place]; process != nil {
		process.how = how
		delete(r.live, place)
		close(process.ended)
	}
}

func (r *fakeRunner) Ask(_ context.Context, place Place, command string) (string, error) {
	r.mu.Lock()
	process := r.live[place]
	r.asked = append(r.asked, command)
	r.mu.Unlock()
	if process == nil {
		return "", errors.New("no daemon")
	}
	switch name, value, _ := strings.Cut(command, " "); name {
	case "get_default_active_thread_percentage":
		return process.percentage, nil
	case "set_default_active_thread_percentage":
		process.percentage = value + ".0\n"
	case "quit":
		if !r.deaf {
			r.die(place, "exit status 0")
		}
	}
	return "", nil
}

func (r *fakeRunner) Sweep(_ context.Context, place Place) error {
	r.die(place, "signal: killed")
	return nil
}

func (r *fakeRunner) running() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.live)
}

func (r *fakeRunner) wasAsked(command string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Contains(r.asked, command)
}

func (r *fakeRunner) started() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.starts)
}

func (p *fakeProcess) Ended() <-chan struct{} { return p.ended }
func (p *fakeProcess) End() string            { return p.how }
func (p *fakeProcess) Terminate() {
	if !p.runner.stubborn {
		p.runner.die(p.place, "signal: terminated")
	}
}

// bubble runs a test in a bubble of time, with a directory of its own.
func bubble(t *testing.T, test func(t *testing.T, d *Directory)) {
	t.Helper()
	dir := shortDir(t)
	synctest.Test(t, func(t *testing.T) { test(t, NewDirectory(dir)) })
}

// shortDir leaves room for the paths of sockets.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "mica-")
	must(t, err)
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

func supervise(t *testing.T, d *Directory, runner Runner) (stop func()) {
	t.Helper()
	s := NewSupervisor(string(d.root), runner)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := s.Run(ctx); err != nil {
			t.Error(err)
		}
	}()
	stop = sync.OnceFunc(func() {
		cancel()
		<-done
	})
	t.Cleanup(stop)
	synctest.Wait() // until it has looked
	return stop
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// running is a supervisor that runs the wanted daemon.
func running(t *testing.T, d *Directory) *fakeRunner {
	t.Helper()
	runner := &fakeRunner{}
	supervise(t, d, runner)
	start(t, d, wanted())
	return runner
}

func start(t *testing.T, d *Directory, daemon Daemon) {
	t.Helper()
	must(t, d.Start(t.Context(), daemon))
}

func stop(t *testing.T, d *Directory, id string) {
	t.Helper()
	must(t, d.Stop(t.Context(), id))
}

func status(t *testing.T, d *Directory, id string) Status {
	t.Helper()
	status, err := d.root.readStatus(id)
	if err != nil || status == nil {
		t.Fatalf("daemon %s has no status: %v", id, err)
	}
	return *status
}

// expectNothing checks that no file of a daemon is left.
func expectNothing(t *testing.T, d *Directory) {
	t.Helper()
	err := filepath.WalkDir(string(d.root), func(path string, entry os.DirEntry, err error) error {
		if err == nil && !entry.IsDir() && !slices.Contains(reserved, entry.Name()) {
			err = fmt.Errorf("%s is left", path)
		}
		if err == nil && entry.IsDir() && filepath.Dir(path) == string(d.root) && !slices.Contains(reserved, entry.Name()) {
			err = fmt.Errorf("%s is left", path)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

// writeStatus leaves a status as an earlier supervisor does.
func writeStatus(d *Directory, status Status) error {
	return errors.Join(os.MkdirAll(d.root.statuses(), 0o755), write(d.root.status(status.Daemon.ID), status))
}
