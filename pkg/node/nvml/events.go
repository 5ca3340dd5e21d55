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
	set, err := s.listen(in)
	if set == nil || err != nil {
		return Report{}, deaf, err
	}
	data, ret := set.Wait(uint32(eventWait.Milliseconds()))
	switch ret {
	case nvml.SUCCESS:
		report, known := s.read(in, data)
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

// listen registers the GPUs that are known, each once. There is no set while there is none. One that
// does not answer keeps the others from nothing.
func (s *sessions) listen(in *session) (nvml.EventSet, error) {
	for _, d := range in.devices() {
		if in.heard[d] {
			continue
		}
		if in.events == nil {
			set, ret := s.api.EventSetCreate()
			if ret != nvml.SUCCESS {
				return nil, check(ret, "create a set of events", "")
			}
			in.events = set
		}
		set := in.events
		if done, err := bounded(s, "have "+d.uuid+" report events", func() (bool, error) { return d.report(set), nil }); done && err == nil {
			in.heard[d] = true
		}
	}
	if len(in.heard) == 0 {
		return nil, nil //nolint:nilnil // there is none
	}
	return in.events, nil
}

// report has the GPU report its events to a set, and tells whether that is done. Health tells why not.
func (d *device) report(to nvml.EventSet) bool {
	supported, ret := d.GetSupportedEventTypes()
	types := supported & eventTypes
	return ret == nvml.SUCCESS && (types == 0 || d.RegisterEvents(types, to) == nvml.SUCCESS)
}

// stopListening frees the set, which may have a GPU that is lost.
func (s *session) stopListening() {
	if s.events != nil {
		_ = s.events.Free() // it ends with the session at the latest
		s.events = nil
	}
	clear(s.heard)
}

// read turns NVML's words into ours, unless they are about no GPU that is known.
func (s *sessions) read(in *session, data nvml.EventData) (Report, bool) {
	for _, d := range in.devices() {
		if d.Device != data.Device {
			continue
		}
		report := Report{UUID: d.uuid, Event: health.Event{Incident: incidents[data.EventType]}}
		if data.EventType == nvml.EventTypeXidCriticalError {
			report.XID = data.EventData
		}
		if data.GpuInstanceId != nvml.GPU_INSTANCE_ID_ANY {
			report.Place, _ = bounded(s, "place an event of "+d.uuid, func() (gpu.Placement, error) { return d.placeOf(int(data.GpuInstanceId)), nil })
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
