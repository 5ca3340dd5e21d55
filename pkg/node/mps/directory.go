package mps

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/mica-gpu/mica/pkg/node/lock"
)

// supervisorWait is how long a supervisor that is away is waited for, as while its
// container is started again.
const supervisorWait = 5 * time.Second

// looks are for waiting for the supervisor, whose answers are files: the first is
// soon, as a daemon that is asked for takes some 100 ms.
var looks = wait.Backoff{Duration: 5 * time.Millisecond, Factor: 2, Cap: 100 * time.Millisecond, Steps: math.MaxInt}

// errNoSupervisor: nobody starts daemons on this node.
var errNoSupervisor = errors.New("no MPS supervisor runs on this node")

// ErrOther: a daemon of the name is wanted that is not the same.
var ErrOther = errors.New("there is one of that name already")

const noSupervisorAdvice = "look at the pods of the chart's DaemonSet with the component mps, or install the chart with mps.enabled=true"

// Directory is how those who need control daemons ask for them. It is safe for
// concurrent use, also by several processes, as long as nobody starts and stops the
// same daemon at once.
type Directory struct{ root root }

// NewDirectory has no effects. Root must be the same path on the host.
func NewDirectory(path string) *Directory { return &Directory{root: root(filepath.Clean(path))} }

// Path is where the directory is.
func (d *Directory) Path() string { return string(d.root) }

// Start makes sure that the daemon is wanted, and returns when clients can connect
// or with the reason why they cannot. After an error, it is still wanted.
func (d *Directory) Start(ctx context.Context, daemon Daemon) error {
	if err := d.want(daemon); err != nil {
		return err
	}
	last := "the supervisor has not begun with it"
	away := patience{limit: supervisorWait}
	err := poll(ctx, func() (bool, error) {
		supervised, err := d.supervised()
		if err != nil {
			return false, err
		}
		if !supervised {
			last = errNoSupervisor.Error()
			if away.exhausted() {
				return false, fmt.Errorf("%w: %s", errNoSupervisor, noSupervisorAdvice)
			}
			return false, nil
		}
		away.reset()
		status, err := d.root.readStatus(daemon.ID)
		switch {
		case err != nil || status == nil || status.State == Stopping:
			return false, err
		case status.State == Failed && (status.Daemon.equal(daemon) || status.Daemon.Devices == nil):
			return false, errors.New(status.Reason)
		case status.Daemon.equal(daemon) && status.State == Ready:
			return true, nil
		}
		last = strings.TrimSuffix("it is "+string(status.State)+": "+status.Reason, ": ")
		return false, nil
	})
	if err != nil && ctx.Err() != nil {
		err = fmt.Errorf("%w: %s", err, last)
	}
	if err != nil {
		return fmt.Errorf("start MPS control daemon %s for %s: %w", daemon.ID, strings.Join(daemon.Devices, ", "), err)
	}
	return nil
}

// want writes down what is wanted, unless it is there already.
func (d *Directory) want(daemon Daemon) error {
	if err := daemon.check(); err != nil {
		return err
	}
	if excess := len(d.root.place(daemon.ID).Pipe()) + longestSocket - maxSocketPath; excess > 0 {
		return fmt.Errorf("the sockets of MPS control daemon %s would have paths %d bytes longer than the kernel allows: choose a shorter --mps-root", daemon.ID, excess)
	}
	wish, err := d.root.readWish(daemon.ID)
	var newer Daemon
	switch {
	case errors.Is(err, errDamaged) && read(d.root.wish(daemon.ID), &newer, false) == nil && newer.ID == daemon.ID && newer.check() == nil:
		// To write it anew would end the daemon, and the work of its clients.
		return fmt.Errorf("%w: the daemon that it asks for is used by claims: upgrade this plugin, or end the pods of those claims", err)
	case wish != nil && wish.equal(daemon):
		return nil
	case wish != nil:
		return fmt.Errorf("start MPS control daemon %s for %s: %w: it serves %s with other limits or devices: it ends with the last claim that uses it",
			daemon.ID, strings.Join(daemon.Devices, ", "), ErrOther, strings.Join(wish.Devices, ", "))
	case err != nil && !errors.Is(err, errDamaged):
		return err
	}
	if err := write(d.root.wish(daemon.ID), daemon); err != nil {
		return fmt.Errorf("ask for MPS control daemon %s: %w: check that --mps-root is writable and not full", daemon.ID, err)
	}
	return nil
}

// Stop makes sure that the daemon is not wanted, and returns when it has ended and
// nothing of it is left. One that nobody knows is stopped.
func (d *Directory) Stop(ctx context.Context, id string) error {
	if err := checkID(id); err != nil {
		return err
	}
	wish := d.root.wish(id)
	err := errors.Join(remove(wish), removeDrafts(d.root.wishes(), draftPrefix(wish)))
	if err == nil {
		err = poll(ctx, func() (bool, error) {
			if d.gone(id) {
				return true, nil
			}
			return false, d.clean(id)
		})
	}
	if err != nil && ctx.Err() != nil {
		err = fmt.Errorf("%w: the supervisor has not removed it yet: look at its log", err)
	}
	if err != nil {
		return fmt.Errorf("stop MPS control daemon %s: %w", id, err)
	}
	return nil
}

