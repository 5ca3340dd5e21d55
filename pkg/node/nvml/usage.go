package nvml

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"k8s.io/utils/ptr"

	"github.com/mica-gpu/mica/pkg/gpu"
)

// Meter reads how busy one GPU or MIG device is, for one goroutine at a time. Meters of different
// devices do not block each other.
type Meter struct {
	library *Library
	uuid    string
	// in is the session that the fields below belong to.
	in *session
	// mig is the handle of a MIG device. It is read once: NVML may look at all GPUs for a UUID, and fail
	// if any of them is lost.
	mig nvml.Device
	// counters are nil for a GPU, and until a MIG device is read.
	counters *counters
}

// Meter returns a meter of a GPU or of a MIG device, without calling it yet.
func (l *Library) Meter(uuid string) *Meter { return &Meter{library: l, uuid: uuid} }

// Read reads the device; NVML has no new values within 100 ms (nvml.h). Unsupported values are nil
// without an error: A100 and A30 report no utilization of MIG devices. On other boards a MIG device's
// utilization covers the time since the last Read; the first one measures a time of its own and takes
// as long. If one part cannot be read, the other is returned with the error. It returns ErrGPULost if
// the GPU is lost, and ErrNotFound if the MIG device is gone.
func (m *Meter) Read() (gpu.Usage, error) {
	in, leave, err := m.library.sessions.enter()
	if err != nil {
		return gpu.Usage{}, err
	}
	defer leave()
	if m.in != in {
		m.in, m.mig, m.counters = in, nil, nil
	}
	if m.isMIG() {
		return m.readMIG()
	}
	d, err := in.device(m.uuid)
	if err != nil {
		return gpu.Usage{}, err
	}
	var usage gpu.Usage
	var memory, utilization error
	usage.Memory, memory = readMemory(d.Device, m.uuid)
	usage.Utilization, utilization = readRates(d.Device, m.uuid)
	err = errors.Join(memory, utilization)
	_ = in.judge(d, memory)
	_ = in.judge(d, utilization)
	return usage, err
}

func (m *Meter) readMIG() (gpu.Usage, error) {
	if err := m.open(); err != nil {
		return gpu.Usage{}, err
	}
	var usage gpu.Usage
	var memory, utilization error
	usage.Memory, memory = readMemory(m.mig, m.uuid)
	usage.Utilization, utilization = m.readCounters(m.mig)
	return usage, errors.Join(memory, utilization)
}

// open verifies that the handle is still the MIG device's: NVML reuses handles.
func (m *Meter) open() error {
	if m.mig == nil {
		known, found := m.in.migHandle(m.uuid)
		if !found {
			opened, ret := m.in.api.DeviceGetHandleByUUID(m.uuid)
			m.mig = opened
			return m.failed("open", ret)
		}
		m.mig = known
	}
	uuid, ret := m.mig.GetUUID()
	if ret == nvml.SUCCESS && uuid != m.uuid {
		ret = nvml.ERROR_NOT_FOUND
	}
	return m.failed("read the UUID", goneAs(ret))
}

func (m *Meter) failed(call string, ret nvml.Return) error {
	if ret != nvml.SUCCESS {
		m.mig = nil
	}
	return check(ret, call, m.uuid)
}

// Close releases the meter's resources in NVML.
func (m *Meter) Close() error {
	held := m.counters
	m.counters = nil
	if held == nil {
		return nil
	}
	return m.library.sessions.within(m.in, func() error { return held.free(m.uuid) })
}

func (m *Meter) isMIG() bool { return strings.HasPrefix(m.uuid, "MIG-") }

// readMemory prefers version 2, whose used memory excludes what the driver reserves.
func readMemory(handle nvml.Device, name string) (*gpu.MemoryUsage, error) {
	v2, ret := handle.GetMemoryInfo_v2()
	used, total := v2.Used, v2.Total
	if ret == nvml.ERROR_NOT_SUPPORTED {
		var v1 nvml.Memory
		v1, ret = handle.GetMemoryInfo()
		used, total = v1.Used, v1.Total
	}
	if ret == nvml.ERROR_NOT_SUPPORTED {
		return nil, nil //nolint:nilnil // no value, no error: the memory is the system's
	}
	if ret != nvml.SUCCESS {
		return nil, check(goneAs(ret), "read the memory in use", name)
	}
	return &gpu.MemoryUsage{Used: used, Total: total}, nil
}

