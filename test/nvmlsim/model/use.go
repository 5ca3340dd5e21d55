package model

import (
	"fmt"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// Use is how much of a GPU, or of a GPU instance, is used by processes that are not
// simulated. NVML reports it; nothing is in use because of it. What is nil stays as it is.
type Use struct {
	// Utilization is percent of the time in which something runs.
	Utilization *int `json:"utilization,omitempty"`
	// MemoryBytes is the memory that is taken.
	MemoryBytes *uint64 `json:"memoryBytes,omitempty"`
	// Temperature is in degrees Celsius, PowerMilliwatts what the GPU draws. Neither is an instance's.
	Temperature     *uint32 `json:"temperature,omitempty"`
	PowerMilliwatts *uint32 `json:"powerMilliwatts,omitempty"`
	// NVLink replaces the counters of all links.
	NVLink *Traffic `json:"nvlink,omitempty"`
}

// Traffic is how much a GPU has sent and received over its NVLinks, in KiB.
type Traffic struct {
	SentKiB     uint64 `json:"sentKiB"`
	ReceivedKiB uint64 `json:"receivedKiB"`
}

// UseState is the use of a GPU or GPU instance at one moment.
type UseState struct {
	// Utilization is percent of the time.
	Utilization int    `json:"utilization,omitempty"`
	MemoryBytes uint64 `json:"memoryBytes,omitempty"`
}

// work is the use of a GPU or GPU instance over time. Machine.mu guards it.
type work struct {
	UseState
	// ran is how long something ran until since.
	ran   time.Duration
	since time.Time
}

// until is how long something ran until now, as the counters of the hardware have it.
func (w work) until(now time.Time) time.Duration {
	if w.since.IsZero() {
		return 0
	}
	return w.ran + now.Sub(w.since)*time.Duration(w.Utilization)/100
}

func (w *work) set(use Use, now time.Time) {
	w.ran, w.since = w.until(now), now
	if use.Utilization != nil {
		w.Utilization = *use.Utilization
	}
	if use.MemoryBytes != nil {
		w.MemoryBytes = *use.MemoryBytes
	}
}

// SetUse implements Control.
func (m *Machine) SetUse(index int, instance *int, use Use) error {
	g, err := m.gpu(index)
	if err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	what, used, total := fmt.Sprintf("GPU %d", index), &g.work, g.board.MemoryBytes()
	switch sensed := use.Temperature != nil || use.PowerMilliwatts != nil || use.NVLink != nil; {
	case use.NVLink != nil && !g.countsTraffic():
		return fmt.Errorf("GPU %d has no counters of NVLinks", index)
	case instance != nil && sensed:
		return fmt.Errorf("GPU instance %d has no sensors: name only GPU %d", *instance, index)
	case instance != nil:
		i, err := g.instance(*instance)
		if err != nil {
			return err
		}
		what, used, total = fmt.Sprintf("GPU instance %d of GPU %d", *instance, index), &i.work, i.memoryBytes()
	case g.migEnabled() && (use.Utilization != nil || use.MemoryBytes != nil):
		return fmt.Errorf("MIG is enabled on GPU %d, so that processes only use its GPU instances: name one", index)
	}
	if err := use.check(what, total); err != nil {
		return err
	}
	used.set(use, time.Now())
	g.sensors.set(use)
	return nil
}

func (u Use) check(what string, total uint64) error {
	if u.Utilization != nil && (*u.Utilization < 0 || *u.Utilization > 100) {
		return fmt.Errorf("%s cannot be used for %d percent of the time", what, *u.Utilization)
	}
	if u.MemoryBytes != nil && *u.MemoryBytes > total {
		return fmt.Errorf("%s has %d bytes of memory: %d cannot be in use", what, total, *u.MemoryBytes)
	}
	return nil
}

// memoryUsed is called with Machine.mu held.
func (g *gpu) memoryUsed() uint64 {
	if !g.migEnabled() {
		return g.work.MemoryBytes
	}
	used := uint64(0)
	for _, i := range g.instances.byID {
		used += i.work.MemoryBytes
	}
	return used
}

func (i *gpuInstance) memoryBytes() uint64 { return i.profile.MemoryMiB << 20 }

// GetUtilizationRates implements nvml.Device. A GPU on which MIG is enabled does not
// tell (note in nvml.h), and neither does a MIG device. How busy the memory is,
// cannot be set.
func (d *device) GetUtilizationRates() (nvml.Utilization, nvml.Return) {
	if ret := d.enter("nvmlDeviceGetUtilizationRates"); ret != nvml.SUCCESS {
		return nvml.Utilization{}, ret
	}
	d.session.machine.mu.Lock()
	defer d.session.machine.mu.Unlock()
	if d.gpu.migEnabled() {
		return nvml.Utilization{}, nvml.ERROR_NOT_SUPPORTED
	}
	return nvml.Utilization{Gpu: uint32(d.gpu.work.Utilization)}, nvml.SUCCESS
}
