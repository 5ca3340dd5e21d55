package mps

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mica-gpu/mica/test/fixture"
)

func TestADaemonRunsWhileItIsDesired(t *testing.T) {
	bubble(t, func(t *testing.T, d *Directory) {
		runner := running(t, d)
		got := status(t, d, "gpu-0-mps")
		if got.State != Ready || !got.Daemon.equal(wanted()) || got.Restarts != 0 || got.Reason != "" {
			t.Errorf("status is %+v", got)
		}
		for _, command := range []string{"set_default_active_thread_percentage 25", "set_default_device_pinned_mem_limit 1 3072M"} {
			if !runner.wasAsked(command) {
				t.Errorf("the daemon did not get %q, but %q", command, runner.asked)
			}
		}
		start(t, d, wanted())
		if runner.started() != 1 {
			t.Errorf("it was started %d times", runner.started())
		}
		stop(t, d, "gpu-0-mps")
		if runner.running() != 0 || !runner.wasAsked("quit -t 1") {
			t.Errorf("%d daemons run; asked: %q", runner.running(), runner.asked)
		}
		expectNothing(t, d)
		stop(t, d, "gpu-0-mps")
	})
}

func TestALostDaemonIsRestartedAndCounted(t *testing.T) {
	bubble(t, func(t *testing.T, d *Directory) {
		runner := running(t, d)
		pipe, err := os.Stat(d.root.place("gpu-0-mps").Pipe())
		must(t, err)
		for lost := 1; lost <= 3; lost++ {
			runner.die(d.root.place("gpu-0-mps"), "signal: segmentation fault")
			synctest.Wait()
			if got := status(t, d, "gpu-0-mps"); got.State != Starting || got.Restarts != lost || !strings.Contains(got.Reason, "segmentation fault") {
				t.Errorf("after loss %d: %+v", lost, got)
			}
			start(t, d, wanted())
			if got := status(t, d, "gpu-0-mps"); got.State != Ready || got.Restarts != lost {
				t.Errorf("after restart %d: %+v", lost, got)
			}
		}
		if now, err := os.Stat(d.root.place("gpu-0-mps").Pipe()); err != nil || !os.SameFile(pipe, now) {
			t.Errorf("containers have a directory mounted that is not the daemon's any more: %v", err)
		}
	})
}

func TestADaemonThatCannotBeStarted(t *testing.T) {
	bubble(t, func(t *testing.T, d *Directory) {
		var works atomic.Bool
		runner := &fakeRunner{atStart: func(int, bool) string {
			if works.Load() {
				return ""
			}
			return "exit status 1"
		}}
		supervise(t, d, runner)
		place := d.root.place("gpu-0-mps")
		must(t, os.MkdirAll(place.Log(), 0o755))
		must(t, os.WriteFile(filepath.Join(place.Log(), "control.log"), []byte("first\nno such device\n"), 0o600))
		err := d.Start(t.Context(), wanted())
		fixture.Sentence(t, err, "start MPS control daemon gpu-0-mps for GPU-a, GPU-b", "exit status 1", "no such device")
		if got := status(t, d, "gpu-0-mps"); got.State != Failed || got.Restarts != 0 {
			t.Errorf("status is %+v", got)
		}
		before := runner.started()
		time.Sleep(10 * time.Minute) // of the bubble
		if tries := (runner.started() - before) / 2; tries < 15 || tries > 25 {
			t.Errorf("it was tried %d times in 10 minutes", tries)
		}
		works.Store(true)
		time.Sleep(restarts.Cap)
		start(t, d, wanted())
	})
}

func TestADaemonThatDoesNotQuitIsEnded(t *testing.T) {
	for name, runner := range map[string]*fakeRunner{
		"by a signal": {deaf: true},
		"by force":    {deaf: true, stubborn: true},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, d *Directory) {
				supervise(t, d, runner)
				start(t, d, wanted())
				stop(t, d, "gpu-0-mps")
				if runner.running() != 0 {
					t.Error("it runs")
				}
				expectNothing(t, d)
			})
		})
	}
}

func TestAnotherSupervisorGoesOn(t *testing.T) {
	bubble(t, func(t *testing.T, d *Directory) {
		runner := &fakeRunner{}
		end := supervise(t, d, runner)
		start(t, d, wanted())
		end()
		if got := status(t, d, "gpu-0-mps"); runner.running() != 0 || got.State != Starting || got.Restarts != 1 {
			t.Errorf("%d daemons run without a supervisor; status is %+v", runner.running(), got)
		}
		supervise(t, d, runner)
		start(t, d, wanted())
		if got := status(t, d, "gpu-0-mps"); got.State != Ready || got.Restarts != 1 {
			t.Errorf("status is %+v", got)
		}
	})
}