func (d *Directory) gone(id string) bool {
	for _, path := range []string{d.root.status(id), string(d.root.place(id))} {
		if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
			return false
		}
	}
	return true
}

// clean removes what a supervisor has left that does not run any more: its daemons
// died with it. No supervisor can start meanwhile.
func (d *Directory) clean(id string) error {
	release, held, err := tryLock(d.root.lock(), lock.Exclusive)
	if err != nil || !held {
		return err
	}
	defer release()
	return d.root.forget(id)
}

// forget removes the place and the status of a daemon that does not run. The status
// goes last: what has none is not looked for any more.
func (r root) forget(id string) error {
	if err := os.RemoveAll(string(r.place(id))); err != nil {
		return err
	}
	return remove(r.status(id))
}

// Statuses are those of all daemons that have one.
func (d *Directory) Statuses() ([]Status, error) {
	known, err := ids(d.root.statuses())
	if err != nil {
		return nil, err
	}
	var statuses []Status
	for _, id := range known {
		status, err := d.root.readStatus(id)
		if err != nil {
			return nil, err
		}
		if status != nil && status.Daemon.ID == id {
			statuses = append(statuses, *status)
		}
	}
	return statuses, nil
}

// Watch tells, until ctx ends, that statuses may have changed.
func (d *Directory) Watch(ctx context.Context) (<-chan struct{}, error) {
	return watch(ctx, d.root.statuses())
}

// restartMark begins the names of the files that say which restart was told.
const restartMark = "restart-"

// Announce is true for the first who asks, of all processes of the node, so that
// each restart of a daemon is told once.
func (d *Directory) Announce(status Status) (first bool, err error) {
	mark := d.root.mark(status.Daemon.ID, status.Restarts)
	file, err := os.OpenFile(mark, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if errors.Is(err, fs.ErrExist) || errors.Is(err, fs.ErrNotExist) { // or the daemon is stopped
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("note that the restart of MPS control daemon %s is told: %w", status.Daemon.ID, err)
	}
	// A process that has read the status before this restart was counted still needs
	// the mark before.
	return true, errors.Join(file.Close(), remove(d.root.mark(status.Daemon.ID, status.Restarts-2)))
}

func (r root) mark(id string, restart int) string {
	return filepath.Join(string(r.place(id)), restartMark+strconv.Itoa(restart))
}

// Announced tells whether somebody has announced the restart.
func (d *Directory) Announced(status Status) bool {
	_, err := os.Lstat(d.root.mark(status.Daemon.ID, status.Restarts))
	return err == nil
}

// supervised tells whether a supervisor runs, and no status is an earlier one's.
func (d *Directory) supervised() (bool, error) {
	release, free, err := tryLock(d.root.serving(), lock.Shared)
	if err != nil {
		return false, err
	}
	if free {
		release()
	}
	return !free, nil
}

// tryLock does not wait. In a root that nobody has made, there is nothing to lock.
func tryLock(path string, mode lock.Mode) (release func(), held bool, err error) {
	file, err := os.OpenFile(path, os.O_RDONLY|os.O_CREATE, 0o600)
	if errors.Is(err, fs.ErrNotExist) {
		return func() {}, true, nil
	}
	if err != nil {
		return nil, false, fmt.Errorf("look for the MPS supervisor: %w", err)
	}
	now, cancel := context.WithCancel(context.Background())
	cancel()
	switch err := lock.File(now, file, mode); {
	case errors.Is(err, context.Canceled):
		_ = file.Close() // nothing was written
		return nil, false, nil
	case err != nil:
		_ = file.Close() // the other error counts
		return nil, false, fmt.Errorf("look for the MPS supervisor: %w", err)
	}
	return func() { _ = file.Close() }, true, nil // closing gives up the lock
}

// poll asks, less and less often, until it is done, an error or the end of ctx.
func poll(ctx context.Context, ask func() (done bool, err error)) error {
	err := looks.DelayFunc().Until(ctx, true, true, func(context.Context) (bool, error) { return ask() })
	if ctx.Err() != nil && wait.Interrupted(err) {
		return context.Cause(ctx)
	}
	return err
}

// patience measures how long something lasts without a break.
type patience struct {
	limit time.Duration
	since time.Time
}

func (p *patience) exhausted() bool {
	if p.since.IsZero() {
		p.since = time.Now()
	}
	return time.Since(p.since) >= p.limit
}

func (p *patience) reset() { p.since = time.Time{} }
