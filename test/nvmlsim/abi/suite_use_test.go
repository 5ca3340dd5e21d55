package abi_test

import (
	"encoding/binary"
	"math"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"k8s.io/utils/ptr"

	"github.com/mica-gpu/mica/test/nvmlsim/model"
)

func used(percent int, memory uint64) model.Use {
	return model.Use{Utilization: &percent, MemoryBytes: &memory}
}

// restoreUse leaves no GPU in use that is used as a whole, and no instance.
func (s suite) restoreUse(t *testing.T) {
	t.Helper()
	for _, g := range s.state(t).GPUs {
		if g.MIGMode != "Enabled" {
			act(t, s.control.SetUse(g.Index, nil, used(0, 0)))
		}
		for _, gi := range g.Instances {
			act(t, s.control.SetUse(g.Index, &gi.ID, used(0, 0)))
		}
	}
}

func (s suite) use(t *testing.T) {
	s.each(t, func(t *testing.T, _ nvml.Interface, gpu int, d nvml.Device) {
		if s.enabled(gpu) {
			refuses(t, "GetUtilizationRates with MIG enabled", nvml.ERROR_NOT_SUPPORTED)(d.GetUtilizationRates())
			return
		}
		const taken = 3 << 30
		total := s.board(t, gpu).MemoryBytes()
		gives(t, "the utilization", nvml.Utilization{})(d.GetUtilizationRates())
		act(t, s.control.SetUse(gpu, nil, used(80, taken)))
		gives(t, "the utilization", nvml.Utilization{Gpu: 80})(d.GetUtilizationRates())
		gives(t, "the memory", nvml.Memory{Total: total, Free: total - taken, Used: taken})(d.GetMemoryInfo())
		if v2, ret := d.GetMemoryInfo_v2(); ret != nvml.SUCCESS || v2.Used != taken || v2.Used+v2.Free+v2.Reserved != total {
			t.Errorf("the memory is %+v (%v), want %d bytes of %d used", v2, ret, taken, total)
		}
		// What is not named stays.
		percent := 7
		act(t, s.control.SetUse(gpu, nil, model.Use{Utilization: &percent}))
		gives(t, "the utilization", nvml.Utilization{Gpu: 7})(d.GetUtilizationRates())
		gives(t, "the memory", nvml.Memory{Total: total, Free: total - taken, Used: taken})(d.GetMemoryInfo())
		if use := s.state(t).GPUs[gpu].Use; use != (model.UseState{Utilization: 7, MemoryBytes: taken}) {
			t.Errorf("the machine's state has the use %+v", use)
		}
	})
}

// sensors have values also with MIG enabled.
func (s suite) sensors(t *testing.T) {
	s.each(t, func(t *testing.T, _ nvml.Interface, gpu int, d nvml.Device) {
		act(t, s.control.SetUse(gpu, nil, model.Use{Temperature: ptr.To(uint32(65)), PowerMilliwatts: ptr.To(uint32(420_500))}))
		gives(t, "the temperature", uint32(65))(d.GetTemperature(nvml.TEMPERATURE_GPU))
		refuses(t, "a sensor that there is not", nvml.ERROR_INVALID_ARGUMENT)(d.GetTemperature(nvml.TEMPERATURE_COUNT))
		gives(t, "the power usage", uint32(420_500))(d.GetPowerUsage())

		board := s.board(t, gpu)
		counts := board.NVLink != nil && board.NVLink.Version >= "3.0" // that of Ampere
		const more = 1 << 40                                           // than 32 bits have
		if err := s.control.SetUse(gpu, nil, model.Use{NVLink: &model.Traffic{SentKiB: more, ReceivedKiB: 3}}); (err == nil) != counts {
			t.Errorf("setting the counters of NVLinks: %v", err)
		}
		values := []nvml.FieldValue{
			{FieldId: nvml.FI_DEV_NVLINK_THROUGHPUT_DATA_TX, ScopeId: math.MaxUint32}, {FieldId: nvml.FI_DEV_NVLINK_THROUGHPUT_DATA_RX, ScopeId: math.MaxUint32},
			{FieldId: nvml.FI_DEV_NVLINK_THROUGHPUT_DATA_TX, ScopeId: 0},
		}
		returns(t, "GetFieldValues", nvml.SUCCESS, d.GetFieldValues(values))
		for i, want := range []uint64{more, 3, 0} {
			ret := nvml.ERROR_NOT_SUPPORTED
			if counts && i < 2 {
				ret = nvml.SUCCESS
			}
			returns(t, "a counter of NVLinks", ret, nvml.Return(values[i].NvmlReturn))
			if got := binary.NativeEndian.Uint64(values[i].Value[:]); ret == nvml.SUCCESS && (got != want || values[i].ValueType != uint32(nvml.VALUE_TYPE_UNSIGNED_LONG_LONG)) {
				t.Errorf("counter %d is %d of type %d, want %d", i, got, values[i].ValueType, want)
			}
		}
	})
}

