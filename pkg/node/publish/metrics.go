package publish

import "k8s.io/component-base/metrics"

var (
	publishedDevices = metrics.NewGauge(&metrics.GaugeOpts{
		Name:           "mica_published_devices",
		Help:           "Devices of this node that the API server has.",
		StabilityLevel: metrics.ALPHA,
	})
	lastPublish = metrics.NewGauge(&metrics.GaugeOpts{
		Name:           "mica_last_successful_publish_timestamp_seconds",
		Help:           "When the API server last was seen to have exactly the devices that this node offers, in seconds since 1970. At most a minute old while all is well.",
		StabilityLevel: metrics.ALPHA,
	})
)

// Metrics are those of a Publisher.
func Metrics() []metrics.Registerable { return []metrics.Registerable{publishedDevices, lastPublish} }
