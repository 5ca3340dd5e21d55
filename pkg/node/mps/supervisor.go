package mps

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"time"

	"k8s.io/klog/v2"

	"github.com/mica-gpu/mica/pkg/node/lock"
	"github.com/mica-gpu/mica/pkg/node/selinux"
)

const (
	// tick is how often the supervisor looks for changes of the desired state, and resync
	// how often it compares everything.
	tick   = 100 * time.Millisecond
	resync = 5 * time.Second
	// recent is how long a change of the desired state is looked at again: two changes can
	// have the same time.
	recent = time.Second
	// hung is how long a working supervisor takes at most between two looks.
	hung      = 10 * resync
	sweepWait = 5 * time.Second
	// maxLog bounds each log file of a daemon. It is on a tmpfs, that is in memory.
	maxLog = 4 << 20
)

// Runner runs the programs of MPS.
type Runner interface {
	// Run starts a control daemon, which ends no later than this process does. singleUser
	// is for daemons, or installed programs, that do not serve several users at once.
	Run(daemon Daemon, place Place, singleUser bool) (Process, error)
	// Ask sends one command to the control daemon of the place.
	Ask(ctx context.Context, place Place, command string) (answer string, err error)
	// Sweep kills the control daemon of the place and its servers, or those of all places
	// in a directory, and returns when there are none.
	Sweep(ctx context.Context, place Place) error
}

// Process is a control daemon that was started.
type Process interface {
	// Ended is closed when it has ended. Then End describes how.
	Ended() <-chan struct{}
	End() string
	// Terminate sends SIGTERM.
	Terminate()
}

// Supervisor runs the desired daemons and ends all others.
type Supervisor struct {
	root    root
	runner  Runner
	share   func(paths ...string) error // lets containers use directories; tests replace it
	keepers map[string]*keeper
	ended   chan *keeper
	// shmUsed: there may be files in the shared memory.
	shmUsed bool
	// looked is when it last looked, in nanoseconds; 0 until it supervises.
	looked atomic.Int64
}

// NewSupervisor has no effects. path must be the same on the host.
func NewSupervisor(path string, runner Runner) *Supervisor {
	return &Supervisor{root: root(filepath.Clean(path)), runner: runner, share: selinux.Share, keepers: map[string]*keeper{}, ended: make(chan *keeper)}
}

// Alive reports whether the supervisor supervises, which it does not while another one does,
// and whether it hangs.
func (s *Supervisor) Alive() (supervising, hanging bool) {
	looked := s.looked.Load()
	return looked != 0, looked != 0 && time.Since(time.Unix(0, looked)) > hung
}

// Run supervises until ctx ends, and then ends all daemons, which stay desired.
func (s *Supervisor) Run(ctx context.Context) error {
	if err := s.makeDirectories(); err != nil {
		return err
	}
	klog.FromContext(ctx).V(2).Info("Waiting for another MPS supervisor on this node to end", "lock", lockFile)
	release, err := s.root.lock(ctx, lockFile, lock.Exclusive)
	if err != nil {
		return err
	}
	defer release()
	if err := s.inherit(); err != nil {
		return err
	}
	stopServing, err := s.root.lock(ctx, servingFile, lock.Exclusive)
	if err != nil {
		return err
	}
	defer stopServing()
	klog.FromContext(ctx).Info("Supervising MPS control daemons", "directory", string(s.root))
	s.loop(ctx)
	return nil
}

func (s *Supervisor) makeDirectories() error {
	for dir, mode := range map[string]fs.FileMode{
		string(s.root):    0o755, // servers of users who are not root pass it
		s.root.specs():    0o755,
		s.root.statuses(): 0o755,
		s.root.shm():      0o777 | fs.ModeSticky,
	} {
		if err := makeDirectory(dir, mode); err != nil {
			return fmt.Errorf("make the directories of MPS: %w: choose a writable --mps-root", err)
		}
	}
	return s.share(s.root.shm())
}

