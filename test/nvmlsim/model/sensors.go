package model

import (
	"math"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// sensors are what a GPU measures of itself. Machine.mu guards them.
type sensors struct {
	temperature, milliwatts uint32
	traffic                 Traffic
}

// idleSensors are roughly those of an idle H100 as nvidia-smi shows it; other boards differ.
var idleSensors = sensors{temperature: 30, milliwatts: 70_000}

func (s *sensors) set(use Use) {
	if use.Temperature != nil {
		s.temperature = *use.Temperature
	}
	if use.PowerMilliwatts != nil {
		s.milliwatts = *use.PowerMilliwatts
	}
	if use.NVLink != nil {
		s.traffic = *use.NVLink
	}
}

// GetTemperature implements nvml.Device. NVML has the one sensor NVML_TEMPERATURE_GPU (nvml.h).
func (d *device) GetTemperature(sensor nvml.TemperatureSensors) (uint32, nvml.Return) {
	temperature, ret := read(d.refuser, "nvmlDeviceGetTemperature", func() uint32 { return d.gpu.sensors.temperature })
	if ret == nvml.SUCCESS && sensor != nvml.TEMPERATURE_GPU {
		return 0, nvml.ERROR_INVALID_ARGUMENT
	}
	return temperature, ret
}

// GetPowerUsage implements nvml.Device, in milliwatts.
func (d *device) GetPowerUsage() (uint32, nvml.Return) {
	return read(d.refuser, "nvmlDeviceGetPowerUsage", func() uint32 { return d.gpu.sensors.milliwatts })
}

// countsTraffic reports whether the board has the counters that supersede NVLink's counter sets (nvml.h,
// NVML_FI_DEV_NVLINK_BANDWIDTH_*). They are seen on Ampere (Syllo/nvtop #469, XuehaiPan/nvitop #87); that
// older boards lack them is a guess.
func (g *gpu) countsTraffic() bool {
	return len(g.links) > 0 && g.architecture >= nvml.DEVICE_ARCH_AMPERE
}

// traffic is the value of a counter in KiB. The scope UINT_MAX stands for all links (nvml.h); single
// links are not modelled.
func (d *device) traffic(field, scope uint32) (kib uint64, found bool) {
	if !d.gpu.countsTraffic() || scope != math.MaxUint32 {
		return 0, false
	}
	d.session.machine.mu.Lock()
	defer d.session.machine.mu.Unlock()
	switch field {
	case nvml.FI_DEV_NVLINK_THROUGHPUT_DATA_TX:
		return d.gpu.sensors.traffic.SentKiB, true
	case nvml.FI_DEV_NVLINK_THROUGHPUT_DATA_RX:
		return d.gpu.sensors.traffic.ReceivedKiB, true
	}
	return 0, false
}
