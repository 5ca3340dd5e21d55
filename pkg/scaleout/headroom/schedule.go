package headroom

import (
	"fmt"
	"time"

	"github.com/robfig/cron/v3"

	"github.com/mica-gpu/mica/api/v1alpha1"
	"github.com/mica-gpu/mica/pkg/schedule"
)

// maxDuration keeps a weekly window from overlapping itself.
const maxDuration = 7 * 24 * time.Hour

// Wanted is the number of devices to keep free at a time, and when it may change next. Zero: never.
//
// Windows follow local time: when clocks change, a window of 24 hours lasts 23 or 25. A window that begins in a skipped hour
// begins at its end, and a window in a repeated hour is in force twice. With elapsed time instead, a window from 20:00 to
// 08:00 would end at 07:00 or 09:00 one night a year.
func Wanted(spec *v1alpha1.GPUHeadroomSpec, now time.Time) (int, time.Time, error) {
	wanted, scheduled := spec.Devices, false
	var next time.Time
	for i := range spec.Schedule {
		w, err := readWindow(spec.Schedule[i])
		if err != nil {
			return 0, time.Time{}, fmt.Errorf("entry %d of the schedule: %w", i, err)
		}
		in, change := w.at(now)
		if !change.IsZero() && (next.IsZero() || change.Before(next)) {
			next = change
		}
		switch {
		case in && !scheduled:
			wanted, scheduled = spec.Schedule[i].Devices, true
		case in:
			wanted = max(wanted, spec.Schedule[i].Devices)
		}
	}
	return int(wanted), next, nil
}

// window is a parsed v1alpha1.Window.
type window struct {
	start    cron.Schedule
	duration time.Duration
	zone     *time.Location
}

func readWindow(w v1alpha1.Window) (window, error) {
	d := w.Duration.Duration
	if d < time.Minute || d > maxDuration {
		return window{}, fmt.Errorf("the duration %s is not from 1m to %s, which are 7 days", d, maxDuration)
	}
	start, err := schedule.Parse(w.Start)
	if err != nil {
		return window{}, fmt.Errorf("the start %w", err)
	}
	zone, err := schedule.Zone(w.TimeZone)
	if err != nil {
		return window{}, err
	}
	return window{start: start, duration: d, zone: zone}, nil
}

// at reports whether the window is in force, and when that may change next.
func (w window) at(now time.Time) (bool, time.Time) {
	local := now.In(w.zone)
	wall := wallOf(local)
	// The first start within the last duration ends first.
	first := w.start.Next(wall.Add(-w.duration))
	in := !first.IsZero() && !first.After(wall)
	change := w.start.Next(wall)
	if in && (change.IsZero() || first.Add(w.duration).Before(change)) {
		change = first.Add(w.duration)
	}
	// Until the clocks change, local time passes like elapsed time.
	next := time.Time{}
	if !change.IsZero() {
		next = now.Add(change.Sub(wall))
	}
	if _, end := local.ZoneBounds(); !end.IsZero() && (next.IsZero() || end.Before(next)) {
		next = end
	}
	return in, next
}

// wallOf is the local time as if it were UTC, for arithmetic.
func wallOf(local time.Time) time.Time {
	year, month, day := local.Date()
	hour, minute, second := local.Clock()
	return time.Date(year, month, day, hour, minute, second, local.Nanosecond(), time.UTC)
}