// A killed supervisor leaves a wrong status.
func TestASupervisorThatWasKilled(t *testing.T) {
	bubble(t, func(t *testing.T, d *Directory) {
		for id, daemon := range map[string]*Daemon{"gpu-0-mps": new(wanted()), "gpu-1-mps": nil} {
			left := Status{Daemon: Daemon{ID: id, Devices: []string{"GPU-a"}}, State: Ready, Restarts: 4}
			if daemon != nil {
				left.Daemon = *daemon
				must(t, errors.Join(os.MkdirAll(d.root.specs(), 0o755), write(d.root.spec(id), daemon)))
			}
			must(t, writeStatus(d, left))
		}
		draft := d.root.status("gpu-2-mps") + draftSuffix
		must(t, os.WriteFile(draft, nil, 0o600))
		running(t, d)
		if got := status(t, d, "gpu-0-mps"); got.Restarts != 5 {
			t.Errorf("status is %+v", got)
		}
		if _, err := os.Lstat(draft); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("a draft is left: %v", err)
		}
		if left, err := d.Statuses(); err != nil || len(left) != 1 {
			t.Errorf("left: %+v, %v; the other one is not desired", left, err)
		}
	})
}

func TestADaemonThatIsDesiredAgainIsNotStopped(t *testing.T) {
	bubble(t, func(t *testing.T, d *Directory) {
		runner := running(t, d)
		must(t, os.Remove(d.root.spec("gpu-0-mps")))
		start(t, d, wanted()) // before the supervisor looks
		time.Sleep(3 * resync)
		if got := status(t, d, "gpu-0-mps"); runner.started() != 1 || got.State != Ready {
			t.Errorf("started %d times, status is %+v", runner.started(), got)
		}
	})
}

// SELinux denies containers the type of directories in /run.
func TestContainersMayUseWhatTheyShare(t *testing.T) {
	bubble(t, func(t *testing.T, d *Directory) {
		s := NewSupervisor(string(d.root), &fakeRunner{})
		var shared []string
		s.share = func(paths ...string) error {
			shared = append(shared, paths...)
			return nil
		}
		must(t, s.makeDirectories())
		place := d.root.place("gpu-0-mps")
		k := &keeper{supervisor: s, daemon: wanted(), place: place}
		must(t, k.prepare(t.Context()))
		if want := []string{d.root.shm(), place.Pipe()}; !slices.Equal(shared, want) {
			t.Errorf("containers may use %q, want %q", shared, want)
		}
		s.share = func(...string) error { return errMissing }
		if err := k.prepare(t.Context()); !errors.Is(err, errMissing) {
			t.Errorf("got %v for a directory that no container may use", err)
		}
	})
}

// The supervisor reads the desired state again before it stops a daemon.
func TestAStartOvertakesAStop(t *testing.T) {
	bubble(t, func(t *testing.T, d *Directory) {
		s := NewSupervisor(string(d.root), &fakeRunner{})
		ctx, cancel := context.WithCancelCause(t.Context())
		k := &keeper{supervisor: s, daemon: wanted(), cancel: cancel, status: Status{Daemon: wanted(), State: Ready}}
		must(t, s.makeDirectories())
		must(t, write(d.root.spec("gpu-0-mps"), wanted()))
		k.reconsider(t.Context())
		if got := status(t, d, "gpu-0-mps"); ctx.Err() != nil || got.State != Ready {
			t.Errorf("status is %+v, %v", got, context.Cause(ctx))
		}
		must(t, os.Remove(d.root.spec("gpu-0-mps")))
		k.reconsider(t.Context())
		k.set(t.Context(), func(s *Status) { s.State = Ready })
		if got := status(t, d, "gpu-0-mps"); ctx.Err() == nil || got.State != Stopping {
			t.Errorf("status is %+v, %v", got, context.Cause(ctx))
		}
	})
}

// In a bubble, the times of files are in the future, so only this test is about them.
func TestChangesAreFoundByTheTimeOfTheDirectory(t *testing.T) {
	d := NewDirectory(t.TempDir())
	s := NewSupervisor(string(d.root), &fakeRunner{})
	must(t, s.makeDirectories())
	quiet := func() {
		t.Helper()
		must(t, os.Chtimes(d.root.specs(), time.Time{}, time.Now().Add(-2*recent)))
		s.looked.Store(time.Now().UnixNano())
		if s.due() {
			t.Error("it looks although nothing has changed")
		}
	}
	quiet()
	must(t, write(d.root.spec("gpu-0-mps"), wanted()))
	if !s.due() {
		t.Error("a new file is not found")
	}
	quiet()
	must(t, remove(d.root.spec("gpu-0-mps")))
	if !s.due() {
		t.Error("a removed file is not found")
	}
	quiet()
	s.looked.Store(time.Now().Add(-resync).UnixNano())
	if !s.due() {
		t.Error("it does not look from time to time")
	}
}

