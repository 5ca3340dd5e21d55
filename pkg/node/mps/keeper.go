package mps

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"

	"github.com/mica-gpu/mica/pkg/node/driverroot"
)

const (
	// startTimeout is shorter than kubelet's timeout for a claim.
	startTimeout = 20 * time.Second
	askTimeout   = 5 * time.Second
	// attempts is how many starts in a row must fail for the state Failed.
	attempts = 3
	// stable is how long a daemon has to run for the waits to begin anew.
	stable = time.Minute

	// quitWait is for MPS itself to end, termWait for a signal. Together they are shorter
	// than a claim's timeout for a stop.
	quitWait = 4 * time.Second
	termWait = time.Second
)

// restarts are the waits before a daemon that has ended is started again.
var restarts = wait.Backoff{Duration: time.Second, Factor: 2, Cap: 30 * time.Second, Steps: math.MaxInt}

var errUndesired = errors.New("no claim uses the daemon any more")

// keeper runs one daemon for as long as it is desired.
type keeper struct {
	supervisor *Supervisor
	daemon     Daemon
	place      Place
	cancel     context.CancelCauseFunc

	mu     sync.Mutex
	status Status
	// stopping is set for good once the published status is Stopping.
	stopping bool
}

// run returns when ctx ends: the daemon is not desired, or the supervisor ends.
func (k *keeper) run(ctx context.Context) {
	backoff, failures := restarts, 0
	var process Process // nil while none runs
	for ctx.Err() == nil {
		var err error
		if process, err = k.start(ctx); err == nil {
			since := time.Now()
			failures = 0
			k.set(ctx, func(s *Status) { s.State, s.Reason = Ready, "" })
			select {
			case <-ctx.Done():
			case <-process.Ended():
				err = fmt.Errorf("it has ended: %s", k.howItEnded(process))
			}
			if time.Since(since) > stable {
				backoff = restarts
			}
		} else {
			failures++
		}
		if ctx.Err() != nil {
			break
		}
		k.fail(ctx, err, process != nil, failures)
		process = nil
		select {
		case <-ctx.Done():
		case <-time.After(backoff.Step()):
		}
	}
	k.end(ctx, process)
}

// fail publishes that the daemon does not run, and why.
func (k *keeper) fail(ctx context.Context, err error, lost bool, failures int) {
	klog.FromContext(ctx).Error(err, "MPS control daemon is not running", "clientsLostIt", lost, "failedStarts", failures)
	k.set(ctx, func(s *Status) {
		s.State, s.Reason = Starting, err.Error()
		if failures >= attempts {
			s.State = Failed
		}
		if lost {
			s.Restarts++
		}
	})
}

// start returns a daemon that clients can connect to.
func (k *keeper) start(ctx context.Context) (Process, error) {
	singleUser := false
	process, err := k.launch(ctx, !k.daemon.MultiUser)
	if k.daemon.MultiUser && errors.Is(err, errEndedEarly) { // as a program that does not know the option does
		if second, secondErr := k.launch(ctx, true); secondErr == nil {
			klog.FromContext(ctx).Info("The installed MPS control daemon serves one user at a time: processes of other users, as in containers with another runAsUser, wait", "reason", err.Error())
			process, err, singleUser = second, nil, true
		}
	}
	if err == nil {
		k.set(ctx, func(s *Status) { s.SingleUser = singleUser })
	}
	return process, err
}

var errEndedEarly = errors.New("it ended while it was started")

func (k *keeper) launch(ctx context.Context, singleUser bool) (Process, error) {
	if err := k.prepare(ctx); err != nil {
		return nil, err
	}
	process, err := k.supervisor.runner.Run(k.daemon, k.place, singleUser)
	if err != nil {
		return nil, err
	}
	if err := k.configure(ctx, process); err != nil {
		_ = k.quit(ctx, process) // the next start, or the end, ends what is left
		return nil, err
	}
	return process, nil
}

// prepare makes the place ready for a new daemon. It keeps the directories, because
// containers have them mounted.
func (k *keeper) prepare(ctx context.Context) error {
	if err := k.supervisor.sweep(ctx, k.place); err != nil {
		return err
	}
	// A server that runs as its client's user makes files in both of the last.
	err := errors.Join(makeDirectory(string(k.place), 0o755), makeDirectory(k.place.Pipe(), 0o777|fs.ModeSticky), makeDirectory(k.place.Log(), 0o777|fs.ModeSticky))
	if err != nil {
		return fmt.Errorf("make the directories of the daemon: %w", err)
	}
	if err := k.supervisor.share(k.place.Pipe()); err != nil {
		return err
	}
	if err := clearDir(k.place.Pipe()); err != nil {
		return fmt.Errorf("remove the files of an earlier daemon: %w", err)
	}
	return nil
}

