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

// eventTypes are those about a GPU's health.
const eventTypes = nvml.EventTypeXidCriticalError | nvml.EventTypeGpuRecoveryAction | nvml.EventTypeDoubleBitEccError |
	nvml.EventTypeDramRetirementFailure | nvml.EventTypeNonFatalPoisonError | nvml.EventTypeFatalPoisonError | nvml.EventTypeGpuUnavailableError

var incidents = map[uint64]health.Incident{
	nvml.EventTypeDoubleBitEccError:     health.DoubleBitECC,
	nvml.EventTypeDramRetirementFailure: health.RetirementFailed,
	nvml.EventTypeNonFatalPoisonError:   health.NonFatalPoison,
	nvml.EventTypeFatalPoisonError:      health.FatalPoison,
	nvml.EventTypeGpuUnavailableError:   health.Unavailable,
}

// Report is an event of a GPU. One without XID and Incident means that Health has changed.
type Report struct {
	UUID string
	health.Event
}

// NextEvent waits until the driver reports an event of a known GPU, or ctx ends. While NVML is closed,
// there are no events. After an error, such as the loss of a GPU, callers can continue to wait for the
// others.
func (l *Library) NextEvent(ctx context.Context) (Report, error) {
	for {
		report, state, err := l.sessions.await()
		if state == reported || err != nil {
			return report, err
		}
		// No timer of zero: under the race detector, two goroutines of a synctest bubble that each fire
		// one crash Go 1.26's runtime.
		if state != deaf {
			if ctx.Err() != nil {
				return Report{}, ctx.Err()
			}
			continue
		}
		select {
		case <-ctx.Done():
			return Report{}, ctx.Err()
		case <-time.After(eventWait):
		}
	}
}

// awaited is the result of a wait.
type awaited int

const (
	// deaf: no GPU can report events.
	deaf awaited = iota
	// quiet: there was no event.
	quiet
	reported
)

// await waits once. The session lives on meanwhile, because ending it waits for listening.
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

// listen registers the known GPUs, each once. Without a GPU there is no event set. A GPU that does not
// answer does not affect the others.
func (s *sessions) listen(in *session) (nvml.EventSet, error) {
	for _, d := range in.devices() {
		if in.registered[d] {
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
			in.registered[d] = true
		}
	}
	if len(in.registered) == 0 {
		return nil, nil //nolint:nilnil // there is none
	}
	return in.events, nil
}

// report registers the GPU with an event set, and reports whether that succeeded. Health reports why
// not.
func (d *device) report(to nvml.EventSet) bool {
	supported, ret := d.GetSupportedEventTypes()
	types := supported & eventTypes
	return ret == nvml.SUCCESS && (types == 0 || d.RegisterEvents(types, to) == nvml.SUCCESS)
}

// stopListening frees the event set, which may contain a lost GPU.
func (s *session) stopListening() {
	if s.events != nil {
		_ = s.events.Free() // it ends with the session at the latest
		s.events = nil
	}
	clear(s.registered)
}

// read converts an event, unless it is of an unknown GPU.
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

// placeOf returns the placement of a GPU instance, or the entire GPU if it is gone.
func (d *device) placeOf(id int) (place gpu.Placement) {
	_ = d.onInstance(id, func(handle nvml.GpuInstance) nvml.Return {
		instance, ret := d.info(handle)
		place = gpu.Placement{ProfileID: instance.ProfileID, Start: instance.Start, Size: instance.Size}
		return ret
	})
	return place
}
