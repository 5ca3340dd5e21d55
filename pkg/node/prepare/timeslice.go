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

// setInterval sets the time-slice of a GPU. Undone, it leaves the GPU with what another
// claim on it needs, or with the driver's own.
type setInterval struct {
	device *journal.Device
	others neighbours
}

func (s setInterval) do(ctx context.Context, tools Tools) error {
	return s.set(ctx, tools, gpu.Interval(s.device.Interval))
}

func (s setInterval) undo(ctx context.Context, tools Tools) error {
	needing, err := s.others.some(func(d journal.Device) bool {
		return d.UUID == s.device.UUID && d.Interval != "" || mayNeed(d, *s.device)
	})
	if err != nil || slices.ContainsFunc(needing, func(d journal.Device) bool { return d.Newer }) {
		return err
	}
	interval := gpu.DefaultInterval
	if len(needing) > 0 {
		interval = gpu.Interval(needing[0].Interval)
	}
	if string(interval) == s.device.Interval {
		return nil
	}
	ctx, cancel := toUndo(ctx, resetLimit)
	defer cancel()
	err = s.set(ctx, tools, interval)
	if errors.Is(err, errors.ErrUnsupported) || errors.Is(err, fs.ErrNotExist) {
		return nil // as it could not be set either, nothing of it is left
	}
	if _, reason := tools.Modes.ComputeMode(s.device.UUID); err != nil && lost(reason) {
		return reason // for whose sake no pod is kept
	}
	return err
}

func (s setInterval) set(ctx context.Context, tools Tools, interval gpu.Interval) error {
	if tools.TimeSlices == nil {
		return explained{fmt.Errorf("this plugin cannot set the time-slice of GPU %s to %s: use the interval %s", s.device.UUID, interval, gpu.DefaultInterval)}
	}
	return explain(tools.TimeSlices.Set(ctx, s.device.UUID, interval))
}

// resetLimit is what a time-slice gets to be set back, whose program is slow on a node with
// many GPUs that are not kept initialised.
const resetLimit = 30 * time.Second
