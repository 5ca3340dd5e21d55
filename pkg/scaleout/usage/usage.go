// Package usage knows how busy devices are that workloads hold: it asks the plugins' metrics,
// and gives a shared device to those who share it by their parts. It never touches a GPU, and
// says nothing where it does not know.
package usage

import "time"

// Reading is how busy a device was.
type Reading struct {
	// Utilization is the part of the last Window in which the device ran something, 0 to 1;
	// nil where the device does not tell.
	Utilization *float64
	// MemoryUsed and MemoryTotal are bytes; nil where the device does not tell.
	MemoryUsed, MemoryTotal *float64
	// At is when the plugin sampled it.
	At time.Time
}

// Usage is how busy the devices of a workload are.
type Usage struct {
	// Utilization and Memory are means over the workload's devices, 0 to 1, each device with
	// the weight of the part that the workload holds of it.
	Utilization, Memory float64
	// Devices counts them.
	Devices int
}

// Metrics of the plugin that are asked for. Each has the label "device": the device's name in
// the node's pool. They exist for devices that a prepared claim holds.
const (
	MetricUtilization = "mica_device_utilization_ratio"
	MetricMemoryUsed  = "mica_device_memory_used_bytes"
	MetricMemoryTotal = "mica_device_memory_total_bytes"
	MetricSampled     = "mica_device_sample_timestamp_seconds"
)
