package sample

import (
	"slices"
	"time"

	"github.com/mica-gpu/mica/pkg/gpu"
)

// series has the samples of a GPU or MIG device. The Sampler's mu guards all but the meter.
type series struct {
	// gpu is the UUID of the physical GPU, uuid the same or that of a MIG device.
	gpu, uuid string
	// unit is nil for a MIG device that no look at the GPUs has found yet.
	unit *Unit
	// held are the devices of claims that are this GPU or MIG device.
	held []*holding
	// meter belongs to the goroutine that reads the GPU.
	meter   Meter
	samples []sampled // oldest first, at most a window older than the last
	sensors gpu.Sensors
	// begun is when the last read began, sensed when the sensors were last read; zero before the first.
	begun, sensed time.Time
	// renewed: other claims have it now, so that the next read is due, and covers no time before it.
	renewed bool
	// unread is the last error of a read, unsensed that of the sensors.
	unread, unsensed reported
}

// reported is a logged error, empty if the last call had none.
type reported string

// holding is a Device, with the time from which on the samples are its own.
type holding struct {
	Device
	since time.Time
}

type sampled struct {
	gpu.Usage
	at time.Time
}

// hold adds a device of claims, or updates it. The samples before are of other claims unless one
// of its claims stays.
func (s *series) hold(d Device, now time.Time) *holding {
	shared := func(claim string) bool { return slices.Contains(d.Claims, claim) }
	for _, h := range s.held {
		if h.Name == d.Name && slices.ContainsFunc(h.Claims, shared) {
			h.Device = d
			return h
		}
	}
	held := &holding{d, now}
	s.held = append(s.held, held)
	return held
}

// keep drops the devices that claims no longer have.
func (s *series) keep(held map[*holding]bool, now time.Time) {
	s.held = slices.DeleteFunc(s.held, func(h *holding) bool { return !held[h] })
	if len(s.held) > 0 && !slices.ContainsFunc(s.held, func(h *holding) bool { return h.since.Before(now) }) {
		s.renewed = true
	}
}

// names are those of the devices of claims.
func (s *series) names() []string {
	names := make([]string, len(s.held))
	for i, h := range s.held {
		names[i] = h.Name
	}
	return names
}

// entire reports whether it is a GPU, not a MIG device.
func (s *series) entire() bool { return s.uuid == s.gpu }

// add adds a sample, unless it is empty.
func (s *series) add(usage gpu.Usage, at time.Time) {
	if usage == (gpu.Usage{}) {
		return
	}
	s.samples = append(slices.DeleteFunc(s.samples, func(old sampled) bool { return at.Sub(old.at) > window }), sampled{usage, at})
}

// failed records the error and reports whether to log it: once while it lasts.
func (r *reported) failed(err error) bool {
	before := *r
	if *r = ""; err != nil {
		*r = reported(err.Error())
	}
	return err != nil && *r != before
}

// recent returns the mean utilization over the window before the last sample, the last memory and
// the time of the last sample, all since a time.
func (s *series) recent(since time.Time) (usage gpu.Usage, at time.Time) {
	var sum, count float64
	for _, sample := range s.samples {
		if sample.at.Before(since) {
			continue
		}
		at = sample.at
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
	return usage, at
}

// pod is the pod that has the GPU or MIG device to itself, if that is known: a claim whose pods are not
// known may be another pod's.
func (s *series) pod() Pod {
	if len(s.held) != 1 || len(distinct(s.held[0].Claims)) != 1 {
		return Pod{}
	}
	if pods := distinct(s.held[0].Pods); len(pods) == 1 {
		return pods[0]
	}
	return Pod{}
}

// distinct drops repetitions: a claim can have several shares of a device.
func distinct[T comparable](all []T) []T { return slices.Compact(slices.Clone(all)) }
