package sample

import (
	"time"

	"k8s.io/component-base/metrics"

	"github.com/mica-gpu/mica/pkg/gpu"
)

var (
	utilization = describe(gpu.MetricUtilization, "Part of the last 15 seconds in which something ran on a device that a prepared claim holds, 0 to 1; absent if the device does not report it.")
	memoryUsed  = describe(gpu.MetricMemoryUsed, "Memory that is taken of a device that a prepared claim holds; absent if the device does not report it.")
	memoryTotal = describe(gpu.MetricMemoryTotal, "Memory of a device that a prepared claim holds; absent if the device does not report it.")
	lastSample  = describe(gpu.MetricSampled, "When a device that a prepared claim holds was sampled last, in seconds since 1970.")
)

func describe(name, help string) *metrics.Desc {
	return metrics.NewDesc(name, help, []string{"device"}, nil, metrics.ALPHA, "")
}

var _ metrics.StableCollector = (*Sampler)(nil)

// DescribeWithStability implements metrics.StableCollector.
func (s *Sampler) DescribeWithStability(into chan<- *metrics.Desc) {
	for _, desc := range []*metrics.Desc{utilization, memoryUsed, memoryTotal, lastSample} {
		into <- desc
	}
}

// CollectWithStability implements metrics.StableCollector. Devices of a GPU that has stopped
// answering disappear after the window.
func (s *Sampler) CollectWithStability(into chan<- metrics.Metric) {
	for _, metric := range s.collect(time.Now()) {
		into <- metric
	}
}

func (s *Sampler) collect(now time.Time) []metrics.Metric {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []metrics.Metric
	for _, b := range s.gpus {
		for _, of := range b.series {
			usage, at, known := of.recent(now)
			if !known {
				continue
			}
			gauge := func(desc *metrics.Desc, value float64) {
				all = append(all, metrics.NewLazyConstMetric(desc, metrics.GaugeValue, value, of.Name))
			}
			gauge(lastSample, float64(at.UnixMilli())/1000)
			if usage.Utilization != nil {
				gauge(utilization, *usage.Utilization)
			}
			if usage.Memory != nil {
				gauge(memoryUsed, float64(usage.Memory.Used))
				gauge(memoryTotal, float64(usage.Memory.Total))
			}
		}
	}
	return all
}