// readRates reads the utilization of a whole GPU over its last second or less.
func readRates(handle nvml.Device, name string) (*float64, error) {
	rates, ret := handle.GetUtilizationRates()
	if ret == nvml.ERROR_NOT_SUPPORTED {
		return nil, nil //nolint:nilnil // MIG was enabled meanwhile
	}
	if ret != nvml.SUCCESS {
		return nil, check(ret, "read the utilization", name)
	}
	return ptr.To(float64(rates.Gpu) / 100), nil
}

// Sense reads the sensors of a GPU. Unsupported values are nil without an error. If one part cannot be
// read, the others are returned with the error. It returns ErrGPULost if the GPU is lost, and nothing
// for a MIG device.
func (m *Meter) Sense() (gpu.Sensors, error) {
	if m.isMIG() {
		return gpu.Sensors{}, nil
	}
	in, leave, err := m.library.sessions.enter()
	if err != nil {
		return gpu.Sensors{}, err
	}
	defer leave()
	d, err := in.device(m.uuid)
	if err != nil {
		return gpu.Sensors{}, err
	}
	var sensors gpu.Sensors
	// Deprecated, but its successor nvmlDeviceGetTemperatureV is missing in older drivers.
	celsius, heat := d.GetTemperature(nvml.TEMPERATURE_GPU)
	milliwatts, power := d.GetPowerUsage()
	if heat == nvml.SUCCESS {
		sensors.Temperature = ptr.To(float64(celsius))
	}
	if power == nvml.SUCCESS {
		sensors.Power = ptr.To(float64(milliwatts) / 1000)
	}
	traffic, links := d.traffic()
	sensors.NVLink = traffic
	err = errors.Join(supported(heat, "read the temperature", m.uuid), supported(power, "read the power usage", m.uuid), links)
	if errors.Is(err, ErrGPULost) { // a broken sensor says nothing about the rest of the GPU
		err = in.judge(d, err)
	}
	return sensors, err
}

// supported is check, without an error for what the board does not support.
func supported(ret nvml.Return, call, name string) error {
	if ret == nvml.ERROR_NOT_SUPPORTED {
		return nil
	}
	return check(ret, call, name)
}

// traffic reads the counters of all NVLinks, which NVML has in KiB; nil on a board without them. Their
// scope UINT_MAX is the sum over all links (NVML_FI_DEV_NVLINK_THROUGHPUT_* in nvml.h).
func (d *device) traffic() (*gpu.Traffic, error) {
	values := fields(nvml.FI_DEV_NVLINK_THROUGHPUT_DATA_TX, nvml.FI_DEV_NVLINK_THROUGHPUT_DATA_RX)
	for i := range values {
		values[i].ScopeId = math.MaxUint32
	}
	if ret := d.GetFieldValues(values); ret != nvml.SUCCESS {
		return nil, supported(ret, "read the NVLink counters", d.uuid)
	}
	sent, known := number(values[0])
	received, both := number(values[1])
	if !known || !both {
		return nil, nil //nolint:nilnil // no value, no error: the board has no NVLink, or MIG has disabled it
	}
	return &gpu.Traffic{Sent: sent << 10, Received: received << 10}, nil
}

// goneAs returns NOT_FOUND for any error of a handle whose instance was destroyed.
func goneAs(ret nvml.Return) nvml.Return {
	if gone(ret) {
		return nvml.ERROR_NOT_FOUND
	}
	return ret
}

// firstInterval is the time of the first utilization: nvml.h requires more than 100 ms between
// samples.
const firstInterval = 150 * time.Millisecond

// counters are those of a GPU instance, on boards from Hopper on (GPM in nvml.h). NVML's utilization
// rates do not support MIG.
type counters struct {
	// parent is nil on a board without counters.
	parent   nvml.Device
	instance int
	api      nvml.Interface
	// last is the former sample, if any; next is to be filled.
	last, next nvml.GpmSample
	begun      bool
}