// makeDirectory sets the mode despite the umask, which would keep clients out.
func makeDirectory(dir string, mode fs.FileMode) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	return os.Chmod(dir, mode)
}

// inherit removes the drafts of an earlier supervisor and counts the restarts of the daemons that
// died with it, as the CUDA contexts of their clients did.
func (s *Supervisor) inherit() error {
	drafts, err := filepath.Glob(filepath.Join(s.root.statuses(), "*"+draftSuffix))
	if err != nil {
		return err
	}
	for _, draft := range drafts {
		if err := os.Remove(draft); err != nil {
			return fmt.Errorf("remove a draft of an earlier MPS supervisor: %w", err)
		}
	}
	left, err := ids(s.root.statuses())
	if err != nil {
		return err
	}
	for _, id := range left {
		status, err := s.root.readStatus(id)
		if err != nil || status == nil {
			continue // a desired daemon gets a new status
		}
		if status.State == Ready {
			status.Restarts++
		}
		status.State, status.Reason = Starting, "the MPS supervisor of this node has restarted"
		if err := write(s.root.status(id), *status); err != nil {
			return fmt.Errorf("record that MPS control daemon %s died with its supervisor: %w", id, err)
		}
	}
	return nil
}

// loop returns when all daemons have ended.
func (s *Supervisor) loop(ctx context.Context) {
	// Control daemons of an earlier supervisor died with it. Their servers may not have, and
	// may have no status.
	if err := s.sweep(ctx, Place(s.root)); err != nil && ctx.Err() == nil {
		klog.FromContext(ctx).Error(err, "Cannot end all processes of an earlier supervisor")
	}
	for changed := true; ctx.Err() == nil; {
		if changed || s.due() {
			s.look(ctx)
			s.looked.Store(time.Now().UnixNano())
		}
		changed = false
		select {
		case <-ctx.Done():
		case k := <-s.ended:
			delete(s.keepers, k.daemon.ID)
			changed = true // it may be desired again
		case <-time.After(tick):
		}
	}
	for len(s.keepers) > 0 {
		k := <-s.ended
		delete(s.keepers, k.daemon.ID)
	}
}

// due reports whether it is time to look: files are renamed into the directory and removed
// from it, which changes its time.
func (s *Supervisor) due() bool {
	info, err := os.Stat(s.root.specs())
	return err == nil && time.Since(info.ModTime()) < recent || time.Since(time.Unix(0, s.looked.Load())) >= resync
}

// look compares the desired daemons with those that run.
func (s *Supervisor) look(ctx context.Context) {
	desired, err := ids(s.root.specs())
	if err != nil {
		klog.FromContext(ctx).Error(err, "Cannot list the desired MPS control daemons; keeping those that run")
		return
	}
	for _, id := range desired {
		s.lookAt(ctx, id)
	}
	for id, k := range s.keepers {
		if !slices.Contains(desired, id) {
			k.reconsider(ctx)
		}
		k.set(ctx, func(*Status) {}) // its file may be lost, or was not written
		boundLogs(ctx, s.root.place(id))
	}
	s.removeRemains(ctx, desired)
	// Without a daemon, the containers that used the shared memory have ended. Their files take
	// the node's memory.
	if s.shmUsed && len(desired) == 0 && len(s.keepers) == 0 {
		err := clearDir(s.root.shm())
		if err != nil {
			klog.FromContext(ctx).Error(err, "Cannot clear the shared memory of ended clients; retrying")
		}
		s.shmUsed = err != nil
	}
}

func (s *Supervisor) lookAt(ctx context.Context, id string) {
	spec, err := s.root.readSpec(id)
	k := s.keepers[id]
	switch {
	case err != nil && k != nil:
		klog.FromContext(ctx).Error(err, "Cannot read the desired state of an MPS control daemon; keeping it as it runs")
	case err != nil:
		s.publish(ctx, Status{Daemon: Daemon{ID: id}, State: Failed, Reason: err.Error()})
	case spec == nil: // removed since
	case k == nil:
		s.keep(ctx, *spec)
	case !spec.equal(k.daemon):
		k.reconsider(ctx)
	}
}

