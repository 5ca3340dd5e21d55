package wire

import (
	"reflect"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// gpmMetric is nvmlGpmMetric_t. Its strings are the library's own and stay NULL here,
// which the header allows.
type gpmMetric struct {
	MetricID   uint32
	NvmlReturn uint32
	Value      float64
	MetricInfo [3]HandleWord
}

// gpmMetricsGet is nvmlGpmMetricsGet_t, whose go-nvml form has interfaces in it.
type gpmMetricsGet struct {
	Version          uint32
	NumMetrics       uint32
	Sample1, Sample2 HandleWord
	Metrics          [len(nvml.GpmMetricsGetType{}.Metrics)]gpmMetric
}

func serveGPMSupport(c *call) nvml.Return {
	device, ok := c.device()
	if !ok {
		return nvml.ERROR_INVALID_ARGUMENT
	}
	asked := structFrom(c.args[1].data, reflect.TypeFor[nvml.GpmSupport]()).Elem().Interface().(nvml.GpmSupport)
	if asked.Version != nvml.GPM_SUPPORT_VERSION {
		return nvml.ERROR_ARGUMENT_VERSION_MISMATCH
	}
	support, r := device.GpmQueryDeviceSupport()
	if r == nvml.SUCCESS {
		c.args[1].answer = bytesOf(reflect.ValueOf(support))
	}
	return r
}

func serveGPMMetrics(c *call) nvml.Return {
	asked := structFrom(c.args[0].data, c.f.Args[0].Type).Interface().(*gpmMetricsGet)
	if asked.Version != nvml.GPM_METRICS_GET_VERSION {
		return nvml.ERROR_ARGUMENT_VERSION_MISMATCH
	}
	metrics := nvml.GpmMetricsGetType{Version: asked.Version, NumMetrics: asked.NumMetrics}
	metrics.Sample1, metrics.Sample2 = c.gpmSample(asked.Sample1), c.gpmSample(asked.Sample2)
	for i, m := range asked.Metrics {
		metrics.Metrics[i].MetricId = m.MetricID
	}
	if r := c.session.library.GpmMetricsGet(&metrics); r != nvml.SUCCESS {
		return r
	}
	for i := range min(int(asked.NumMetrics), len(asked.Metrics)) {
		got := metrics.Metrics[i]
		asked.Metrics[i].NvmlReturn, asked.Metrics[i].Value = got.NvmlReturn, got.Value
		asked.Metrics[i].MetricInfo = [3]HandleWord{}
	}
	c.args[0].answer = bytesOf(reflect.ValueOf(*asked))[:c.args[0].room]
	return nvml.SUCCESS
}

// gpmSample is the sample behind a handle, nil where there is none.
func (c *call) gpmSample(h HandleWord) nvml.GpmSample {
	object, ok := c.session.object(h, reflect.TypeFor[nvml.GpmSample]())
	if !ok {
		return nil
	}
	return object.(nvml.GpmSample)
}
