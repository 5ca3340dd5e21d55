package driver

import (
	"slices"
	"time"

	"k8s.io/component-base/metrics"

	"github.com/mica-gpu/mica/pkg/node/monitor"
	"github.com/mica-gpu/mica/pkg/node/prepare"
	"github.com/mica-gpu/mica/pkg/node/publish"
)

// durationBuckets start at 1 ms. kubelet's histogram of the same calls starts at 100 ms, too coarse
// for this driver.
var durationBuckets = []float64{0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.5, 1, 2, 4, 8, 16, 32, 64}

var (
	operationSeconds = metrics.NewHistogramVec(&metrics.HistogramOpts{
		Name:           "mica_claim_operation_duration_seconds",
		Help:           "Time from kubelet's request for a claim to its answer, without the API server's part, by operation (prepare, unprepare) and result (ok, error).",
		Buckets:        durationBuckets,
		StabilityLevel: metrics.ALPHA,
	}, []string{"operation", "result"})
	phaseSeconds = metrics.NewHistogramVec(&metrics.HistogramOpts{
		Name:           "mica_claim_phase_duration_seconds",
		Help:           "Time spent in one phase of an operation on a claim.",
		Buckets:        durationBuckets,
		StabilityLevel: metrics.ALPHA,
	}, []string{"operation", "phase"})
	preparedClaims = metrics.NewGauge(&metrics.GaugeOpts{
		Name:           "mica_prepared_claims",
		Help:           "Claims that are prepared on this node.",
		StabilityLevel: metrics.ALPHA,
	})
)

// RegisterMetrics must be called once by a process that serves metrics.
func RegisterMetrics(register func(...metrics.Registerable)) {
	prepare.RegisterMetrics(register)
	register(slices.Concat(publish.Metrics(), monitor.Metrics(), []metrics.Registerable{operationSeconds, phaseSeconds, preparedClaims})...)
	// Initialize the series, so that a rate includes the first failure.
	for _, operation := range []string{"prepare", "unprepare"} {
		for _, result := range []string{"ok", "error"} {
			operationSeconds.WithLabelValues(operation, result)
		}
	}
}

func observeOperation(operation string, err error, duration time.Duration) {
	result := "ok"
	if err != nil {
		result = "error"
	}
	operationSeconds.WithLabelValues(operation, result).Observe(duration.Seconds())
}

// phases implements prepare.Phases.
type phases struct{}

// ObservePhase records one phase of an operation.
func (phases) ObservePhase(operation, phase string, duration time.Duration) {
	phaseSeconds.WithLabelValues(operation, phase).Observe(duration.Seconds())
}