// keep starts a keeper, which goes on counting the daemon's restarts.
func (s *Supervisor) keep(ctx context.Context, daemon Daemon) {
	restarts := 0
	if status, err := s.root.readStatus(daemon.ID); err == nil && status != nil {
		restarts = status.Restarts
	}
	logger := klog.LoggerWithValues(klog.FromContext(ctx), "daemon", daemon.ID)
	ctx, cancel := context.WithCancelCause(klog.NewContext(ctx, logger))
	k := &keeper{
		supervisor: s,
		daemon:     daemon,
		place:      s.root.place(daemon.ID),
		cancel:     cancel,
		status:     Status{Daemon: daemon, State: Starting, Restarts: restarts},
	}
	s.keepers[daemon.ID] = k
	s.shmUsed = true
	// The status is the first file of a daemon: the next supervisor finds remains by it.
	s.publish(ctx, k.status)
	go func() {
		defer cancel(nil)
		k.run(ctx)
		s.ended <- k
	}()
}

// removeRemains removes the files of daemons that are neither desired nor running.
func (s *Supervisor) removeRemains(ctx context.Context, desired []string) {
	known, err := ids(s.root.statuses())
	if err != nil {
		klog.FromContext(ctx).Error(err, "Cannot list the files of ended daemons; retrying")
		return
	}
	remains := slices.DeleteFunc(known, func(id string) bool { return slices.Contains(desired, id) || s.keepers[id] != nil })
	for _, id := range remains {
		// All of them together must not hold up the desired daemons.
		limited, cancel := context.WithTimeout(ctx, sweepWait/time.Duration(len(remains)))
		err := s.runner.Sweep(limited, s.root.place(id))
		cancel()
		if err == nil {
			err = s.root.forget(id)
		}
		if err != nil {
			klog.FromContext(ctx).Error(err, "Cannot remove the files of an ended daemon; retrying", "daemon", id)
		}
	}
}

// sweep bounds the wait for killed processes: a driver that hangs holds them.
func (s *Supervisor) sweep(ctx context.Context, place Place) error {
	ctx, cancel := context.WithTimeout(ctx, sweepWait)
	defer cancel()
	return s.runner.Sweep(ctx, place)
}

// publish writes a status that differs from the written one.
func (s *Supervisor) publish(ctx context.Context, status Status) {
	if before, err := s.root.readStatus(status.Daemon.ID); err == nil && before != nil && before.equal(status) {
		return
	}
	if err := write(s.root.status(status.Daemon.ID), status); err != nil {
		klog.FromContext(ctx).Error(err, "Cannot write the status of a daemon; claims wait for it", "daemon", status.Daemon.ID)
	}
}

// clearDir empties a directory that containers may have mounted.
func clearDir(dir string) error {
	entries, err := os.ReadDir(dir)
	failures := []error{err}
	for _, entry := range entries {
		failures = append(failures, os.RemoveAll(filepath.Join(dir, entry.Name())))
	}
	return errors.Join(failures...)
}

// boundLogs empties log files that have become too big. The daemon appends.
func boundLogs(ctx context.Context, place Place) {
	entries, err := os.ReadDir(place.Log())
	if err != nil {
		return // it is made when the daemon starts
	}
	for _, entry := range entries {
		path := filepath.Join(place.Log(), entry.Name())
		file, info, err := openRegular(path, os.O_WRONLY)
		if err == nil {
			if info.Size() > maxLog {
				err = file.Truncate(0)
			}
			_ = file.Close() // nothing is written through it
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, errDamaged) {
			klog.FromContext(ctx).Error(err, "Cannot empty a log file", "log", path)
		}
	}
}
