package supervisor

import (
	"fmt"
	"slices"
	"sort"
	"strings"
	"time"

	"github.com/mica-gpu/mica/test/cluster/internal/process"
)

// component is one process of the cluster, running or not.
type component struct {
	command process.Command
	process *process.Process
	// stopped is set when a user has stopped the process.
	stopped bool
	// attempts counts starts since the last restart that was asked for. A
	// component that was restarted may need several: the others have not
	// noticed yet that its predecessor is gone.
	attempts int
	// restarted is when a user last asked for a restart; zero for never.
	restarted time.Time
}

const (
	// settling is how long after a restart a component may die and be started
	// again.
	settling    = time.Minute
	maxAttempts = 6
	firstPause  = 250 * time.Millisecond
)

// restartable are the components whose loss a cluster is meant to survive: the
// node's.
var restartable = []string{kubelet, containerd}

// start runs a component.
func (s *Supervisor) start(name string) error {
	c, ok := s.components[name]
	if !ok {
		return fmt.Errorf("the cluster has no component %q: it has %s", name, strings.Join(s.names(), ", "))
	}
	started, err := process.Start(c.command)
	if err != nil {
		return err
	}
	c.process, c.stopped = started, false
	go func() {
		<-started.Done()
		select {
		case s.ended <- started:
		case <-s.finished:
		}
	}()
	return nil
}

// handleEnd decides what the end of a process means: nothing when it was asked
// for, another start while a restart settles, else the cluster's failure.
func (s *Supervisor) handleEnd(ended *process.Process) error {
	c := s.components[ended.Command.Name]
	if c == nil || c.process != ended || c.stopped {
		return nil
	}
	if time.Since(c.restarted) > settling || c.attempts >= maxAttempts {
		return fmt.Errorf("the cluster stops because a component did: %s", ended.Ending())
	}
	pause := firstPause << c.attempts
	c.attempts++
	time.AfterFunc(pause, func() {
		select {
		case s.again <- ended:
		case <-s.finished:
		}
	})
	return nil
}

// startAgain starts a component whose pause after an early end is over, unless
// it was stopped or started meanwhile.
func (s *Supervisor) startAgain(ended *process.Process) error {
	c := s.components[ended.Command.Name]
	if c.process != ended || c.stopped {
		return nil
	}
	return s.start(ended.Command.Name)
}

// restart kills a component of the node and starts it anew.
func (s *Supervisor) restart(name string) error {
	if err := s.stop(name); err != nil {
		return err
	}
	return s.resume(name)
}

// stop kills a component of the node, which stays away until it is resumed.
func (s *Supervisor) stop(name string) error {
	if !slices.Contains(restartable, name) {
		return fmt.Errorf("%q cannot be stopped: the cluster survives the loss of %s only", name, strings.Join(restartable, " and "))
	}
	c := s.components[name]
	c.stopped = true
	c.process.Kill()
	return nil
}

// resume starts a component that was stopped.
func (s *Supervisor) resume(name string) error {
	c := s.components[name]
	if c == nil || !c.stopped {
		return fmt.Errorf("%q is not stopped: `cluster stop` first", name)
	}
	c.restarted, c.attempts = time.Now(), 0
	return s.start(name)
}

func (s *Supervisor) names() []string {
	names := make([]string, 0, len(s.components))
	for name := range s.components {
		names = append(names, name)
	}
	sort.Strings(names)
	return names
}

// Status is one component's, for people.
type Status struct {
	Name    string    `json:"name"`
	PID     int       `json:"pid"`
	Running bool      `json:"running"`
	Started time.Time `json:"started"`
	Log     string    `json:"log"`
}

func (s *Supervisor) status() []Status {
	var all []Status
	for _, name := range s.names() {
		c := s.components[name]
		status := Status{Name: name, Log: c.command.Log}
		if c.process != nil {
			status.PID, status.Started = c.process.PID(), c.process.Started
			select {
			case <-c.process.Done():
			default:
				status.Running = true
			}
		}
		all = append(all, status)
	}
	return all
}
