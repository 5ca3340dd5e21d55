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

func TestADaemonLivesAsLongAsItIsWanted(t *testing.T) {
	bubble(t, func(t *testing.T, d *Directory) {
		runner := &fakeRunner{}
		supervise(t, d, runner)
		start(t, d, wanted())
		got := status(t, d, "gpu-0-mps")
		if got.State != Ready || !got.Daemon.equal(wanted()) || got.Restarts != 0 || got.Reason != "" {
			t.Errorf("status is %+v", got)
		}
		for _, command := range []string{"set_default_active_thread_percentage 25", "set_default_device_pinned_mem_limit 1 3072M"} {
			if !runner.wasAsked(command) {
				t.Errorf("the daemon was not told %q, but %q", command, runner.asked)
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

func TestALostDaemonIsStartedAgainAndTheLossCounted(t *testing.T) {
	bubble(t, func(t *testing.T, d *Directory) {
		runner := &fakeRunner{}
		supervise(t, d, runner)
		start(t, d, wanted())
		pipe, err := os.Stat(d.root.place("gpu-0-mps").Pipe())
		if err != nil {
			t.Fatal(err)
		}
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

func TestADaemonThatCannotBeStartedSaysWhyAndIsTriedFurther(t *testing.T) {
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
		if err := os.MkdirAll(place.Log(), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(place.Log(), "control.log"), []byte("first\nno such device\n"), 0o600); err != nil {
			t.Fatal(err)
		}
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

func TestADaemonThatDoesNotKnowSeveralUsers(t *testing.T) {
	bubble(t, func(t *testing.T, d *Directory) {
		supervise(t, d, &fakeRunner{atStart: func(_ int, singleUser bool) string {
			if singleUser {
				return ""
			}
			return "exit status 1"
		}})
		start(t, d, wanted())
		if got := status(t, d, "gpu-0-mps"); got.State != Ready || !got.SingleUser {
			t.Errorf("status is %+v", got)
		}
		stop(t, d, "gpu-0-mps")
		alone := wanted()
		alone.MultiUser = false
		start(t, d, alone)
		if got := status(t, d, "gpu-0-mps"); got.SingleUser {
			t.Errorf("nothing else was wanted: %+v", got)
		}
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

// A supervisor that was killed leaves a status that is not true any more.
func TestASupervisorThatWasKilled(t *testing.T) {
	bubble(t, func(t *testing.T, d *Directory) {
		for id, daemon := range map[string]*Daemon{"gpu-0-mps": new(wanted()), "gpu-1-mps": nil} {
			left := Status{Daemon: Daemon{ID: id, Devices: []string{"GPU-a"}}, State: Ready, Restarts: 4}
			if daemon != nil {
				left.Daemon = *daemon
				if err := write(d.root.wish(id), daemon); err != nil {
					t.Fatal(err)
				}
			}
			if err := write(d.root.status(id), left); err != nil {
				t.Fatal(err)
			}
		}
		supervise(t, d, &fakeRunner{})
		start(t, d, wanted())
		if got := status(t, d, "gpu-0-mps"); got.Restarts != 5 {
			t.Errorf("status is %+v", got)
		}
		if left, err := d.Statuses(); err != nil || len(left) != 1 {
			t.Errorf("left: %+v, %v; nobody wants the other one", left, err)
		}
	})
}

func TestWhatIsWantedAgainIsNotStopped(t *testing.T) {
	bubble(t, func(t *testing.T, d *Directory) {
		runner := &fakeRunner{}
		supervise(t, d, runner)
		start(t, d, wanted())
		if err := os.Remove(d.root.wish("gpu-0-mps")); err != nil {
			t.Fatal(err)
		}
		start(t, d, wanted()) // before the supervisor looks
		time.Sleep(3 * resync)
		if got := status(t, d, "gpu-0-mps"); runner.started() != 1 || got.State != Ready {
			t.Errorf("started %d times, status is %+v", runner.started(), got)
		}
	})
}

// A node on which other processes have all inotify instances gets its daemons a little later.
func TestASupervisorWithoutAWatchLooksFromTimeToTime(t *testing.T) {
	bubble(t, func(t *testing.T, d *Directory) {
		s := NewSupervisor(d.Path(), &fakeRunner{})
		s.watch = func(context.Context, string) (<-chan struct{}, error) {
			return nil, os.NewSyscallError("inotify_init1", syscall.EMFILE)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- s.Run(ctx) }()
		start(t, d, wanted())
		stop(t, d, wanted().ID)
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// SELinux keeps containers from what has the type of a directory in /run.
func TestContainersMayUseWhatTheyShare(t *testing.T) {
	bubble(t, func(t *testing.T, d *Directory) {
		s := NewSupervisor(d.Path(), &fakeRunner{})
		var shared []string
		s.share = func(paths ...string) error {
			shared = append(shared, paths...)
			return nil
		}
		if err := s.makeDirectories(); err != nil {
			t.Fatal(err)
		}
		place := d.root.place("gpu-0-mps")
		k := &keeper{supervisor: s, daemon: wanted(), place: place}
		if err := k.prepare(t.Context()); err != nil {
			t.Fatal(err)
		}
		if want := []string{d.root.shm(), place.Pipe()}; !slices.Equal(shared, want) {
			t.Errorf("containers may use %q, want %q", shared, want)
		}
		s.share = func(...string) error { return errMissing }
		if err := k.prepare(t.Context()); !errors.Is(err, errMissing) {
			t.Errorf("got %v for a directory that no container may use", err)
		}
	})
}

// Between its look at the directory and the stop, the supervisor looks again.
func TestAStopThatIsOvertakenIsNone(t *testing.T) {
	bubble(t, func(t *testing.T, d *Directory) {
		s := NewSupervisor(d.Path(), &fakeRunner{})
		ctx, cancel := context.WithCancelCause(t.Context())
		k := &keeper{supervisor: s, daemon: wanted(), cancel: cancel, status: Status{Daemon: wanted(), State: Ready}}
		if err := write(d.root.wish("gpu-0-mps"), wanted()); err != nil {
			t.Fatal(err)
		}
		k.reconsider(t.Context())
		if got := status(t, d, "gpu-0-mps"); ctx.Err() != nil || got.State != Ready {
			t.Errorf("status is %+v, %v", got, context.Cause(ctx))
		}
		if err := os.Remove(d.root.wish("gpu-0-mps")); err != nil {
			t.Fatal(err)
		}
		k.reconsider(t.Context())
		k.set(t.Context(), func(s *Status) { s.State = Ready })
		if got := status(t, d, "gpu-0-mps"); ctx.Err() == nil || got.State != Stopping {
			t.Errorf("status is %+v, %v", got, context.Cause(ctx))
		}
	})
}

func TestADaemonIsReplacedByOneWithOtherSettings(t *testing.T) {
	bubble(t, func(t *testing.T, d *Directory) {
		runner := &fakeRunner{}
		supervise(t, d, runner)
		start(t, d, wanted())
		other := wanted()
		other.Devices = []string{"GPU-c"}
		other.MemoryBytes = nil
		if err := write(d.root.wish("gpu-0-mps"), other); err != nil { // a stop that was given up
			t.Fatal(err)
		}
		start(t, d, other)
		if got := status(t, d, "gpu-0-mps"); !got.Daemon.equal(other) || runner.running() != 1 || runner.started() != 2 {
			t.Errorf("%d daemons run; status is %+v", runner.running(), got)
		}
	})
}

func TestWishesThatCannotBeRead(t *testing.T) {
	for name, content := range map[string]string{
		"cut off":               `{"id":"gpu-0-mps","dev`,
		"of a newer version":    `{"id":"gpu-0-mps","devices":["GPU-a"],"nice":true}`,
		"of another daemon":     `{"id":"gpu-1-mps","devices":["GPU-a"]}`,
		"without a device":      `{"id":"gpu-0-mps"}`,
		"with more than it":     `{"id":"gpu-0-mps","devices":["GPU-a"]}{}`,
		"bigger than any":       `{"id":"` + strings.Repeat(" ", maxFile) + `"}`,
		"with a list as a UUID": `{"id":"gpu-0-mps","devices":["GPU-a,GPU-b"]}`,
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, d *Directory) {
				runner := &fakeRunner{}
				supervise(t, d, runner)
				if err := os.WriteFile(d.root.wish("gpu-0-mps"), []byte(content), 0o600); err != nil {
					t.Fatal(err)
				}
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

func TestFilesThatAreNoWishes(t *testing.T) {
	bubble(t, func(t *testing.T, d *Directory) {
		runner := &fakeRunner{}
		supervise(t, d, runner)
		for _, name := range []string{".gpu-0-mps.json-1.tmp", "README", "shm.json", "..json", "a b.json"} {
			if err := os.WriteFile(filepath.Join(d.root.wishes(), name), []byte("{}"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(2 * resync)
		if known, err := d.Statuses(); err != nil || len(known) != 0 || runner.started() != 0 {
			t.Errorf("got %+v, %v", known, err)
		}
	})
}

func TestLogsAreBounded(t *testing.T) {
	bubble(t, func(t *testing.T, d *Directory) {
		supervise(t, d, &fakeRunner{})
		start(t, d, wanted())
		log := d.root.place("gpu-0-mps").Log()
		for name, size := range map[string]int64{"server.log": maxLog + 1, "control.log": maxLog} {
			path := filepath.Join(log, name)
			if err := os.WriteFile(path, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			if err := os.Truncate(path, size); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(2 * resync)
		for name, want := range map[string]int64{"server.log": 0, "control.log": maxLog} {
			if info, err := os.Stat(filepath.Join(log, name)); err != nil || info.Size() != want {
				t.Errorf("%s has %d bytes, want %d: %v", name, info.Size(), want, err)
			}
		}
	})
}

// hangingRunner has processes of which a place cannot be freed.
type hangingRunner struct{ fakeRunner }

func (r *hangingRunner) Sweep(ctx context.Context, _ Place) error {
	<-ctx.Done()
	return context.Cause(ctx)
}

// A driver that hangs keeps processes that were killed. It must not keep the
// supervisor, which has other daemons.
func TestProcessesThatCannotBeKilledHoldNobodyUp(t *testing.T) {
	bubble(t, func(t *testing.T, d *Directory) {
		for n := range 56 { // partitions of 8 GPUs
			id := fmt.Sprintf("gpu-1-mig-%d-mps", n)
			if err := write(d.root.status(id), Status{Daemon: Daemon{ID: id}, State: Stopping}); err != nil {
				t.Fatal(err)
			}
		}
		s := NewSupervisor(d.Path(), &hangingRunner{})
		if err := s.makeDirectories(); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- s.supervise(ctx, nil) }()
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

// Who stops a daemon destroys its partition next, or gives its GPU to others.
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

// As when the file system was full, or somebody cleaned up by hand.
func TestAStatusThatIsLostIsWrittenAgain(t *testing.T) {
	for name, lose := range map[string]func(path string) error{
		"removed": os.Remove,
		"damaged": func(path string) error { return os.WriteFile(path, []byte(`{"daemon"`), 0o600) },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, d *Directory) {
				runner := &fakeRunner{}
				supervise(t, d, runner)
				start(t, d, wanted())
				if err := lose(d.root.status("gpu-0-mps")); err != nil {
					t.Fatal(err)
				}
				ctx, cancel := context.WithTimeout(t.Context(), 2*resync)
				defer cancel()
				if err := d.Start(ctx, wanted()); err != nil || runner.started() != 1 {
					t.Errorf("started %d times: %v", runner.started(), err)
				}
			})
		})
	}
}

// Every user of the node can make files in the directory of logs.
func TestLogsThatAreNoneAreNotFollowed(t *testing.T) {
	for name, plant := range map[string]func(secret, log string) error{
		"a link": os.Symlink,
		"a pipe": func(_, log string) error { return syscall.Mkfifo(log, 0o666) },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, d *Directory) {
				secret := filepath.Join(t.TempDir(), "secret")
				if err := os.WriteFile(secret, []byte(strings.Repeat("a secret\n", maxLog/9+1)), 0o600); err != nil {
					t.Fatal(err)
				}
				runner := &fakeRunner{}
				supervise(t, d, runner)
				start(t, d, wanted())
				if err := plant(secret, filepath.Join(d.root.place("gpu-0-mps").Log(), "control.log")); err != nil {
					t.Fatal(err)
				}
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

// Files in it are memory of the node, which nobody else gives back before a reboot.
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

// A process that is killed while it writes a file leaves its draft, in memory until
// the node is rebooted.
func TestDraftsOfThoseWhoWereKilled(t *testing.T) {
	bubble(t, func(t *testing.T, d *Directory) {
		wish, status := d.root.wish("gpu-0-mps"), d.root.status("gpu-0-mps")
		leave := func(path string) {
			t.Helper()
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			draft, err := os.CreateTemp(filepath.Dir(path), draftPrefix(path)+"*"+tempSuffix)
			if err != nil {
				t.Fatal(err)
			}
			if err := draft.Close(); err != nil {
				t.Fatal(err)
			}
		}
		leave(wish)
		stop(t, d, "gpu-0-mps") // without a supervisor
		expectNothing(t, d)
		leave(status)
		supervise(t, d, &fakeRunner{})
		start(t, d, wanted())
		leave(wish)
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

// Who is killed while a daemon is started leaves a place, which only the next
// supervisor may remove, and it finds places by their statuses.
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
			t.Error("nobody looked")
		}
	})
}