func TestADaemonIsReplacedByOneWithOtherSettings(t *testing.T) {
	bubble(t, func(t *testing.T, d *Directory) {
		runner := running(t, d)
		other := wanted()
		other.Devices = []string{"GPU-c"}
		other.MemoryBytes = nil
		if err := write(d.root.spec("gpu-0-mps"), other); err != nil { // a stop that was given up
			t.Fatal(err)
		}
		start(t, d, other)
		if got := status(t, d, "gpu-0-mps"); !got.Daemon.equal(other) || runner.running() != 1 || runner.started() != 2 {
			t.Errorf("%d daemons run; status is %+v", runner.running(), got)
		}
	})
}

func TestSpecsThatCannotBeRead(t *testing.T) {
	for name, content := range map[string]string{
		"cut off":               `{"id":"gpu-0-mps","dev`,
		"of a newer version":    `{"id":"gpu-0-mps","devices":["GPU-a"],"nice":true}`,
		"of another daemon":     `{"id":"gpu-1-mps","devices":["GPU-a"]}`,
		"with more than it":     `{"id":"gpu-0-mps","devices":["GPU-a"]}{}`,
		"with a list as a UUID": `{"id":"gpu-0-mps","devices":["GPU-a,GPU-b"]}`,
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, d *Directory) {
				runner := &fakeRunner{}
				supervise(t, d, runner)
				must(t, os.WriteFile(d.root.spec("gpu-0-mps"), []byte(content), 0o600))
				time.Sleep(2 * resync)
				if got := status(t, d, "gpu-0-mps"); got.State != Failed || got.Reason == "" || runner.started() != 0 {
					t.Errorf("status is %+v", got)
				}
				stop(t, d, "gpu-0-mps")
				expectNothing(t, d)
			})
		})
	}
}

func TestLogsAreBounded(t *testing.T) {
	bubble(t, func(t *testing.T, d *Directory) {
		running(t, d)
		log := d.root.place("gpu-0-mps").Log()
		for name, size := range map[string]int64{"server.log": maxLog + 1, "control.log": maxLog} {
			path := filepath.Join(log, name)
			must(t, os.WriteFile(path, nil, 0o600))
			must(t, os.Truncate(path, size))
		}
		time.Sleep(2 * resync)
		for name, want := range map[string]int64{"server.log": 0, "control.log": maxLog} {
			if info, err := os.Stat(filepath.Join(log, name)); err != nil || info.Size() != want {
				t.Errorf("%s has %d bytes, want %d: %v", name, info.Size(), want, err)
			}
		}
	})
}

// A driver that hangs holds killed processes, but not the supervisor, which has other daemons.
func TestProcessesThatCannotBeKilledDelayNothing(t *testing.T) {
	bubble(t, func(t *testing.T, d *Directory) {
		for n := range 56 { // partitions of 8 GPUs
			id := fmt.Sprintf("gpu-1-mig-%d-mps", n)
			must(t, writeStatus(d, Status{Daemon: Daemon{ID: id}, State: Stopping}))
		}
		runner := &stuckRunner{}
		runner.stuck.Store(true)
		s := NewSupervisor(string(d.root), runner)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- s.Run(ctx) }()
		fixture.Sentence(t, d.Start(t.Context(), wanted()), "start MPS control daemon gpu-0-mps", "deadline exceeded")
		for range 10 {
			time.Sleep(resync)
			if supervising, hanging := s.Alive(); !supervising || hanging {
				t.Errorf("supervising: %v, hanging: %v", supervising, hanging)
			}
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// After a stop, the plugin destroys the partition or gives the GPU to another claim.
func TestADaemonWhoseProcessesCannotBeKilledIsNotStopped(t *testing.T) {
	bubble(t, func(t *testing.T, d *Directory) {
		runner := &stuckRunner{}
		supervise(t, d, runner)
		start(t, d, wanted())
		runner.stuck.Store(true)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		fixture.Sentence(t, d.Stop(ctx, "gpu-0-mps"), "deadline exceeded", "the supervisor has not removed it yet")
		runner.stuck.Store(false)
		stop(t, d, "gpu-0-mps")
		expectNothing(t, d)
	})
}

// stuckRunner has processes that the kernel driver holds while it is stuck.
type stuckRunner struct {
	fakeRunner
	stuck atomic.Bool
}

func (r *stuckRunner) Sweep(ctx context.Context, place Place) error {
	if r.stuck.Load() {
		<-ctx.Done()
		return context.Cause(ctx)
	}
	return r.fakeRunner.Sweep(ctx, place)
}

// For example because the file system was full, or an administrator removed it.
func TestAStatusThatIsLostIsWrittenAgain(t *testing.T) {
	for name, lose := range map[string]func(path string) error{
		"removed": os.Remove,
		"damaged": func(path string) error { return os.WriteFile(path, []byte(`{"daemon"`), 0o600) },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, d *Directory) {
				runner := running(t, d)
				must(t, lose(d.root.status("gpu-0-mps")))
				ctx, cancel := context.WithTimeout(t.Context(), 2*resync)
				defer cancel()
				if err := d.Start(ctx, wanted()); err != nil || runner.started() != 1 {
					t.Errorf("started %d times: %v", runner.started(), err)
				}
			})
		})
	}
}

