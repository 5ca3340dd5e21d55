package reset

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mica-gpu/mica/pkg/health"
	"github.com/mica-gpu/mica/pkg/node/nvml"
	"github.com/mica-gpu/mica/test/fixture"
	"github.com/mica-gpu/mica/test/nvmlsim/model"
)

// clinic is a machine on which clients of NVML hold GPUs, and one GPU needs a reset.
type clinic struct {
	*testing.T
	machine *model.Machine
	library *nvml.Library
	uuid    string

	// The inputs and outputs of the Resetter.
	record   health.Record
	allowed  health.ConditionSet
	claimed  bool
	restored int
	reported []string
	// kept are the attempts as they were kept, one after the other.
	kept []health.Resets
	// program replaces the machine's own.
	program func(context.Context, string) error
}

func newClinic(t *testing.T, machine string) *clinic {
	t.Helper()
	file := fixture.File(t, machine)
	file.Habits.ClientsHold = true
	c := &clinic{T: t, machine: fixture.Machine(t, file), allowed: health.ConditionSet{health.Recovery: true}}
	c.library = fixture.Library(t, c.machine)
	node, _, err := c.library.Discover()
	c.must(err)
	c.uuid = node.GPUs[0].UUID
	c.program = c.machine.ResetByUUID
	c.must(c.machine.SetCondition(0, model.Condition{RecoveryAction: "gpu-reset"}))
	c.see()
	return c
}

func (c *clinic) must(err error) {
	c.Helper()
	if err != nil {
		c.Fatal(err)
	}
}

// see judges the GPU anew, as the monitor does.
func (c *clinic) see() {
	c.Helper()
	level, err := c.library.Health(c.uuid)
	c.must(err)
	c.record = c.record.Next(health.Facts{Reach: health.Answers, Level: level}, health.Rules{Quiet: time.Minute}, time.Now())
}

func (c *clinic) look() {
	c.Helper()
	New(Options{Health: c, Claims: c, Quiet: time.Minute, Allowed: func() health.ConditionSet { return c.allowed },
		Notify: func(_ context.Context, _ string, worked bool, sentence string) {
			c.reported = append(c.reported, fmt.Sprint(worked, " ", sentence))
		}}).Look(c.Context(), Hardware{GPUs: c.library, Program: c})
}

func (c *clinic) Known() map[string]health.Record {
	return map[string]health.Record{c.uuid: c.record}
}

func (c *clinic) KeepResets(_ context.Context, _ string, resets health.Resets) {
	c.record.Resets = resets
	c.kept = append(c.kept, resets)
}

func (c *clinic) Restored(string) { c.restored++ }

func (c *clinic) Idle(context.Context, string) (func(), bool, error) {
	return func() {}, !c.claimed, nil
}

func (c *clinic) Reset(ctx context.Context, uuid string) error { return c.program(ctx, uuid) }

// asks reports whether the GPU still needs a reset, and whether it is persistent.
func (c *clinic) asks() (asks, persistent bool) {
	c.Helper()
	state, err := c.machine.State()
	c.must(err)
	return state.GPUs[0].Condition.RecoveryAction == "gpu-reset", state.GPUs[0].PersistenceMode
}

func (c *clinic) expect(asks bool, reported ...string) {
	c.Helper()
	if got, _ := c.asks(); got != asks {
		c.Errorf("the GPU asks for a reset is %v, want %v", got, asks)
	}
	if !slices.EqualFunc(c.reported, reported, strings.Contains) {
		c.Errorf("reported %q, want %q", c.reported, reported)
	}
}

// A GPU that no claim has is reset, although this process had the driver open and persistence mode
// held the GPU, which is persistent again.
func TestASickGPUIsReset(t *testing.T) {
	c := newClinic(t, "p5.48xlarge")
	c.must(c.library.SetPersistence(c.uuid, true))
	c.look()
	c.expect(false, "true was reset; it gets claims again after 1m0s without a fault")
	if _, persistent := c.asks(); !persistent || c.restored != 1 || c.record.Resets.Persistent {
		t.Errorf("persistent is %v, restored %d times, kept %+v", persistent, c.restored, c.record.Resets)
	}
	c.see()
	c.look()
	c.expect(false, "true")
}

func TestAGPUThatIsNotReset(t *testing.T) {
	for name, change := range map[string]func(c *clinic){
		"by default":                  func(c *clinic) { c.allowed = nil },
		"that a claim has":            func(c *clinic) { c.claimed = true },
		"that is lost":                func(c *clinic) { c.record.Faults[0].Severity = health.Dead },
		"that does not answer":        func(c *clinic) { c.record.Reach = health.Silent },
		"that another process resets": func(c *clinic) { c.must(c.machine.SetCondition(0, model.Condition{})) },
		"that got well already":       func(c *clinic) { c.record.Action = health.ActionNone },
	} {
		t.Run(name, func(t *testing.T) {
			c := newClinic(t, "g5.12xlarge")
			change(c)
			asked, _ := c.asks()
			c.look()
			c.expect(asked)
			if len(c.kept) > 0 {
				t.Errorf("kept %v", c.kept)
			}
		})
	}
}

