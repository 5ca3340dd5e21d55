package mps

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	cdispec "tags.cncf.io/container-device-interface/specs-go"

	"github.com/mica-gpu/mica/pkg/node/lock"
)

// supervisorWait is how long Start waits for a supervisor, for example while kubelet
// restarts its container.
const supervisorWait = 5 * time.Second

// polls begin soon, as a daemon starts within some 100 ms.
var polls = wait.Backoff{Duration: 5 * time.Millisecond, Factor: 2, Cap: 100 * time.Millisecond, Steps: math.MaxInt}

var errNoSupervisor = errors.New("no MPS supervisor runs on this node: look at the pods of the chart's DaemonSet with the component mps, or install the chart with mps.enabled=true")

// ErrOther: a daemon of this name with other settings is desired already.
var ErrOther = errors.New("there is one of that name already")

// Directory starts and stops control daemons. It is safe for concurrent use, also by
// several processes, if no two of them start or stop the same daemon at once.
type Directory struct{ root root }

// NewDirectory has no effects. path must be the same on the host.
func NewDirectory(path string) *Directory { return &Directory{root: root(filepath.Clean(path))} }

// Start ensures that the daemon is desired. It returns when clients can connect, or why
// they cannot. After an error, the daemon may still be desired.
func (d *Directory) Start(ctx context.Context, daemon Daemon) error {
	err := d.desire(daemon)
	if err == nil {
		err = d.awaitReady(ctx, daemon)
	}
	if err != nil {
		return fmt.Errorf("start MPS control daemon %s for %s: %w", daemon.ID, strings.Join(daemon.Devices, ", "), err)
	}
	return nil
}

// desire writes the desired state, unless it is there already.
func (d *Directory) desire(daemon Daemon) error {
	if err := daemon.check(); err != nil {
		return err
	}
	if excess := len(d.root.place(daemon.ID).Pipe()) + longestSocket - maxSocketPath; excess > 0 {
		return fmt.Errorf("the paths of its sockets would be %d bytes longer than the kernel allows: choose a shorter --mps-root", excess)
	}
	current, err := d.root.readSpec(daemon.ID)
	switch {
	case errors.Is(err, errDamaged): // to replace it would end a daemon that may have clients
		return fmt.Errorf("%w: %w: upgrade this plugin, or end the pods that use the daemon", ErrOther, err)
	case err != nil:
		return err
	case current != nil && current.equal(daemon):
		return nil
	case current != nil:
		return fmt.Errorf("%w: it serves %s with other limits or devices: it ends with the last claim that uses it", ErrOther, strings.Join(current.Devices, ", "))
	}
	if err = os.MkdirAll(d.root.specs(), 0o755); err == nil {
		err = write(d.root.spec(daemon.ID), daemon)
	}
	if err != nil {
		return fmt.Errorf("%w: check that --mps-root is writable and not full", err)
	}
	return nil
}

func (d *Directory) awaitReady(ctx context.Context, daemon Daemon) error {
	last := "the supervisor has not begun with it"
	var away time.Time // since when no supervisor runs
	err := poll(ctx, func() (bool, error) {
		supervised, err := d.supervised()
		if err != nil {
			return false, err
		}
		if !supervised {
			if away.IsZero() {
				away = time.Now()
			}
			last = "no MPS supervisor runs on this node"
			if time.Since(away) >= supervisorWait {
				return false, errNoSupervisor
			}
			return false, nil
		}
		away = time.Time{}
		status, err := d.root.readStatus(daemon.ID)
		if err != nil || status == nil || status.State == Stopping {
			return false, err
		}
		same := status.Daemon.equal(daemon)
		if status.State == Failed && (same || status.Daemon.Devices == nil) {
			return false, errors.New(status.Reason)
		}
		last = strings.TrimSuffix("it is "+string(status.State)+": "+status.Reason, ": ")
		return same && status.State == Ready, nil
	})
	if err != nil && ctx.Err() != nil {
		return fmt.Errorf("%w: %s", err, last)
	}
	return err
}

// Stop ensures that the daemon is not desired. It returns when the daemon has ended and its
// files are removed. An unknown daemon is stopped.
func (d *Directory) Stop(ctx context.Context, id string) error {
	if err := checkID(id); err != nil {
		return err
	}
	err := remove(d.root.spec(id))
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
	_, status := os.Lstat(d.root.status(id))
	_, place := os.Lstat(string(d.root.place(id)))
	return errors.Is(status, fs.ErrNotExist) && errors.Is(place, fs.ErrNotExist)
}

// clean removes the files of a daemon that ended with its supervisor. The lock keeps another
// supervisor from starting meanwhile.
func (d *Directory) clean(id string) error {
	release, held, err := d.root.tryLock(lockFile, lock.Exclusive)
	if err != nil || !held {
		return err
	}
	defer release()
	return d.root.forget(id)
}

// supervised reports whether a supervisor runs and every status is its own.
func (d *Directory) supervised() (bool, error) {
	release, free, err := d.root.tryLock(servingFile, lock.Shared)
	if free {
		release()
	}
	return err == nil && !free, err
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

// Announced reports whether SetAnnounced was called for the daemon's last restart.
func (d *Directory) Announced(status Status) bool {
	var restarts int
	return read(d.announced(status), &restarts, true) == nil && restarts >= status.Restarts
}

// SetAnnounced records that the pods have an Event about the daemon's last restart.
func (d *Directory) SetAnnounced(status Status) error {
	err := write(d.announced(status), status.Restarts)
	if err != nil && !errors.Is(err, fs.ErrNotExist) { // the daemon is stopped
		return fmt.Errorf("record that the restart of MPS control daemon %s is announced: %w", status.Daemon.ID, err)
	}
	return nil
}

func (d *Directory) announced(status Status) string {
	return filepath.Join(string(d.root.place(status.Daemon.ID)), "announced")
}

// Where a client finds its daemon, in its container.
const (
	clientPipe = "/tmp/nvidia-mps" // CUDA's default
	clientShm  = "/dev/shm"
)

// Edits make a container the client of a daemon. A container can be the client of one only.
func (d *Directory) Edits(id string, limits Limits) cdispec.ContainerEdits {
	edits := cdispec.ContainerEdits{
		Env: []string{"CUDA_MPS_PIPE_DIRECTORY=" + clientPipe},
		Mounts: []*cdispec.Mount{
			// Clients only connect. If root of a container could make files here, it could put a
			// link where the daemon, as root of the node, makes its lock.
			{HostPath: d.root.place(id).Pipe(), ContainerPath: clientPipe, Options: []string{"ro", "bind", "nosuid", "nodev", "noexec"}},
			// Server and clients hand each other memory by name.
			{HostPath: d.root.shm(), ContainerPath: clientShm, Options: []string{"rw", "bind", "nosuid", "nodev", "noexec"}},
		},
	}
	if limit := limits.MemoryBytes / mebibyte; limit > 0 {
		edits.Env = append(edits.Env, fmt.Sprintf("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=%dM", limit))
	}
	if limits.Cores > 0 {
		edits.Env = append(edits.Env, fmt.Sprintf("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=%d", limits.Cores))
	}
	return edits
}

// poll asks less and less often, until done, an error or the end of ctx.
func poll(ctx context.Context, ask func() (done bool, err error)) error {
	err := polls.DelayFunc().Until(ctx, true, true, func(context.Context) (bool, error) { return ask() })
	if ctx.Err() != nil && wait.Interrupted(err) {
		return context.Cause(ctx)
	}
	return err
}
