package nvml

import (
	"context"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mica-gpu/mica/pkg/gpu"
	"github.com/mica-gpu/mica/pkg/health"
)

// eventWait is how long one call waits for an event, and so how long a session may take to end.
const eventWait = 500 * time.Millisecond

// eventTypes are those that say something about a GPU's health.
const eventTypes = nvml.EventTypeXidCriticalError | nvml.EventTypeGpuRecoveryAction | nvml.EventTypeDoubleBitEccError |
	nvml.EventTypeDramRetirementFailure | nvml.EventTypeNonFatalPoisonError | nvml.EventTypeFatalPoisonError | nvml.EventTypeGpuUnavailableError

var incidents = map[uint64]health.Incident{
	nvml.EventTypeDoubleBitEccError:     health.DoubleBitECC,
	nvml.EventTypeDramRetirementFailure: health.RetirementFailed,
	nvml.EventTypeNonFatalPoisonError:   health.NonFatalPoison,
	nvml.EventTypeFatalPoisonError:      health.FatalPoison,
	nvml.EventTypeGpuUnavailableError:   health.Unavailable,
}

// Report is an event of a GPU. One without XID and Incident tells that Health has changed.
type Report struct {
	UUID string
	health.Event
}

// NextEvent waits until the driver reports something about a GPU that is known, or ctx ends.
// While NVML rests, nothing is reported. After an error, as when a GPU of those is lost, the
// others can be waited for again.
func (l *Library) NextEvent(ctx context.Context) (Report, error) {
	for {
		report, state, err := l.sessions.await()
		if state == reported || err != nil {
			return report, err
		}
		pause := time.Duration(0)
		if state == deaf {
			pause = eventWait
		}
		select {
		case <-ctx.Done():
			return Report{}, ctx.Err()
		case <-time.After(pause):
		}
	}
}

// awaited is how a wait has ended.
type awaited int

const (
	// deaf: there is no GPU that could report something.
	deaf awaited = iota
	// quiet: there was nothing to report.
	quiet
	reported
)

// await waits once. Meanwhile the session goes on, because who ends it waits for listening.
func (s *sessions) await() (Report, awaited, error) {
	s.listening <- struct{}{}
	defer func() { <-s.listening }()
	in := s.current.Load()
	if in == nil {
		return Report{}, deaf, nil
	}
	set, err := in.listen()
	if set == nil || err != nil {
		return Report{}, deaf, err
	}
	data, ret := set.Wait(uint32(eventWait.Milliseconds()))
	switch ret {
	case nvml.SUCCESS:
		report, known := in.report(data)
		if !known {
			return Report{}, quiet, nil
		}
		return report, reported, nil
	case nvml.ERROR_TIMEOUT:
		return Report{}, quiet, nil
	}
	in.stopListening()
	return Report{}, quiet, check(ret, "wait for events", "")
}

// listen registers the GPUs that are known, each once. There is no set while there is none.
func (s *session) listen() (nvml.EventSet, error) {
	for _, d := range s.devices() {
		if s.heard[d] {
			continue
		}
		supported, ret := d.GetSupportedEventTypes()
		if ret != nvml.SUCCESS {
			continue // Health tells whether it is lost
		}
		if s.events == nil {
			set, ret := s.api.EventSetCreate()
			if ret != nvml.SUCCESS {
				return nil, check(ret, "create a set of events", "")
			}
			s.events = set
		}
		if types := supported & eventTypes; types != 0 && d.RegisterEvents(types, s.events) != nvml.SUCCESS {
			continue
		}
		s.heard[d] = true
	}
	return s.events, nil
}

// stopListening frees the set, which may have a GPU that is lost.
func (s *session) stopListening() {
	if s.events != nil {
		_ = s.events.Free() // it ends with the session at the latest
		s.events = nil
	}
	clear(s.heard)
}

// report turns NVML's words into ours, unless it is about no GPU that is known.
func (s *session) report(data nvml.EventData) (Report, bool) {
	for _, d := range s.devices() {
		if d.Device != data.Device {
			continue
		}
		report := Report{UUID: d.uuid, Event: health.Event{Incident: incidents[data.EventType]}}
		if data.EventType == nvml.EventTypeXidCriticalError {
			report.XID = data.EventData
		}
		if data.GpuInstanceId != nvml.GPU_INSTANCE_ID_ANY {
			report.Place = d.placeOf(int(data.GpuInstanceId))
		}
		return report, true
	}
	return Report{}, false
}

// placeOf is where a GPU instance is, or the entire GPU for one that is gone.
func (d *device) placeOf(id int) (place gpu.Placement) {
	_ = d.onInstance(id, func(handle nvml.GpuInstance) nvml.Return {
		instance, ret := d.info(handle)
		place = gpu.Placement{ProfileID: instance.ProfileID, Start: instance.Start, Size: instance.Size}
		return ret
	})
	return place
}
