package monitor

import (
	"strconv"

	"k8s.io/component-base/metrics"
)

var xidErrors = metrics.NewCounterVec(&metrics.CounterOpts{
	Name:           "mica_gpu_xid_errors_total",
	Help:           "XID errors that the NVIDIA driver has reported to this process, by number.",
	StabilityLevel: metrics.ALPHA,
}, []string{"xid"})

// maxXID bounds the label: NVIDIA's numbers have three digits.
const maxXID = 999

func countXID(number uint64) {
	if number > maxXID {
		xidErrors.WithLabelValues("other").Inc()
		return
	}
	xidErrors.WithLabelValues(strconv.FormatUint(number, 10)).Inc()
}

// Metrics returns the metrics of the process.
func Metrics() []metrics.Registerable { return []metrics.Registerable{xidErrors} }