func (s suite) useOfInstances(t *testing.T) {
	s.partition(t, func(t *testing.T, _ nvml.Interface, gpu int, d nvml.Device) {
		one := smallest(t, s.board(t, gpu))
		total, size := s.board(t, gpu).MemoryBytes(), one.MemoryMiB<<20
		var migs []nvml.Device
		for _, start := range one.Starts[:2] {
			migs = append(migs, migDevice(t, fill(t, place(t, d, one, start), 1)))
		}
		first := s.state(t).GPUs[gpu].Instances[0].ID
		second := s.state(t).GPUs[gpu].Instances[1].ID
		const taken = 1 << 30
		act(t, s.control.SetUse(gpu, &first, used(40, taken)))
		act(t, s.control.SetUse(gpu, &second, used(90, 2*taken)))
		gives(t, "the memory of a MIG device", nvml.Memory{Total: size, Free: size - taken, Used: taken})(migs[0].GetMemoryInfo())
		if v2, ret := migs[1].GetMemoryInfo_v2(); ret != nvml.SUCCESS || v2.Used != 2*taken || v2.Total != size {
			t.Errorf("the memory of a MIG device is %+v (%v), want %d bytes of %d used", v2, ret, 2*taken, size)
		}
		gives(t, "the memory of the GPU", nvml.Memory{Total: total, Free: total - 3*taken, Used: 3 * taken})(d.GetMemoryInfo())
		const no = nvml.ERROR_NOT_SUPPORTED
		refuses(t, "GetUtilizationRates with MIG enabled", no)(d.GetUtilizationRates())
		refuses(t, "GetUtilizationRates of a MIG device", no)(migs[0].GetUtilizationRates())
		if err := s.control.SetUse(gpu, nil, used(1, 0)); err == nil {
			t.Error("a GPU on which MIG is enabled was used as a whole")
		}
		// An instance takes its use with it.
		act(t, s.control.DestroyInstance(gpu, first))
		gives(t, "the memory of the GPU", nvml.Memory{Total: total, Free: total - 2*taken, Used: 2 * taken})(d.GetMemoryInfo())
	})
}

// counters reads GPM's metrics between two samples of a GPU instance.
func counters(t *testing.T, lib nvml.Interface, first, second nvml.GpmSample, metrics ...nvml.GpmMetricId) (nvml.GpmMetricsGetType, nvml.Return) {
	t.Helper()
	asked := nvml.GpmMetricsGetType{NumMetrics: uint32(len(metrics)), Sample1: first, Sample2: second}
	for i, id := range metrics {
		asked.Metrics[i].MetricId = uint32(id)
	}
	return asked, lib.GpmMetricsGet(&asked)
}

