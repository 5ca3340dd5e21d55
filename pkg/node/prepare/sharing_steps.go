package prepare

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"time"

	"github.com/mica-gpu/mica/pkg/gpu"
	"github.com/mica-gpu/mica/pkg/node/journal"
	"github.com/mica-gpu/mica/pkg/node/mps"
	"github.com/mica-gpu/mica/pkg/node/nvml"
)

// explained is an error that says itself what to do about it.
type explained struct{ error }

func (e explained) Unwrap() error { return e.error }

func explain(err error) error {
	if err == nil {
		return nil
	}
	return explained{err}
}

// setInterval sets the time-slice of a GPU. Undone, it leaves the GPU with what another
// claim on it needs, or with the driver's own.
type setInterval struct {
	device *journal.Device
	others neighbours
}

func (s setInterval) do(ctx context.Context, tools Tools) error {
	return s.set(ctx, tools, gpu.Interval(s.device.Interval))
}

func (s setInterval) undo(ctx context.Context, tools Tools) error {
	needing, err := s.others.some(func(d journal.Device) bool { return d.UUID == s.device.UUID && d.Interval != "" })
	if err != nil {
		return err
	}
	interval := gpu.DefaultInterval
	if len(needing) > 0 {
		interval = gpu.Interval(needing[0].Interval)
	}
	if string(interval) == s.device.Interval {
		return nil
	}
	ctx, cancel := toUndo(ctx, resetLimit)
	defer cancel()
	err = s.set(ctx, tools, interval)
	if errors.Is(err, errors.ErrUnsupported) || errors.Is(err, fs.ErrNotExist) {
		return nil // as it could not be set either, nothing of it is left
	}
	if _, reason := tools.Modes.ComputeMode(s.device.UUID); err != nil && lost(reason) {
		return reason // for whose sake no pod is kept
	}
	return err
}

func (s setInterval) set(ctx context.Context, tools Tools, interval gpu.Interval) error {
	if tools.TimeSlices == nil {
		return explained{fmt.Errorf("this plugin cannot set the time-slice of GPU %s to %s: use the interval %s", s.device.UUID, interval, gpu.DefaultInterval)}
	}
	return explain(tools.TimeSlices.Set(ctx, s.device.UUID, interval))
}

// setMode gives a GPU to the server of MPS alone, so that no process uses it past the
// limits. What the mode was before is in the record before it is changed.
type setMode struct {
	device *journal.Device
	others neighbours
}

func (s setMode) do(_ context.Context, tools Tools) error {
	return s.change(tools, func(string) string { return nvml.ExclusiveProcess })
}

func (s setMode) undo(_ context.Context, tools Tools) error {
	clients, err := s.others.some(func(d journal.Device) bool {
		return d.UUID == s.device.UUID && d.Served() && d.Form().Entire()
	})
	if err != nil || len(clients) > 0 {
		return err
	}
	return s.change(tools, func(now string) string {
		if now != nvml.ExclusiveProcess {
			return now // what somebody has set since is none of our business
		}
		return s.device.MPS.ComputeMode
	})
}

func (s setMode) change(tools Tools, to func(now string) string) error {
	now, err := tools.Modes.ComputeMode(s.device.UUID)
	if err != nil {
		return withoutModes(err)
	}
	mode := to(now)
	if mode == now {
		return nil
	}
	return withoutModes(tools.Modes.SetComputeMode(s.device.UUID, mode))
}

// keepModes sets again what a prepared claim's GPUs are to have: time-slices, which
// cannot be read, and compute modes do not outlive a reset, or a kernel driver that let
// go of the GPU while no process held it.
func (p *Preparer) keepModes(ctx context.Context, record journal.Record, node *Node) error {
	fading, err := workOf(&record, p.neighbours(ctx, record.ClaimUID), func(s journal.Step) bool { return steps[s].fades })
	if err != nil {
		return fmt.Errorf("claim %s, %w", claimIn(record), err)
	}
	if len(fading.gpus) == 0 {
		return nil
	}
	uuids := make([]string, len(fading.gpus))
	for i, j := range fading.gpus {
		uuids[i] = j.gpu
	}
	unlock, err := p.lockGPUs(ctx, uuids)
	if err != nil {
		return fmt.Errorf("claim %s: %w", claimIn(record), err)
	}
	defer unlock()
	if err := doAll(ctx, fading.gpus, node.Tools); err != nil {
		return fmt.Errorf("claim %s, %w", claimIn(record), err)
	}
	return nil
}

