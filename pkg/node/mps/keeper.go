package mps

import (
	"context"
	"errors"
	"fmt"
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
	// startTimeout is below what kubelet gives to a claim.
	startTimeout = 20 * time.Second
	askTimeout   = 5 * time.Second
	// attempts are how many starts must fail until that is said of the daemon.
	attempts = 3
	// stable is how long a daemon has to run for its next end to be the first one.
	stable = time.Minute

	// quitWait is how long MPS itself may take to end, termWait how long after a
	// signal. Both together are below what a claim gives to a stop.
	quitWait = 4 * time.Second
	termWait = time.Second
)

// restarts are the waits before a daemon that has ended is started anew.
var restarts = wait.Backoff{Duration: time.Second, Factor: 2, Cap: 30 * time.Second, Steps: math.MaxInt}

var errUnwanted = errors.New("nobody wants the daemon any more")

// keeper keeps one daemon running from when it is wanted until it is not.
type keeper struct {
	supervisor *Supervisor
	daemon     Daemon
	place      Place
	cancel     context.CancelCauseFunc

	mu     sync.Mutex
	status Status
	// stopping is set for good once the status says so.
	stopping bool
}

// run returns when ctx ends, which means that the daemon is unwanted, or that the
// supervisor ends.
func (k *keeper) run(ctx context.Context) {
	backoff, failures := restarts, 0
	var process Process // nil while none runs
	for ctx.Err() == nil {
		var err error
		if process, err = k.start(ctx); err == nil {
			since := time.Now()
			failures = 0
			k.set(ctx, func(s *Status) { s.State, s.Reason = Ready, "" })
			err = k.await(ctx, process)
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

// await returns why a ready daemon has ended.
func (k *keeper) await(ctx context.Context, process Process) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-process.Ended():
		return fmt.Errorf("it has ended: %s", k.said(process))
	}
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
	process, err := k.launch(ctx, !k.daemon.MultiUser)
	if k.daemon.MultiUser && errors.Is(err, errEndedEarly) { // as a daemon does that does not know an option
		if process, second := k.launch(ctx, true); second == nil {
			klog.FromContext(ctx).Info("The installed MPS control daemon serves one user at a time: processes of other users, as in containers with another runAsUser, wait", "reason", err.Error())
			k.set(ctx, func(s *Status) { s.SingleUser = true })
			return process, nil
		}
		return nil, err
	}
	if err == nil {
		k.set(ctx, func(s *Status) { s.SingleUser = false })
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

// prepare makes the place ready for a new daemon. Directories stay the same ones:
// containers have them mounted.
func (k *keeper) prepare(ctx context.Context) error {
	if err := k.supervisor.sweep(ctx, k.place); err != nil {
		return err
	}
	for _, dir := range []string{string(k.place), k.place.Pipe(), k.place.Log()} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return fmt.Errorf("make the directories of the daemon: %w", err)
		}
	}
	// A server that runs as its client's user, which is no administrator, makes
	// files in both.
	if err := errors.Join(os.Chmod(k.place.Pipe(), 0o777|os.ModeSticky), os.Chmod(k.place.Log(), 0o777|os.ModeSticky)); err != nil {
		return fmt.Errorf("make the directories of the daemon: %w", err)
	}
	if err := k.supervisor.share(k.place.Pipe()); err != nil {
		return err
	}
	if err := clearDir(k.place.Pipe()); err != nil {
		return fmt.Errorf("remove what an earlier daemon has left: %w", err)
	}
	return nil
}

// configure waits until the daemon answers and sets the limits of clients that do
// not have limits of their own.
func (k *keeper) configure(ctx context.Context, process Process) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	var refusal error
	err := poll(ctx, func() (bool, error) {
		select {
		case <-process.Ended():
			return false, fmt.Errorf("%w: %s", errEndedEarly, k.said(process))
		default:
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
	return k.checkPercentage(ctx)
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

// checkPercentage makes sure that commands are not only taken.
func (k *keeper) checkPercentage(ctx context.Context) error {
	if k.daemon.ThreadPercentage == 0 {
		return nil
	}
	got, err := k.percentage(ctx)
	if err == nil && got != float64(k.daemon.ThreadPercentage) {
		err = fmt.Errorf("it gives clients %v %% of the multiprocessors instead of %d", got, k.daemon.ThreadPercentage)
	}
	return err
}

func (k *keeper) percentage(ctx context.Context) (float64, error) {
	const question = "get_default_active_thread_percentage"
	answer, err := k.ask(ctx, question)
	if err != nil {
		return 0, err
	}
	percentage, err := strconv.ParseFloat(strings.TrimSpace(answer), 64)
	if err != nil {
		return 0, fmt.Errorf("ask it %q: it said %q", question, driverroot.Said(answer, 1))
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

// said is how a daemon ended, with the end of its log.
func (k *keeper) said(process Process) string {
	logged, err := tail(filepath.Join(k.place.Log(), "control.log"))
	if last := driverroot.Said(logged, 2); err == nil && last != "" {
		return fmt.Sprintf("%s; its log ends with %q", process.End(), last)
	}
	return process.End()
}

// tail reads the end of a file that may be big.
func tail(path string) (string, error) {
	file, info, err := openRegular(path, os.O_RDONLY)
	if err != nil {
		return "", err
	}
	defer func() { _ = file.Close() }() // it was only read
	const enough = 4 << 10
	content := make([]byte, min(info.Size(), enough))
	n, err := file.ReadAt(content, max(0, info.Size()-enough))
	if n == 0 && err != nil {
		return "", err
	}
	return string(content[:n]), nil
}

// quit ends the daemon, and whatever it has left behind, also after ctx. The error is
// that something of it runs.
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

// end is for a daemon that is unwanted, of which nothing stays, or whose
// supervisor ends, which its clients notice.
func (k *keeper) end(ctx context.Context, process Process) {
	left := k.quit(ctx, process)
	if !errors.Is(context.Cause(ctx), errUnwanted) {
		k.set(ctx, func(s *Status) {
			if s.State == Ready {
				s.Restarts++
			}
			s.State, s.Reason = Starting, "the MPS supervisor of this node has ended"
		})
		return
	}
	if left != nil {
		return // who waits for its end, to give the GPU to others, waits on: it is tried again
	}
	if err := k.supervisor.root.forget(k.daemon.ID); err != nil {
		klog.FromContext(ctx).Error(err, "Cannot remove the files of the MPS control daemon; retrying")
		return
	}
	klog.FromContext(ctx).Info("Stopped the MPS control daemon: no claim uses it any more")
}

// set publishes a change of the status.
func (k *keeper) set(ctx context.Context, change func(*Status)) {
	k.mu.Lock()
	defer k.mu.Unlock()
	change(&k.status)
	if !k.stopping {
		k.supervisor.publish(ctx, k.status)
	}
}

// reconsider ends the daemon unless it is wanted again. Who wants it writes that
// before reading the status, and this is the other way round: either this sees that
// it is wanted, or they see that it is stopping.
func (k *keeper) reconsider(ctx context.Context) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.stopping {
		return
	}
	stopping := k.status
	stopping.State, stopping.Reason = Stopping, errUnwanted.Error()
	k.supervisor.publish(ctx, stopping)
	wish, err := k.supervisor.root.readWish(k.daemon.ID)
	if err != nil || wish != nil && wish.equal(k.daemon) {
		k.supervisor.publish(ctx, k.status)
		return
	}
	k.stopping = true
	k.cancel(errUnwanted)
}
