package model

import (
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// gpmSample is a buffer of a session for the counters of a GPU instance. Machine.mu
// guards its fields.
type gpmSample struct {
	nvml.GpmSample
	session *Session
	freed   bool
	// of is whose counters it has; nil until there are any.
	of  *gpuInstance
	at  time.Time
	ran time.Duration
}

var _ nvml.GpmSample = (*gpmSample)(nil)

// hasGPM reports whether the board has counters for NVML's GPM: from Hopper on.
func (g *gpu) hasGPM() bool { return g.architecture >= nvml.DEVICE_ARCH_HOPPER }

// GpmQueryDeviceSupport implements nvml.Device.
func (d *device) GpmQueryDeviceSupport() (nvml.GpmSupport, nvml.Return) {
	support := nvml.GpmSupport{Version: nvml.GPM_SUPPORT_VERSION}
	if d.gpu.hasGPM() {
		support.IsSupportedDevice = 1
	}
	return constant(d, "nvmlGpmQueryDeviceSupport", support)
}

// GpmSampleAlloc implements nvml.Interface.
func (s *Session) GpmSampleAlloc() (nvml.GpmSample, nvml.Return) {
	if ret := s.enter("nvmlGpmSampleAlloc", nil); ret != nvml.SUCCESS {
		return nil, ret
	}
	return &gpmSample{session: s}, nvml.SUCCESS
}

// Free implements nvml.GpmSample.
func (s *gpmSample) Free() nvml.Return {
	if ret := s.session.enter("nvmlGpmSampleFree", nil); ret != nvml.SUCCESS {
		return ret
	}
	s.session.machine.mu.Lock()
	defer s.session.machine.mu.Unlock()
	if s.freed {
		return nvml.ERROR_INVALID_ARGUMENT
	}
	s.freed = true
	return nvml.SUCCESS
}

// GpmMigSampleGet implements nvml.Device.
func (d *device) GpmMigSampleGet(instance int, into nvml.GpmSample) nvml.Return {
	sample, own := into.(*gpmSample)
	if ret := d.enter("nvmlGpmMigSampleGet"); ret != nvml.SUCCESS {
		return ret
	}
	d.session.machine.mu.Lock()
	defer d.session.machine.mu.Unlock()
	if !own || sample.freed {
		return nvml.ERROR_INVALID_ARGUMENT
	}
	if !d.gpu.hasGPM() || !d.gpu.migEnabled() {
		return nvml.ERROR_NOT_SUPPORTED
	}
	of := d.gpu.instances.byID[instance]
	if of == nil || !d.session.mayUse(of) {
		return nvml.ERROR_NOT_FOUND
	}
	now := time.Now()
	sample.of, sample.at, sample.ran = of, now, of.work.until(now)
	return nvml.SUCCESS
}

// GpmMetricsGet implements nvml.Interface. The metrics are about the time between two
// samples of one GPU instance; the first one is the older. Of the metrics, the one
// that is modelled is how long something ran. None has a name.
func (s *Session) GpmMetricsGet(metrics *nvml.GpmMetricsGetType) nvml.Return {
	if ret := s.enter("nvmlGpmMetricsGet", nil); ret != nvml.SUCCESS {
		return ret
	}
	if metrics == nil || int(metrics.NumMetrics) > len(metrics.Metrics) {
		return nvml.ERROR_INVALID_ARGUMENT
	}
	first, ok1 := metrics.Sample1.(*gpmSample)
	second, ok2 := metrics.Sample2.(*gpmSample)
	if !ok1 || !ok2 {
		return nvml.ERROR_INVALID_ARGUMENT
	}
	s.machine.mu.Lock()
	defer s.machine.mu.Unlock()
	if first.freed || second.freed || first.of == nil || first.of != second.of || !second.at.After(first.at) {
		return nvml.ERROR_INVALID_ARGUMENT
	}
	for i := range metrics.Metrics[:metrics.NumMetrics] {
		metric := &metrics.Metrics[i]
		if metric.MetricId != uint32(nvml.GPM_METRIC_GRAPHICS_UTIL) {
			metric.NvmlReturn = uint32(nvml.ERROR_NOT_SUPPORTED)
			continue
		}
		metric.NvmlReturn = uint32(nvml.SUCCESS)
		metric.Value = 100 * float64(second.ran-first.ran) / float64(second.at.Sub(first.at))
	}
	return nvml.SUCCESS
}
