package headroom

import (
	"fmt"
	"time"

	"github.com/robfig/cron/v3"

	"github.com/mica-gpu/mica/api/v1alpha1"
	"github.com/mica-gpu/mica/pkg/schedule"
)

// maxDuration of a window. A longer one would be in force while its next one begins.
const maxDuration = 7 * 24 * time.Hour

// Wanted is how many devices are to be free at a time, and when that may change next; zero is
// never.
//
// A window is in force by the clock on the wall of its time zone: whether it is depends on
// the local time alone. One of 24 hours is 23 or 25 long when the clocks change, one that
// begins in the hour that is left out begins with the next, and what is in force in an hour
// that comes twice is so both times. Counted in hours that pass, a window from 20:00 to 08:00
// would end at 07:00 one night a year, when people are at work already.
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

// window is a v1alpha1.Window that was read.
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
	// The first start within the last duration is the one that ends first.
	first := w.start.Next(wall.Add(-w.duration))
	in := !first.IsZero() && !first.After(wall)
	change := w.start.Next(wall)
	if in && (change.IsZero() || first.Add(w.duration).Before(change)) {
		change = first.Add(w.duration)
	}
	// Until the clocks change, as much time passes as they show.
	next := time.Time{}
	if !change.IsZero() {
		next = now.Add(change.Sub(wall))
	}
	if _, end := local.ZoneBounds(); !end.IsZero() && (next.IsZero() || end.Before(next)) {
		next = end
	}
	return in, next
}

// wallOf is what a local time shows, as a time that can be counted with.
func wallOf(local time.Time) time.Time {
	year, month, day := local.Date()
	hour, minute, second := local.Clock()
	return time.Date(year, month, day, hour, minute, second, local.Nanosecond(), time.UTC)
}
