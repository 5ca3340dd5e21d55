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
	// resync is how often the supervisor looks without having been told to.
	resync = 5 * time.Second
	// hung is after how long without a look the supervisor is of no use any more.
	hung      = 10 * resync
	sweepWait = 5 * time.Second
	// maxLog bounds each log file of a daemon. It is on a tmpfs, that is in memory.
	maxLog = 4 << 20
)

// Runner runs the programs of MPS.
type Runner interface {
	// Run starts a control daemon, which ends no later than this process does.
	// SingleUser is for daemons that are not to serve several users at once, and
	// for installations that cannot.
	Run(daemon Daemon, place Place, singleUser bool) (Process, error)
	// Ask sends one command to the control daemon of the place.
	Ask(ctx context.Context, place Place, command string) (answer string, err error)
	// Sweep kills the control daemon of the place and its servers, or those of all
	// places in a directory, and returns when there are none.
	Sweep(ctx context.Context, place Place) error
}

// Process is a control daemon that was started.
type Process interface {
	// Ended is closed when it has ended.
	Ended() <-chan struct{}
	// End says how it ended, once it has.
	End() string
	// Terminate asks it to end.
	Terminate()
}

// Supervisor keeps the daemons running that are wanted, and ends the others.
type Supervisor struct {
	root    root
	runner  Runner
	share   func(paths ...string) error // lets containers use directories; a test has its own
	watch   func(ctx context.Context, dir string) (<-chan struct{}, error)
	keepers map[string]*keeper
	ended   chan *keeper
	// used: there may be something in the shared memory.
	used bool
	// looked is when it last did what it is for, in nanoseconds; 0 until it
	// supervises.
	looked atomic.Int64
}

// NewSupervisor has no effects. Path must be the same on the host.
func NewSupervisor(path string, runner Runner) *Supervisor {
	return &Supervisor{root: root(filepath.Clean(path)), runner: runner, share: selinux.Share, watch: watch, keepers: map[string]*keeper{}, ended: make(chan *keeper)}
}

// Alive tells whether the supervisor supervises, which it does not while another
// one does, or hangs.
func (s *Supervisor) Alive() (supervising, hanging bool) {
	looked := s.looked.Load()
	return looked != 0, looked != 0 && time.Since(time.Unix(0, looked)) > hung
}

// Run supervises until ctx ends, and then ends all daemons, which stay wanted.
func (s *Supervisor) Run(ctx context.Context) error {
	if err := s.makeDirectories(); err != nil {
		return err
	}
	if stays, err := outlivesReboot(string(s.root)); err != nil || stays {
		klog.FromContext(ctx).Info("The MPS directory survives a reboot and the daemons do not: put it on a tmpfs such as /run", "directory", string(s.root), "err", err)
	}
	changes, err := s.watch(ctx, s.root.wishes())
	if err != nil {
		klog.FromContext(ctx).Error(err, "Cannot watch the requests for MPS control daemons; looking from time to time", "every", resync)
	}
	return s.supervise(ctx, changes)
}

func (s *Supervisor) makeDirectories() error {
	for dir, mode := range map[string]fs.FileMode{
		string(s.root):    0o755, // servers of users who are not root pass it
		s.root.wishes():   0o755,
		s.root.statuses(): 0o755,
		s.root.shm():      0o777 | fs.ModeSticky,
	} {
		err := os.MkdirAll(dir, 0o755)
		if err == nil {
			err = os.Chmod(dir, mode) // the process's umask does not apply to what clients use
		}
		if err != nil {
			return fmt.Errorf("make the directories of MPS: %w: choose a writable --mps-root", err)
		}
	}
	return s.share(s.root.shm())
}

// hold waits for a lock of the root.
func hold(ctx context.Context, path string) (release func(), err error) {
	file, err := os.OpenFile(path, os.O_RDONLY|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock out other MPS supervisors: %w", err)
	}
	if err := lock.File(ctx, file, lock.Exclusive); err != nil {
		_ = file.Close() // the other error counts
		return nil, fmt.Errorf("lock out other MPS supervisors: %w", err)
	}
	return func() { _ = file.Close() }, nil // closing gives up the lock
}

func (s *Supervisor) supervise(ctx context.Context, changes <-chan struct{}) error {
	klog.FromContext(ctx).V(2).Info("Waiting for another MPS supervisor on this node to end", "lock", s.root.lock())
	release, err := hold(ctx, s.root.lock())
	if err != nil {
		return err
	}
	defer release()
	if err := s.inherit(); err != nil {
		return err
	}
	stopServing, err := hold(ctx, s.root.serving())
	if err != nil {
		return err
	}
	defer stopServing()
	klog.FromContext(ctx).Info("Supervising MPS control daemons", "directory", string(s.root))
	s.loop(ctx, changes)
	return nil
}

// loop returns when all daemons have ended.
func (s *Supervisor) loop(ctx context.Context, changes <-chan struct{}) {
	// An earlier supervisor's control daemons died with it, but maybe not their servers,
	// of which nobody may know any more.
	if err := s.sweep(ctx, Place(s.root)); err != nil && ctx.Err() == nil {
		klog.FromContext(ctx).Error(err, "Cannot end all processes of an earlier supervisor")
	}
	for ctx.Err() == nil {
		s.look(ctx)
		s.looked.Store(time.Now().UnixNano())
		select {
		case <-ctx.Done():
		case <-changes:
		case k := <-s.ended:
			delete(s.keepers, k.daemon.ID)
		case <-time.After(resync):
		}
	}
	for len(s.keepers) > 0 {
		k := <-s.ended
		delete(s.keepers, k.daemon.ID)
	}
}