func sample(t *testing.T, lib nvml.Interface) nvml.GpmSample {
	t.Helper()
	allocated, ret := lib.GpmSampleAlloc()
	if ret != nvml.SUCCESS {
		t.Fatalf("allocate a sample: %v", ret)
	}
	return allocated
}

func (s suite) counters(t *testing.T) {
	s.partition(t, func(t *testing.T, lib nvml.Interface, gpu int, d nvml.Device) {
		one := smallest(t, s.board(t, gpu))
		fill(t, place(t, d, one, one.Starts[0]), 1)
		fill(t, place(t, d, one, one.Starts[1]), 1)
		id, other := s.state(t).GPUs[gpu].Instances[0].ID, s.state(t).GPUs[gpu].Instances[1].ID
		first, second := sample(t, lib), sample(t, lib)
		if !resetless(s.board(t, gpu)) { // Hopper brought both
			gives(t, "the support of GPM", nvml.GpmSupport{Version: 1})(d.GpmQueryDeviceSupport())
			returns(t, "GpmMigSampleGet", nvml.ERROR_NOT_SUPPORTED, d.GpmMigSampleGet(id, first))
			return
		}
		gives(t, "the support of GPM", nvml.GpmSupport{Version: 1, IsSupportedDevice: 1})(d.GpmQueryDeviceSupport())
		returns(t, "GpmMigSampleGet of no instance", nvml.ERROR_NOT_FOUND, d.GpmMigSampleGet(99, first))
		_, ret := counters(t, lib, first, second, nvml.GPM_METRIC_GRAPHICS_UTIL)
		returns(t, "GpmMetricsGet of empty samples", nvml.ERROR_INVALID_ARGUMENT, ret)

		// The time before the first sample does not count.
		act(t, s.control.SetUse(gpu, &id, used(5, 0)))
		act(t, s.control.SetUse(gpu, &id, used(60, 0)))
		returns(t, "GpmMigSampleGet", nvml.SUCCESS, d.GpmMigSampleGet(id, first))
		for start := time.Now(); time.Since(start) < time.Millisecond; { // nanoseconds are rounded
			returns(t, "GpmMigSampleGet", nvml.SUCCESS, d.GpmMigSampleGet(id, second))
		}
		got, ret := counters(t, lib, first, second, nvml.GPM_METRIC_DRAM_BW_UTIL, nvml.GPM_METRIC_GRAPHICS_UTIL)
		returns(t, "GpmMetricsGet", nvml.SUCCESS, ret)
		returns(t, "a metric that is not modelled", nvml.ERROR_NOT_SUPPORTED, nvml.Return(got.Metrics[0].NvmlReturn))
		returns(t, "the utilization", nvml.SUCCESS, nvml.Return(got.Metrics[1].NvmlReturn))
		if math.Abs(got.Metrics[1].Value-60) > 0.1 {
			t.Errorf("the instance is utilised for %v%% of the time, want 60", got.Metrics[1].Value)
		}
		_, ret = counters(t, lib, second, first, nvml.GPM_METRIC_GRAPHICS_UTIL)
		returns(t, "GpmMetricsGet of samples in the wrong order", nvml.ERROR_INVALID_ARGUMENT, ret)
		returns(t, "GpmMigSampleGet of another instance", nvml.SUCCESS, d.GpmMigSampleGet(other, second))
		_, ret = counters(t, lib, first, second, nvml.GPM_METRIC_GRAPHICS_UTIL)
		returns(t, "GpmMetricsGet of two instances", nvml.ERROR_INVALID_ARGUMENT, ret)

		returns(t, "Free", nvml.SUCCESS, second.Free())
		returns(t, "GpmMigSampleGet into a freed sample", nvml.ERROR_INVALID_ARGUMENT, d.GpmMigSampleGet(id, second))
		returns(t, "Free of a freed sample", nvml.ERROR_INVALID_ARGUMENT, second.Free())
		returns(t, "Free", nvml.SUCCESS, first.Free())
	})
}
