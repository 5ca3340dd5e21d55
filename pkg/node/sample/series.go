package sample

import (
	"slices"
	"time"

	"github.com/mica-gpu/mica/pkg/gpu"
)

// series has the samples of a device. The Sampler's mu guards samples, reported and the claims.
type series struct {
	Device
	// meter belongs to the goroutine that reads the GPU.
	meter   Meter
	samples []sampled // of the last window, oldest first
	// reported is the logged error, empty if the last read had none.
	reported string
}

type sampled struct {
	gpu.Usage
	at time.Time
}

// continues reports whether the device is that of the series and shares a claim with it. The
// samples of other claims are not its own.
func (s *series) continues(d Device) bool {
	return s.Name == d.Name && s.UUID == d.UUID &&
		slices.ContainsFunc(s.Claims, func(claim string) bool { return slices.Contains(d.Claims, claim) })
}

// add adds a sample, unless it is empty.
func (s *series) add(usage gpu.Usage, at time.Time) {
	if usage == (gpu.Usage{}) {
		return
	}
	s.samples = append(slices.DeleteFunc(s.samples, func(old sampled) bool { return at.Sub(old.at) > window }), sampled{usage, at})
}

// failed records the error and reports whether to log it: once while it lasts.
func (s *series) failed(err error) bool {
	before := s.reported
	if s.reported = ""; err != nil {
		s.reported = err.Error()
	}
	return err != nil && s.reported != before
}

// recent returns the mean utilization of the window, the last memory and the time of the last
// sample. known is false without a sample.
func (s *series) recent(now time.Time) (usage gpu.Usage, at time.Time, known bool) {
	var sum, count float64
	for _, sample := range s.samples {
		if now.Sub(sample.at) > window {
			continue
		}
		at, known = sample.at, true
		if sample.Memory != nil {
			usage.Memory = sample.Memory
		}
		if sample.Utilization != nil {
			sum, count = sum+*sample.Utilization, count+1
		}
	}
	if count > 0 {
		mean := sum / count
		usage.Utilization = &mean
	}
	return usage, at, known
}