// inherit marks what an earlier supervisor has left: its daemons died with it, and
// so did the contexts of their clients.
func (s *Supervisor) inherit() error {
	if err := removeDrafts(s.root.statuses(), "."); err != nil {
		return fmt.Errorf("remove what an earlier MPS supervisor was writing: %w", err)
	}
	left, err := ids(s.root.statuses())
	if err != nil {
		return err
	}
	for _, id := range left {
		status, err := s.root.readStatus(id)
		if err != nil || status == nil {
			continue // what is wanted is started, with a new status
		}
		if status.State == Ready {
			status.Restarts++
		}
		status.State, status.Reason = Starting, "the MPS supervisor of this node was started anew"
		if err := write(s.root.status(id), *status); err != nil {
			return fmt.Errorf("mark that MPS control daemon %s died with its supervisor: %w", id, err)
		}
	}
	return nil
}

// look compares what is wanted with what there is.
func (s *Supervisor) look(ctx context.Context) {
	wanted, err := ids(s.root.wishes())
	if err != nil {
		klog.FromContext(ctx).Error(err, "Cannot list the requested MPS control daemons; keeping those that run")
		return
	}
	for _, id := range wanted {
		s.lookAt(ctx, id)
	}
	for id, k := range s.keepers {
		if !slices.Contains(wanted, id) {
			k.reconsider(ctx)
		}
		k.set(ctx, func(*Status) {}) // whose file others may have lost, or that could not be written
		boundLogs(ctx, s.root.place(id))
	}
	s.removeRemains(ctx, wanted)
	// Without a daemon, the containers that had the shared memory have ended, and what
	// they have not removed takes the node's.
	if s.used && len(wanted) == 0 && len(s.keepers) == 0 {
		err := clearDir(s.root.shm())
		if err != nil {
			klog.FromContext(ctx).Error(err, "Cannot clear the shared memory of ended clients; retrying")
		}
		s.used = err != nil
	}
}

// clearDir removes what is in a directory that containers may have mounted.
func clearDir(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	var failures []error
	for _, entry := range entries {
		failures = append(failures, os.RemoveAll(filepath.Join(dir, entry.Name())))
	}
	return errors.Join(failures...)
}

func (s *Supervisor) lookAt(ctx context.Context, id string) {
	wish, err := s.root.readWish(id)
	k := s.keepers[id]
	switch {
	case err != nil && k != nil:
		klog.FromContext(ctx).Error(err, "Cannot read the request for an MPS control daemon; keeping it as it runs")
	case err != nil:
		s.publish(ctx, Status{Daemon: Daemon{ID: id}, State: Failed, Reason: err.Error()})
	case wish == nil: // removed since
	case k == nil:
		s.keep(ctx, *wish)
	case !wish.equal(k.daemon):
		k.reconsider(ctx)
	}
}

// keep starts a keeper, which goes on where the daemon's last one was.
func (s *Supervisor) keep(ctx context.Context, wish Daemon) {
	restarts := 0
	if status, err := s.root.readStatus(wish.ID); err == nil && status != nil {
		restarts = status.Restarts
	}
	logger := klog.LoggerWithValues(klog.FromContext(ctx), "daemon", wish.ID)
	ctx, cancel := context.WithCancelCause(klog.NewContext(ctx, logger))
	k := &keeper{
		supervisor: s,
		daemon:     wish,
		place:      s.root.place(wish.ID),
		cancel:     cancel,
		status:     Status{Daemon: wish, State: Starting, Restarts: restarts},
	}
	s.keepers[wish.ID] = k
	s.used = true
	// Before there is anything else of it: what has a status is found by the next
	// supervisor, should nobody want the daemon by then.
	s.publish(ctx, k.status)
	go func() {
		defer cancel(nil)
		k.run(ctx)
		s.ended <- k
	}()
}

// removeRemains removes what is left of daemons that nobody wants or keeps.
func (s *Supervisor) removeRemains(ctx context.Context, wanted []string) {
	known, err := ids(s.root.statuses())
	if err != nil {
		klog.FromContext(ctx).Error(err, "Cannot list the files of ended daemons; retrying")
		return
	}
	remains := slices.DeleteFunc(known, func(id string) bool { return slices.Contains(wanted, id) || s.keepers[id] != nil })
	for _, id := range remains {
		// All of them together must not hold up the daemons that are wanted.
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

// sweep bounds the wait for killed processes, which a driver that hangs keeps.
func (s *Supervisor) sweep(ctx context.Context, place Place) error {
	ctx, cancel := context.WithTimeout(ctx, sweepWait)
	defer cancel()
	return s.runner.Sweep(ctx, place)
}

func (s *Supervisor) publish(ctx context.Context, status Status) {
	if before, err := s.root.readStatus(status.Daemon.ID); err == nil && before != nil && before.same(status) {
		return
	}
	if err := write(s.root.status(status.Daemon.ID), status); err != nil {
		klog.FromContext(ctx).Error(err, "Cannot write the status of a daemon; claims wait for it", "daemon", status.Daemon.ID)
	}
}

// boundLogs empties log files that have become too big. The daemon appends.
func boundLogs(ctx context.Context, place Place) {
	entries, err := os.ReadDir(place.Log())
	if err != nil {
		return // it is made when the daemon starts
	}
	for _, entry := range entries {
		path := filepath.Join(place.Log(), entry.Name())
		if err := boundLog(path); err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, errDamaged) {
			klog.FromContext(ctx).Error(err, "Cannot empty a log file", "log", path)
		}
	}
}

func boundLog(path string) error {
	file, info, err := openRegular(path, os.O_WRONLY)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }() // nothing is written through it
	if info.Size() <= maxLog {
		return nil
	}
	return file.Truncate(0)
}
