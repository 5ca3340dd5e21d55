package prepare

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/mica-gpu/mica/pkg/node/journal"
	"github.com/mica-gpu/mica/pkg/node/mps"
	"github.com/mica-gpu/mica/pkg/node/nvml"
)

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
		return d.UUID == s.device.UUID && d.Served() && d.Form().Entire() || mayNeed(d, *s.device)
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

// withoutModes explains the error of a GPU whose compute mode cannot be changed.
func withoutModes(err error) error {
	if errors.Is(err, nvml.ErrNotSupported) {
		return explained{fmt.Errorf("%w: MPS needs the GPU's compute mode to be changed, which this one does not support: keep MPS from it by a GPUPolicy", err)}
	}
	return err
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
	first := *s.devices[0]
	return s.others.some(func(d journal.Device) bool { return d.MPS.Daemon == first.MPS.Daemon || mayNeed(d, first) })
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

const (
	// startLimit leaves time, of what kubelet waits, to undo what was done.
	startLimit = 25 * time.Second
	// stopLimit is what a daemon gets to end, also when a call's time is up.
	stopLimit = 10 * time.Second
)

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