// A driver that asks for no action has not judged an XID that it does not link to one.
func TestAResetBesideADriverThatAsksForNothing(t *testing.T) {
	c := newClinic(t, "p5.48xlarge")
	c.must(c.machine.SetCondition(0, model.Condition{}))
	level, err := c.library.Health(c.uuid)
	c.must(err)
	c.record = health.Record{}.Next(health.Facts{Reach: health.Answers, Level: level, Events: []health.Event{{XID: 119}}}, health.Rules{Quiet: time.Minute}, time.Now())
	c.allowed = health.ConditionSet{health.XID: true}
	c.look()
	c.expect(false, "true was reset")
}

// Partitions without a claim belong to an administrator.
func TestAResetWouldEndPartitions(t *testing.T) {
	c := newClinic(t, "p5.48xlarge")
	c.must(c.machine.SetMIGMode(0, true))
	_, err := c.machine.CreateInstance(0, "1g.10gb", nil)
	c.must(err)
	c.look()
	c.expect(true, "false cannot be reset (attempt 1 of 5): it has MIG partitions that no claim has")
}

// A refusal is reported in the driver's words, and tried again ever later, a few times.
func TestAResetIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClinic(t, "p5.48xlarge")
		c.must(c.machine.Occupy(0, nil, true))
		for range 60 {
			c.look()
			time.Sleep(time.Minute)
			c.see()
		}
		c.expect(true,
			"false cannot be reset (attempt 1 of 5): ERROR_IN_USE; the next attempt is in 1m0s; end the processes that use the GPU",
			"false cannot be reset (attempt 2 of 5): ERROR_IN_USE; the next attempt is in 2m0s",
			"false cannot be reset (attempt 3 of 5): ERROR_IN_USE; the next attempt is in 4m0s",
			"false cannot be reset (attempt 4 of 5): ERROR_IN_USE; the next attempt is in 8m0s",
			"false cannot be reset (attempt 5 of 5): ERROR_IN_USE; no further attempt is made: end the processes that use the GPU and reset it with nvidia-smi, or reboot the node")
		c.must(c.machine.Occupy(0, nil, false))
		c.must(c.machine.SetCondition(0, model.Condition{}))
		for range 3 {
			c.see()
			time.Sleep(time.Minute)
		}
		c.must(c.machine.SetCondition(0, model.Condition{RecoveryAction: "gpu-reset"}))
		c.see()
		c.reported = nil
		c.look()
		c.expect(false, "true was reset")
		c.must(c.library.Close())
	})
}

// Whatever ends the process in the middle, the attempt counts, and the persistence mode comes back.
func TestAProcessEndsDuringAReset(t *testing.T) {
	c := newClinic(t, "p5.48xlarge")
	c.must(c.library.SetPersistence(c.uuid, true))
	var died health.Record
	c.program = func(context.Context, string) error {
		died = c.record
		return errors.New("killed")
	}
	c.look()
	if died.Resets.Tried != 1 || !died.Resets.Persistent {
		t.Errorf("when the process died, %+v was kept", died.Resets)
	}
	c.must(c.library.SetPersistence(c.uuid, false)) // as it was then
	c.record, c.program = died, c.machine.ResetByUUID
	c.look()
	if _, persistent := c.asks(); !persistent || c.record.Resets != (health.Resets{Tried: 1, Last: died.Resets.Last}) {
		t.Errorf("the next process keeps %+v, persistent is %v", c.record.Resets, persistent)
	}
	c.expect(true, "false cannot be reset (attempt 1 of 5): killed")
}

// While a GPU is reset, calls about others wait.
func TestCallsWaitForAReset(t *testing.T) {
	c := newClinic(t, "g5.12xlarge")
	answered := make(chan error, 1)
	c.program = func(ctx context.Context, uuid string) error {
		go func() { _, err := c.library.Health(uuid); answered <- err }()
		select {
		case err := <-answered:
			t.Error("a call did not wait")
			answered <- err
		case <-time.After(50 * time.Millisecond):
		}
		return c.machine.ResetByUUID(ctx, uuid)
	}
	c.look()
	c.expect(false, "true was reset")
	c.must(<-answered)
}

// script answers as a program.
type script struct {
	printed string
	err     error
	asked   []string
}

func (s *script) Run(_ context.Context, program string, arguments ...string) (string, string, error) {
	s.asked = append([]string{program}, arguments...)
	return "/driver-root/usr/bin/" + program, s.printed, s.err
}

func TestNvidiaSMI(t *testing.T) {
	works := &script{printed: "GPU 00000000:1A:00.0 was successfully reset.\nAll done.\n"}
	if err := NewSMI(works).Reset(t.Context(), "GPU-1"); err != nil || !slices.Equal(works.asked, []string{"nvidia-smi", "--gpu-reset", "-i", "GPU-1"}) {
		t.Errorf("got %v after %q", err, works.asked)
	}
	refused := exec.Command("false").Run()
	err := NewSMI(&script{"The following GPUs could not be reset:\n  GPU 00000000:1A:00.0: In use by another client\n\n1 device is currently being used by one or more other processes.\n", refused, nil}).Reset(t.Context(), "GPU-1")
	fixture.Sentence(t, err, "nvidia-smi printed", "In use by another client", "exit status 1")
	if err := NewSMI(&script{err: errors.New("nvidia-smi is not installed")}).Reset(t.Context(), "GPU-1"); err == nil || err.Error() != "nvidia-smi is not installed" {
		t.Errorf("got %v", err)
	}
}
