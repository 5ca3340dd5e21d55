package prepare

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	cdispec "tags.cncf.io/container-device-interface/specs-go"

	"github.com/mica-gpu/mica/pkg/node/journal"
	"github.com/mica-gpu/mica/pkg/node/mps"
	"github.com/mica-gpu/mica/pkg/node/nvml"
)

// computeMode is the data of the step that sets the compute mode of a GPU.
type computeMode struct {
	// Before is the mode from before MPS, by its name in NVML.
	Before string `json:"before"`
}

// setMode gives a GPU to the MPS server alone, so that no process evades the limits.
type setMode struct {
	computeMode
	device *journal.Device
	others neighbours
}

func addComputeMode(w *work, at spot) {
	at.addTo(w, setMode{dataOf[computeMode](*at.device(), setComputeMode), at.device(), at.others})
}

// inspectComputeMode records the mode from before MPS: the one that the first share found.
func inspectComputeMode(device *journal.Device, siblings []journal.Device, tools Tools) (change bool, err error) {
	if tools.Daemons == nil {
		return false, errNoSupervisor
	}
	for _, sibling := range siblings {
		if hasStep(sibling, setComputeMode) {
			return false, setData(device, setComputeMode, dataOf[computeMode](sibling, setComputeMode))
		}
	}
	before, err := tools.Modes.ComputeMode(device.UUID)
	if err != nil {
		return true, withoutModes(err)
	}
	return true, setData(device, setComputeMode, computeMode{before})
}

func (s setMode) do(_ context.Context, tools Tools) error {
	return s.change(tools, func(string) string { return nvml.ExclusiveProcess })
}

func (s setMode) undo(_ context.Context, tools Tools) error {
	clients, err := s.others.some(func(d journal.Device) bool {
		return d.UUID == s.device.UUID && hasStep(d, setComputeMode) || mayNeed(d, *s.device)
	})
	if err != nil || len(clients) > 0 {
		return err
	}
	return s.change(tools, func(now string) string {
		if now != nvml.ExclusiveProcess {
			return now // an administrator has set it since
		}
		return s.Before
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

// client is the data of the step that runs the control daemon of MPS whose clients the
// claim's processes are.
type client struct {
	// Daemon is the daemon's ID. Shares of one device have one daemon, and so have the
	// devices of one configuration in a claim.
	Daemon string `json:"daemon"`
	// MemoryBytes and Cores (percent) limit each of the claim's processes; 0 is no limit.
	// The limits of a share are each client's own. For devices that the claim has to
	// itself, the daemon applies them, so they have the same Cores.
	MemoryBytes uint64 `json:"memoryBytes,omitempty"`
	Cores       int    `json:"cores,omitempty"`
	// MultiUser admits processes of several users at the same time.
	MultiUser bool `json:"multiUser,omitempty"`
}

// Uses reports whether a recorded device is used through the daemon.
func Uses(device journal.Device, daemon string) bool {
	return hasStep(device, runDaemon) && dataOf[client](device, runDaemon).Daemon == daemon
}

// serveDevices starts the control daemon of its devices. The last client stops it.
type serveDevices struct {
	client
	devices []*journal.Device
	others  neighbours
}

// addClient adds the device to those of its daemon.
func addClient(w *work, at spot) {
	device, own := at.device(), dataOf[client](*at.device(), runDaemon)
	for _, j := range w.daemons {
		if served, ok := j.steps[0].(*serveDevices); ok && served.Daemon == own.Daemon {
			served.devices = append(served.devices, device)
			return
		}
	}
	j := &job{gpu: device.UUID}
	j.add(device.Request, &serveDevices{own, []*journal.Device{device}, at.others})
	w.daemons = append(w.daemons, j)
}

// inspectDaemon reports whether the daemon has no other client.
func inspectDaemon(device *journal.Device, siblings []journal.Device, tools Tools) (change bool, err error) {
	if tools.Daemons == nil {
		return false, errNoSupervisor
	}
	daemon := dataOf[client](*device, runDaemon).Daemon
	return !slices.ContainsFunc(siblings, func(d journal.Device) bool { return Uses(d, daemon) }), nil
}

func (s serveDevices) do(ctx context.Context, tools Tools) error {
	if tools.Daemons == nil {
		return errNoSupervisor
	}
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	err := tools.Daemons.Start(ctx, s.daemon())
	if !errors.Is(err, mps.ErrOther) {
		return explain(err)
	}
	// It may be left over from claims that were released while MPS was switched off, or
	// whose records were lost. Then nothing else would end it.
	if clients, others := s.clients(); others != nil || len(clients) > 0 {
		return errors.Join(explain(err), others)
	}
	if err := tools.Daemons.Stop(ctx, s.Daemon); err != nil {
		return explain(err)
	}
	return explain(tools.Daemons.Start(ctx, s.daemon()))
}

// clients are the devices of other claims that use the daemon.
func (s serveDevices) clients() ([]journal.Device, error) {
	return s.others.some(func(d journal.Device) bool { return Uses(d, s.Daemon) || mayNeed(d, *s.devices[0]) })
}

func (s serveDevices) undo(ctx context.Context, tools Tools) error {
	clients, err := s.clients()
	if err != nil || len(clients) > 0 || tools.Daemons == nil { // without a supervisor, the daemon is gone too
		return err
	}
	ctx, cancel := toUndo(ctx, stopLimit)
	defer cancel()
	return explain(tools.Daemons.Stop(ctx, s.Daemon))
}

const (
	// startLimit leaves kubelet's call some time to undo what was done.
	startLimit = 25 * time.Second
	// stopLimit bounds the end of a daemon, also if a call's time is up.
	stopLimit = 10 * time.Second
)

// daemon is the desired daemon. The limits of shares are each client's own.
func (s serveDevices) daemon() mps.Daemon {
	shares := s.devices[0].Form.Shared()
	daemon := mps.Daemon{ID: s.Daemon, MultiUser: s.MultiUser}
	for _, device := range s.devices {
		if slices.Contains(daemon.Devices, device.DeviceUUID()) {
			continue // another share of it
		}
		daemon.Devices = append(daemon.Devices, device.DeviceUUID())
		if !shares {
			daemon.MemoryBytes = append(daemon.MemoryBytes, dataOf[client](*device, runDaemon).MemoryBytes)
		}
	}
	if !shares {
		daemon.ThreadPercentage = s.Cores
	}
	return daemon
}

// clientEdits are what a client of the device's daemon needs, with the limits that the daemon
// does not apply.
func clientEdits(device journal.Device, daemons Daemons) (cdispec.ContainerEdits, error) {
	if daemons == nil {
		return cdispec.ContainerEdits{}, errNoSupervisor
	}
	own, limits := dataOf[client](device, runDaemon), mps.Limits{}
	if device.Form.Shared() {
		limits = mps.Limits{MemoryBytes: own.MemoryBytes, Cores: own.Cores}
	}
	return daemons.Edits(own.Daemon, limits), nil
}
