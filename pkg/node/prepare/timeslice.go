package prepare

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"time"

	"github.com/mica-gpu/mica/pkg/gpu"
	"github.com/mica-gpu/mica/pkg/node/journal"
)

// timeSlice is the data of the step that sets the time-slice of a GPU.
type timeSlice struct {
	Interval gpu.Interval `json:"interval"`
}

// setInterval sets the time-slice of a GPU. Undone, it leaves the one that another claim on
// the GPU needs, or the driver's own.
type setInterval struct {
	timeSlice
	device *journal.Device
	others neighbours
}

func addTimeSlice(w *work, at spot) {
	at.addTo(w, setInterval{dataOf[timeSlice](*at.device(), setTimeSlice), at.device(), at.others})
}

// inspectTimeSlice reports whether no other share has set the same interval. It refuses an interval
// that a claim chooses against another one.
func inspectTimeSlice(device *journal.Device, siblings []journal.Device, _ Tools) (change bool, err error) {
	desired := dataOf[timeSlice](*device, setTimeSlice)
	for _, sibling := range siblings {
		if set := dataOf[timeSlice](sibling, setTimeSlice).Interval; device.Form.Interval == "" && set != "" && set != desired.Interval {
			return false, fmt.Errorf("sharing.timeSlicingConfig.interval is %s, but another claim of %s has set %s: use the same interval, or delete that claim's pods", desired.Interval, device.Device, set)
		}
	}
	return !slices.ContainsFunc(siblings, func(d journal.Device) bool { return dataOf[timeSlice](d, setTimeSlice) == desired }), nil
}

func (s setInterval) do(ctx context.Context, tools Tools) error { return s.set(ctx, tools, s.Interval) }

func (s setInterval) undo(ctx context.Context, tools Tools) error {
	needing, err := s.others.some(func(d journal.Device) bool {
		return d.UUID == s.device.UUID && hasStep(d, setTimeSlice) || mayNeed(d, *s.device)
	})
	if err != nil || slices.ContainsFunc(needing, func(d journal.Device) bool { return d.Newer }) {
		return err
	}
	interval := gpu.DefaultInterval
	if len(needing) > 0 {
		interval = dataOf[timeSlice](needing[0], setTimeSlice).Interval
	}
	if interval == s.Interval {
		return nil
	}
	ctx, cancel := toUndo(ctx, resetLimit)
	defer cancel()
	err = s.set(ctx, tools, interval)
	if errors.Is(err, errors.ErrUnsupported) || errors.Is(err, fs.ErrNotExist) {
		return nil // it was never set
	}
	if _, reason := tools.Modes.ComputeMode(s.device.UUID); err != nil && lost(reason) {
		return reason // no pod is kept for a lost GPU
	}
	return err
}

func (s setInterval) set(ctx context.Context, tools Tools, interval gpu.Interval) error {
	if tools.TimeSlices == nil {
		return explained{fmt.Errorf("this plugin cannot set the time-slice of GPU %s to %s: use the interval %s", s.device.UUID, interval, gpu.DefaultInterval)}
	}
	return explain(tools.TimeSlices.Set(ctx, s.device.UUID, interval))
}

// resetLimit bounds setting a time-slice back. Its program is slow on a node with many GPUs
// without persistence mode.
const resetLimit = 30 * time.Second
