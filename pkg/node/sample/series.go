package sample

import (
	"slices"
	"time"

	"github.com/mica-gpu/mica/pkg/gpu"
)

// series is what was sampled of a device. The Sampler's mu guards all but the meter and
// what never changes: of the device, all but its claims.
type series struct {
	Device
	// meter belongs to whoever reads the GPU.
	meter   Meter
	samples []sampled // of the last window, the oldest first
	// said is the error that was told, empty where the last read had none.
	said string
}

type sampled struct {
	gpu.Usage
	at time.Time
}

// continues tells whether the device is the one of the series, held by one of the same
// claims. What another claim did with it before is not its own.
func (s *series) continues(d Device) bool {
	return s.Name == d.Name && s.UUID == d.UUID &&
		slices.ContainsFunc(s.Claims, func(claim string) bool { return slices.Contains(d.Claims, claim) })
}

// add takes what was read at that time, if anything.
func (s *series) add(usage gpu.Usage, at time.Time) {
	if usage == (gpu.Usage{}) {
		return
	}
	s.samples = append(slices.DeleteFunc(s.samples, func(old sampled) bool { return at.Sub(old.at) > window }), sampled{usage, at})
}

// failed remembers the error, and tells whether it is to be said: each once while it lasts.
func (s *series) failed(err error) bool {
	before := s.said
	if s.said = ""; err != nil {
		s.said = err.Error()
	}
	return err != nil && s.said != before
}

// recent is what is known of the last window: the mean utilization, the last memory, and
// when the last sample was taken. It is false where there is none.
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