// configure waits until the daemon answers, sets the default limits of its clients and
// verifies the one that can be read.
func (k *keeper) configure(ctx context.Context, process Process) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	var refusal error
	err := poll(ctx, func() (bool, error) {
		if ended(process, 0) {
			return false, fmt.Errorf("%w: %s", errEndedEarly, k.howItEnded(process))
		}
		_, refusal = k.percentage(ctx)
		return refusal == nil, nil
	})
	if err != nil && errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return fmt.Errorf("it did not answer within %v: %w", startTimeout, refusal)
	}
	if err != nil {
		return err
	}
	for _, command := range k.daemon.defaults() {
		if _, err := k.ask(ctx, command); err != nil {
			return err
		}
	}
	if k.daemon.ThreadPercentage == 0 {
		return nil
	}
	got, err := k.percentage(ctx)
	if err == nil && got != float64(k.daemon.ThreadPercentage) {
		err = fmt.Errorf("it gives clients %v %% of the multiprocessors instead of %d", got, k.daemon.ThreadPercentage)
	}
	return err
}

// defaults are the commands that limit the daemon's clients.
func (d Daemon) defaults() []string {
	var commands []string
	if d.ThreadPercentage > 0 {
		commands = append(commands, fmt.Sprintf("set_default_active_thread_percentage %d", d.ThreadPercentage))
	}
	for i, limit := range d.MemoryBytes {
		if limit > 0 {
			commands = append(commands, fmt.Sprintf("set_default_device_pinned_mem_limit %d %dM", i, limit/mebibyte))
		}
	}
	return commands
}

func (k *keeper) percentage(ctx context.Context) (float64, error) {
	const question = "get_default_active_thread_percentage"
	answer, err := k.ask(ctx, question)
	if err != nil {
		return 0, err
	}
	percentage, err := strconv.ParseFloat(strings.TrimSpace(answer), 64)
	if err != nil {
		return 0, fmt.Errorf("ask it %q: it answered %q", question, driverroot.Said(answer, 1))
	}
	return percentage, nil
}

func (k *keeper) ask(ctx context.Context, command string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	answer, err := k.supervisor.runner.Ask(ctx, k.place, command)
	if err != nil {
		return "", fmt.Errorf("ask it %q: %w", command, err)
	}
	return answer, nil
}

// howItEnded includes the end of the daemon's log.
func (k *keeper) howItEnded(process Process) string {
	file, info, err := openRegular(filepath.Join(k.place.Log(), "control.log"), os.O_RDONLY)
	if err != nil {
		return process.End()
	}
	defer func() { _ = file.Close() }() // it was only read
	const enough = 4 << 10
	content, _ := io.ReadAll(io.NewSectionReader(file, max(0, info.Size()-enough), enough)) // a part is better than nothing
	if last := driverroot.Said(string(content), 2); last != "" {
		return fmt.Sprintf("%s; its log ends with %q", process.End(), last)
	}
	return process.End()
}

// quit ends the daemon and its servers, also after ctx. An error means that some of them run.
func (k *keeper) quit(ctx context.Context, process Process) error {
	ctx = context.WithoutCancel(ctx)
	if process != nil && !ended(process, 0) {
		limited, cancel := context.WithTimeout(ctx, quitWait)
		_, err := k.ask(limited, "quit -t 1")
		cancel()
		if err != nil || !ended(process, quitWait) {
			klog.FromContext(ctx).Info("MPS control daemon does not quit; terminating it", "answer", err)
			process.Terminate()
			ended(process, termWait)
		}
	}
	err := k.supervisor.sweep(ctx, k.place)
	if err != nil {
		klog.FromContext(ctx).Error(err, "Cannot end all processes of the MPS control daemon")
	}
	return err
}

func ended(process Process, wait time.Duration) bool {
	select {
	case <-process.Ended():
		return true
	case <-time.After(wait):
		return false
	}
}

// end removes a daemon that is not desired. If the supervisor ends, the files stay, and the
// daemon's clients lose it.
func (k *keeper) end(ctx context.Context, process Process) {
	left := k.quit(ctx, process)
	if !errors.Is(context.Cause(ctx), errUndesired) {
		k.set(ctx, func(s *Status) {
			if s.State == Ready {
				s.Restarts++
			}
			s.State, s.Reason = Starting, "the MPS supervisor of this node has ended"
		})
		return
	}
	if left != nil {
		return // the supervisor tries again; until then the GPU gets no other claim
	}
	if err := k.supervisor.root.forget(k.daemon.ID); err != nil {
		klog.FromContext(ctx).Error(err, "Cannot remove the files of the MPS control daemon; retrying")
		return
	}
	klog.FromContext(ctx).Info("Stopped the MPS control daemon: no claim uses it any more")
}

// set changes the status and publishes it.
func (k *keeper) set(ctx context.Context, change func(*Status)) {
	k.mu.Lock()
	defer k.mu.Unlock()
	change(&k.status)
	if !k.stopping {
		k.supervisor.publish(ctx, k.status)
	}
}

// reconsider ends the daemon unless it is desired again. Start writes the desired state and
// then reads the status; this publishes Stopping and then reads the desired state. So either
// this finds the daemon desired, or Start finds it stopping.
func (k *keeper) reconsider(ctx context.Context) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.stopping {
		return
	}
	stopping := k.status
	stopping.State, stopping.Reason = Stopping, errUndesired.Error()
	k.supervisor.publish(ctx, stopping)
	spec, err := k.supervisor.root.readSpec(k.daemon.ID)
	if err != nil || spec != nil && spec.equal(k.daemon) {
		k.supervisor.publish(ctx, k.status)
		return
	}
	k.stopping = true
	k.cancel(errUndesired)
}