func (m *Meter) readCounters(handle nvml.Device) (*float64, error) {
	if m.counters == nil {
		opened, ret := openCounters(m.in.api, handle)
		if ret != nvml.SUCCESS {
			return nil, check(goneAs(ret), "open the counters", m.uuid)
		}
		m.counters = opened
	}
	value, ret := m.counters.read()
	if ret == nvml.ERROR_NOT_SUPPORTED {
		return nil, nil //nolint:nilnil // no value, no error
	}
	if ret != nvml.SUCCESS {
		return nil, check(goneAs(ret), "read the counters", m.uuid)
	}
	return value, nil
}

func openCounters(api nvml.Interface, mig nvml.Device) (*counters, nvml.Return) {
	parent, ret := mig.GetDeviceHandleFromMigDeviceHandle()
	if ret != nvml.SUCCESS {
		return nil, ret
	}
	support, ret := parent.GpmQueryDeviceSupport()
	if ret == nvml.ERROR_NOT_SUPPORTED || ret == nvml.SUCCESS && support.IsSupportedDevice == 0 {
		return &counters{}, nvml.SUCCESS
	}
	if ret != nvml.SUCCESS {
		return nil, ret
	}
	instance, ret := mig.GetGpuInstanceId()
	if ret != nvml.SUCCESS {
		return nil, ret
	}
	last, ret := api.GpmSampleAlloc()
	if ret != nvml.SUCCESS {
		return nil, ret
	}
	next, ret := api.GpmSampleAlloc()
	if ret != nvml.SUCCESS {
		_ = last.Free() // what cannot be allocated is the reason that counts
		return nil, ret
	}
	return &counters{parent: parent, instance: instance, api: api, last: last, next: next}, nvml.SUCCESS
}

// read is the utilization since the last read. The first read takes two samples: callers treat a
// device without a value as one without counters.
func (c *counters) read() (*float64, nvml.Return) {
	if c.parent == nil {
		return nil, nvml.ERROR_NOT_SUPPORTED
	}
	if !c.begun {
		if ret := c.parent.GpmMigSampleGet(c.instance, c.last); ret != nvml.SUCCESS {
			return nil, ret
		}
		c.begun = true
		time.Sleep(firstInterval)
	}
	if ret := c.parent.GpmMigSampleGet(c.instance, c.next); ret != nvml.SUCCESS {
		return nil, ret
	}
	c.last, c.next = c.next, c.last
	return utilizationBetween(c.api, c.next, c.last)
}

// questions are reused: one has 19 KB, and there is one for each partition of the node
// every other second.
var questions = sync.Pool{New: func() any { return new(nvml.GpmMetricsGetType) }}

func utilizationBetween(api nvml.Interface, before, now nvml.GpmSample) (*float64, nvml.Return) {
	asked, _ := questions.Get().(*nvml.GpmMetricsGetType)
	defer questions.Put(asked)
	asked.NumMetrics, asked.Sample1, asked.Sample2 = 1, before, now
	metric := &asked.Metrics[0]
	*metric = nvml.GpmMetric{MetricId: uint32(nvml.GPM_METRIC_GRAPHICS_UTIL)}
	if ret := api.GpmMetricsGet(asked); ret != nvml.SUCCESS {
		return nil, ret
	}
	if ret := nvml.Return(metric.NvmlReturn); ret != nvml.SUCCESS {
		return nil, ret
	}
	if percent := metric.Value; percent >= 0 { // false for what is no number
		return ptr.To(min(percent/100, 1)), nvml.SUCCESS
	}
	return nil, nvml.SUCCESS
}

func (c *counters) free(name string) error {
	if c.parent == nil {
		return nil
	}
	if err := errors.Join(check(c.last.Free(), "free a sample", name), check(c.next.Free(), "free a sample", name)); err != nil {
		return fmt.Errorf("give back the counters of %s: %w", name, err)
	}
	return nil
}
