package model

import (
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// maxQueued bounds the events that a set keeps for a client that does not wait
// for them; the oldest go first.
const maxQueued = 1024

// eventSet is one client's subscription. Machine.mu guards its fields.
type eventSet struct {
	nvml.EventSet
	session *Session
	masks   map[*gpu]uint64
	queue   []nvml.EventData
	freed   bool
	// changed is closed and replaced whenever a waiter has to look again.
	changed chan struct{}
}

var _ nvml.EventSet = (*eventSet)(nil)

// EventSetCreate implements nvml.Interface.
func (s *Session) EventSetCreate() (nvml.EventSet, nvml.Return) {
	if ret := s.enter("nvmlEventSetCreate", nil); ret != nvml.SUCCESS {
		return nil, ret
	}
	set := &eventSet{
		session: s,
		masks:   map[*gpu]uint64{},
		changed: make(chan struct{}),
	}
	s.machine.mu.Lock()
	defer s.machine.mu.Unlock()
	if s.inits == 0 {
		return nil, nvml.ERROR_UNINITIALIZED
	}
	s.sets[set] = struct{}{}
	return set, nvml.SUCCESS
}

// GetSupportedEventTypes implements nvml.Device.
func (d *device) GetSupportedEventTypes() (uint64, nvml.Return) {
	if ret := d.enter("nvmlDeviceGetSupportedEventTypes"); ret != nvml.SUCCESS {
		return 0, ret
	}
	return d.session.machine.supportedEvents(d.gpu), nvml.SUCCESS
}

// RegisterEvents implements nvml.Device. A mask with a type that the GPU does
// not support registers nothing.
func (d *device) RegisterEvents(types uint64, set nvml.EventSet) nvml.Return {
	if ret := d.enter("nvmlDeviceRegisterEvents"); ret != nvml.SUCCESS {
		return ret
	}
	own, ok := set.(*eventSet)
	if !ok || own == nil || own.session != d.session || types&^nvml.EventTypeAll != 0 {
		return nvml.ERROR_INVALID_ARGUMENT
	}
	if types&^d.session.machine.supportedEvents(d.gpu) != 0 {
		return nvml.ERROR_NOT_SUPPORTED
	}
	d.session.machine.mu.Lock()
	defer d.session.machine.mu.Unlock()
	if own.freed {
		return nvml.ERROR_INVALID_ARGUMENT
	}
	own.masks[d.gpu] |= types
	own.wake()
	return nvml.SUCCESS
}

// deliver queues an event for a set that asked for it. It is called with
// Machine.mu held.
func (set *eventSet) deliver(g *gpu, e Event) {
	if set.masks[g]&e.Type == 0 {
		return
	}
	if len(set.queue) == maxQueued {
		set.queue = set.queue[1:]
	}
	set.queue = append(set.queue, nvml.EventData{
		Device:            set.session.device(g),
		EventType:         e.Type,
		EventData:         e.Data,
		GpuInstanceId:     e.GPUInstanceID,
		ComputeInstanceId: e.ComputeInstanceID,
	})
	set.wake()
}

// wake makes every waiter look again. It is called with Machine.mu held.
func (set *eventSet) wake() {
	close(set.changed)
	set.changed = make(chan struct{})
}

// free is called with Machine.mu held.
func (set *eventSet) free() {
	set.freed = true
	set.queue = nil
	delete(set.session.sets, set)
	set.wake()
}

// Free implements nvml.EventSet.
func (set *eventSet) Free() nvml.Return {
	if ret := set.session.enter("nvmlEventSetFree", nil); ret != nvml.SUCCESS {
		return ret
	}
	set.session.machine.mu.Lock()
	defer set.session.machine.mu.Unlock()
	if set.freed {
		return nvml.ERROR_INVALID_ARGUMENT
	}
	set.free()
	return nvml.SUCCESS
}

// Wait implements nvml.EventSet. Each event goes to one waiter of a set. While a
// GPU of the set is lost, a wait without queued events answers GPU_IS_LOST at once.
func (set *eventSet) Wait(timeoutMilliseconds uint32) (nvml.EventData, nvml.Return) {
	if ret := set.session.enter("nvmlEventSetWait_v2", nil); ret != nvml.SUCCESS {
		return nvml.EventData{}, ret
	}
	timer := time.NewTimer(time.Duration(timeoutMilliseconds) * time.Millisecond)
	defer timer.Stop()
	for {
		data, ret, changed := set.next()
		if ret != nvml.ERROR_TIMEOUT || timeoutMilliseconds == 0 {
			return data, ret
		}
		select {
		case <-changed:
		case <-timer.C:
			// An event may have come together with the time-out.
			data, ret, _ = set.next()
			return data, ret
		}
	}
}

// next takes what a waiter gets now; TIMEOUT means nothing, and that the waiter
// can look again when changed is closed.
func (set *eventSet) next() (data nvml.EventData, ret nvml.Return, changed <-chan struct{}) {
	m := set.session.machine
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case set.session.inits == 0:
		return data, nvml.ERROR_UNINITIALIZED, nil
	case set.freed:
		return data, nvml.ERROR_INVALID_ARGUMENT, nil
	case len(set.queue) > 0:
		data, set.queue = set.queue[0], set.queue[1:]
		return data, nvml.SUCCESS, nil
	}
	for g := range set.masks {
		if !g.reachable() {
			return data, nvml.ERROR_GPU_IS_LOST, nil
		}
	}
	return data, nvml.ERROR_TIMEOUT, set.changed
}