// withoutModes explains the error of a GPU whose compute mode cannot be changed.
func withoutModes(err error) error {
	if errors.Is(err, nvml.ErrNotSupported) {
		return explained{fmt.Errorf("%w: MPS needs the GPU's compute mode to be changed, which this one does not support: keep MPS from it by a GPUPolicy", err)}
	}
	return err
}

const (
	// startLimit leaves time, of what kubelet waits, to undo what was done.
	startLimit = 25 * time.Second
	// stopLimit is what a daemon gets to end, also when a call's time is up.
	stopLimit = 10 * time.Second
	// resetLimit is the same for a time-slice, whose program is slow on a node with many
	// GPUs that are not kept initialised.
	resetLimit = 30 * time.Second
)

// toUndo gives time to what is undone, also to what was waited for in vain.
func toUndo(ctx context.Context, limit time.Duration) (context.Context, context.CancelFunc) {
	if ctx.Err() != nil {
		ctx = context.WithoutCancel(ctx)
	}
	return context.WithTimeout(ctx, limit)
}

var errNoSupervisor = explained{errors.New("this node runs no supervisor of MPS daemons: install the chart with mps.enabled=true")}

// runDaemon starts the control daemon of devices, which have one. The last of its
// clients stops it.
type runDaemon struct {
	devices []*journal.Device
	others  neighbours
}

func (s runDaemon) do(ctx context.Context, tools Tools) error {
	if tools.Daemons == nil {
		return errNoSupervisor
	}
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	err := tools.Daemons.Start(ctx, s.daemon())
	if !errors.Is(err, mps.ErrOther) {
		return explain(err)
	}
	// It may have been left by claims that were released while MPS was switched off, or
	// whose records were lost: then nobody else would end it.
	if clients, others := s.clients(); others != nil || len(clients) > 0 {
		return errors.Join(explain(err), others)
	}
	if err := tools.Daemons.Stop(ctx, s.devices[0].MPS.Daemon); err != nil {
		return explain(err)
	}
	return explain(tools.Daemons.Start(ctx, s.daemon()))
}

// clients of the daemon that other claims have.
func (s runDaemon) clients() ([]journal.Device, error) {
	id := s.devices[0].MPS.Daemon
	return s.others.some(func(d journal.Device) bool { return d.MPS.Daemon == id })
}

func (s runDaemon) undo(ctx context.Context, tools Tools) error {
	clients, err := s.clients()
	if err != nil || len(clients) > 0 || tools.Daemons == nil { // whose supervisor is gone has gone with it
		return err
	}
	ctx, cancel := toUndo(ctx, stopLimit)
	defer cancel()
	return explain(tools.Daemons.Stop(ctx, s.devices[0].MPS.Daemon))
}

// daemon is what is wanted. For shares, the limits are each client's own.
func (s runDaemon) daemon() mps.Daemon {
	first := s.devices[0]
	daemon := mps.Daemon{ID: first.MPS.Daemon, MultiUser: first.MPS.MultiUser}
	for _, device := range s.devices {
		if slices.Contains(daemon.Devices, device.DeviceUUID()) {
			continue // another share of it
		}
		daemon.Devices = append(daemon.Devices, device.DeviceUUID())
		if first.Shares == 0 {
			daemon.MemoryBytes = append(daemon.MemoryBytes, device.MPS.MemoryBytes)
		}
	}
	if first.Shares == 0 {
		daemon.ThreadPercentage = first.MPS.Cores
	}
	return daemon
}

// limitsOf are those of the claim's processes, where its daemon has none for them.
func limitsOf(device journal.Device) mps.Limits {
	if device.Shares == 0 {
		return mps.Limits{}
	}
	return mps.Limits{MemoryBytes: device.MPS.MemoryBytes, Cores: device.MPS.Cores}
}