// Every user of the node can make files among the logs.
func TestLinksAmongLogsAreNotFollowed(t *testing.T) {
	for name, plant := range map[string]func(secret, log string) error{
		"a link": os.Symlink,
		"a pipe": func(_, log string) error { return syscall.Mkfifo(log, 0o666) },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, d *Directory) {
				secret := filepath.Join(t.TempDir(), "secret")
				must(t, os.WriteFile(secret, []byte(strings.Repeat("a secret\n", maxLog/9+1)), 0o600))
				runner := running(t, d)
				must(t, plant(secret, filepath.Join(d.root.place("gpu-0-mps").Log(), "control.log")))
				time.Sleep(2 * resync)
				runner.die(d.root.place("gpu-0-mps"), "signal: killed")
				synctest.Wait()
				if got := status(t, d, "gpu-0-mps"); got.State != Starting || !strings.HasSuffix(got.Reason, "signal: killed") {
					t.Errorf("status is %+v", got)
				}
				if info, err := os.Stat(secret); err != nil || info.Size() == 0 {
					t.Errorf("a file behind a link was emptied: %v", err)
				}
			})
		})
	}
}

// Files in it take the memory of the node until a reboot.
func TestSharedMemoryIsClearedAfterTheLastDaemon(t *testing.T) {
	bubble(t, func(t *testing.T, d *Directory) {
		supervise(t, d, &fakeRunner{})
		second := wanted()
		second.ID = "gpu-1-mps"
		start(t, d, wanted())
		start(t, d, second)
		outside := filepath.Join(t.TempDir(), "outside")
		left := filepath.Join(d.root.shm(), "left")
		if err := errors.Join(os.Mkdir(outside, 0o755), os.WriteFile(filepath.Join(outside, "kept"), nil, 0o600),
			os.MkdirAll(filepath.Join(left, "deeper"), 0o700), os.Symlink(outside, filepath.Join(left, "link"))); err != nil {
			t.Fatal(err)
		}
		stop(t, d, "gpu-0-mps")
		time.Sleep(2 * resync)
		if _, err := os.Stat(left); err != nil {
			t.Errorf("a client of the other daemon has lost its memory: %v", err)
		}
		stop(t, d, "gpu-1-mps")
		time.Sleep(2 * resync)
		if _, err := os.Lstat(left); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("it is left: %v", err)
		}
		if _, err := os.Stat(filepath.Join(outside, "kept")); err != nil {
			t.Error(err)
		}
		if info, err := os.Stat(d.root.shm()); err != nil || info.Mode() != fs.ModeDir|fs.ModeSticky|0o777 {
			t.Errorf("the directory itself: %v, %v", info, err)
		}
	})
}

// A process that is killed while it writes a file leaves a draft.
func TestDraftsAreRemoved(t *testing.T) {
	bubble(t, func(t *testing.T, d *Directory) {
		running(t, d)
		for _, path := range []string{d.root.spec("gpu-0-mps"), d.root.status("gpu-0-mps")} {
			must(t, os.WriteFile(path+draftSuffix, []byte(`{"id":"gpu-0`), 0o600))
		}
		stop(t, d, "gpu-0-mps")
		expectNothing(t, d)
	})
}

// lookingRunner looks at the directory before there is anything of a daemon.
type lookingRunner struct {
	*fakeRunner
	look func(Place)
}

func (r lookingRunner) Sweep(ctx context.Context, place Place) error {
	r.look(place)
	return r.fakeRunner.Sweep(ctx, place)
}

// A supervisor that is killed while it starts a daemon leaves a place. The next supervisor finds it
// by its status.
func TestAPlaceHasAStatusFromTheBeginning(t *testing.T) {
	bubble(t, func(t *testing.T, d *Directory) {
		looked := false
		supervise(t, d, lookingRunner{&fakeRunner{}, func(place Place) {
			if looked || place != d.root.place("gpu-0-mps") {
				return
			}
			looked = true
			if got, err := d.root.readStatus("gpu-0-mps"); err != nil || got == nil || got.State != Starting {
				t.Errorf("the status is %+v, %v", got, err)
			}
		}})
		start(t, d, wanted())
		if !looked {
			t.Error("Sweep was not called")
		}
	})
}
