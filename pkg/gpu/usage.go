package gpu

// Usage is how busy a GPU or MIG device is. A value that the device does not report is nil, never 0.
type Usage struct {
	// Utilization is the part of the time shortly before in which something ran on the
	// device, 0 to 1.
	Utilization *float64
	Memory      *MemoryUsage
}

// MemoryUsage is how much memory of a device is taken, in bytes.
type MemoryUsage struct {
	// Used is the memory of processes. Total includes what the driver reserves.
	Used, Total uint64
}

// Sensors are what a GPU measures of itself. A value that it does not report is nil, never 0.
type Sensors struct {
	// Temperature is in degrees Celsius, Power in watts.
	Temperature, Power *float64
	NVLink             *Traffic
}

// Traffic is how many bytes a GPU has sent and received over all its NVLinks, without the
// protocol's overhead, since the driver was loaded.
type Traffic struct {
	Sent, Received uint64
}

// Metrics of the Usage of devices that prepared claims hold. A node's plugin serves them, and
// the controller reads them. Each has the label "device": the device's name in the node's pool.
const (
	MetricUtilization = "mica_device_utilization_ratio"
	MetricMemoryUsed  = "mica_device_memory_used_bytes"
	MetricMemoryTotal = "mica_device_memory_total_bytes"
	MetricSampled     = "mica_device_sample_timestamp_seconds"
)
