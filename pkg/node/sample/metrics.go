package sample

import (
	"time"

	"k8s.io/component-base/metrics"

	"github.com/mica-gpu/mica/pkg/gpu"
)

var (
	utilization = describe(gpu.MetricUtilization, "Part of the last 15 seconds in which something ran on a device that a prepared claim holds, 0 to 1; absent if the device does not report it.", "device")
	memoryUsed  = describe(gpu.MetricMemoryUsed, "Memory that is taken of a device that a prepared claim holds; absent if the device does not report it.", "device")
	memoryTotal = describe(gpu.MetricMemoryTotal, "Memory of a device that a prepared claim holds; absent if the device does not report it.", "device")
	lastSample  = describe(gpu.MetricSampled, "When a device that a prepared claim holds was sampled last, in seconds since 1970.", "device")

	gpuUtilization = describe("mica_gpu_utilization_ratio", "Part of the time in which something ran on a GPU or GPU instance, 0 to 1; absent if it does not report it, as a GPU with MIG.", labels...)
	gpuMemoryUsed  = describe("mica_gpu_memory_used_bytes", "Memory that is taken of a GPU or GPU instance; absent if it does not report it.", labels...)
	gpuMemoryTotal = describe("mica_gpu_memory_total_bytes", "Memory of a GPU or GPU instance; absent if it does not report it.", labels...)
	gpuTemperature = describe("mica_gpu_temperature_celsius", "Temperature of a GPU; absent if it does not report it.", labels...)
	gpuPower       = describe("mica_gpu_power_watts", "Power that a GPU draws; absent if it does not report it.", labels...)
	gpuSent        = describe("mica_gpu_nvlink_transmitted_bytes_total", "Data that a GPU has sent over its NVLinks; absent if it does not report it.", labels...)
	gpuReceived    = describe("mica_gpu_nvlink_received_bytes_total", "Data that a GPU has received over its NVLinks; absent if it does not report it.", labels...)
)

func describe(name, help string, labels ...string) *metrics.Desc {
	return metrics.NewDesc(name, help, labels, nil, metrics.ALPHA, "")
}

var _ metrics.StableCollector = (*Sampler)(nil)

// DescribeWithStability implements metrics.StableCollector.
func (s *Sampler) DescribeWithStability(into chan<- *metrics.Desc) {
	for _, desc := range []*metrics.Desc{
		utilization, memoryUsed, memoryTotal, lastSample,
		gpuUtilization, gpuMemoryUsed, gpuMemoryTotal, gpuTemperature, gpuPower, gpuSent, gpuReceived,
	} {
		into <- desc
	}
}

// CollectWithStability implements metrics.StableCollector. What has stopped answering disappears.
func (s *Sampler) CollectWithStability(into chan<- metrics.Metric) {
	for _, metric := range s.collect(time.Now()) {
		into <- metric
	}
}

func (s *Sampler) collect(now time.Time) []metrics.Metric {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all collected
	for _, b := range s.gpus {
		for _, of := range b.series {
			for _, h := range of.held {
				all.addDevice(of, h, now)
			}
			if of.unit != nil {
				all.addUnit(of, now)
			}
		}
	}
	return all
}

type collected []metrics.Metric

func (c *collected) addDevice(of *series, h *holding, now time.Time) {
	usage, at := of.recent(h.since)
	if now.Sub(at) > window {
		return
	}
	c.gauge(lastSample, float64(at.UnixMilli())/1000, h.Name)
	c.usage(utilization, memoryUsed, memoryTotal, usage, h.Name)
}

func (c *collected) addUnit(of *series, now time.Time) {
	named := of.unit.labels(of.pod())
	if usage, at := of.recent(time.Time{}); now.Sub(at) <= unitAge {
		c.usage(gpuUtilization, gpuMemoryUsed, gpuMemoryTotal, usage, named...)
	}
	if now.Sub(of.sensed) > unitAge {
		return
	}
	for desc, value := range map[*metrics.Desc]*float64{gpuTemperature: of.sensors.Temperature, gpuPower: of.sensors.Power} {
		if value != nil {
			c.gauge(desc, *value, named...)
		}
	}
	if traffic := of.sensors.NVLink; traffic != nil {
		unnamed := of.unit.labels(Pod{}) // the rate of a counter would lose what a new pod begins with
		c.add(gpuSent, metrics.CounterValue, float64(traffic.Sent), unnamed...)
		c.add(gpuReceived, metrics.CounterValue, float64(traffic.Received), unnamed...)
	}
}

func (c *collected) usage(utilization, used, total *metrics.Desc, usage gpu.Usage, labels ...string) {
	if usage.Utilization != nil {
		c.gauge(utilization, *usage.Utilization, labels...)
	}
	if usage.Memory != nil {
		c.gauge(used, float64(usage.Memory.Used), labels...)
		c.gauge(total, float64(usage.Memory.Total), labels...)
	}
}

func (c *collected) gauge(desc *metrics.Desc, value float64, labels ...string) {
	c.add(desc, metrics.GaugeValue, value, labels...)
}

func (c *collected) add(desc *metrics.Desc, kind metrics.ValueType, value float64, labels ...string) {
	*c = append(*c, metrics.NewLazyConstMetric(desc, kind, value, labels...))
}
