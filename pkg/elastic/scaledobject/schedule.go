package scaledobject

import (
	"errors"
	"fmt"
	"math/bits"
	"strconv"
	"strings"
	"time"

	"github.com/robfig/cron/v3"

	"github.com/mica-gpu/mica/pkg/schedule"
)

const (
	// mostSchedules is a bound, as a GPUHeadroom has it.
	mostSchedules = 16
	// usual is how long a schedule without an end is in force: from then on, replicas that are
	// needed have load that keeps them.
	usual = time.Hour
)

// cronWindow is a time that comes again, in which there are at least so many replicas. Start and end
// are in the five fields of cron.
type cronWindow struct {
	start, end string
	replicas   int32
}

// errSchedule says how a schedule is written.
var errSchedule = errors.New(`write START=REPLICAS, START for DURATION=REPLICAS or START to END=REPLICAS, as "0 8 * * 1-5 for 12h=4"`)

// readWindow reads START=REPLICAS, START for DURATION=REPLICAS or START to END=REPLICAS.
func readWindow(text string) (cronWindow, error) {
	i := strings.LastIndex(text, "=")
	if i < 0 {
		return cronWindow{}, fmt.Errorf("the schedule %q does not say how many replicas: %w", text, errSchedule)
	}
	when, count := text[:i], strings.TrimSpace(text[i+1:])
	replicas, err := strconv.ParseInt(count, 10, 32)
	if err != nil || replicas < 1 {
		return cronWindow{}, fmt.Errorf("the schedule %q has %q replicas, which is no number from 1 on: %w", text, count, errSchedule)
	}
	w := cronWindow{replicas: int32(replicas)}
	if w.start, w.end, err = bounds(when); err != nil {
		return cronWindow{}, fmt.Errorf("the schedule %q cannot be used: %w", text, err)
	}
	return w, nil
}

// bounds are the start and the end.
func bounds(when string) (start, end string, err error) {
	start, end, ends := strings.Cut(when, " to ")
	start, length, lasts := strings.Cut(start, " for ")
	start, end = strings.TrimSpace(start), strings.TrimSpace(end)
	times, err := schedule.Parse(start)
	if err != nil {
		return "", "", fmt.Errorf("the start %w", err)
	}
	switch {
	case ends && lasts:
		return "", "", errors.New("it has both a duration and an end: leave one out")
	case ends:
		if _, err := schedule.Parse(end); err != nil {
			return "", "", fmt.Errorf("the end %w", err)
		}
		if start == end {
			return "", "", errors.New("it ends when it begins")
		}
		return start, end, nil
	}
	duration := usual
	if lasts {
		if duration, err = time.ParseDuration(strings.TrimSpace(length)); err != nil {
			return "", "", fmt.Errorf("the duration %q cannot be read: write hours and minutes, as 12h or 1h30m", strings.TrimSpace(length))
		}
	}
	end, err = endAfter(start, times, duration)
	return start, end, err
}

// star is how the parser says that a field is *.
const star = 1 << 63

// endAfter is the end in cron, which KEDA needs. It can be computed of a start with one time of the
// day; where it is on the next day, of one without days of the month.
func endAfter(start string, times *cron.SpecSchedule, duration time.Duration) (string, error) {
	const day = 24 * time.Hour
	if duration < time.Minute || duration >= day || duration%time.Minute != 0 {
		return "", fmt.Errorf("the duration %s is not whole minutes of less than a day: give the end in cron, as \"%s to END\"", duration, start)
	}
	minutes, hours := times.Minute&^star, times.Hour&^star
	if bits.OnesCount64(minutes) != 1 || bits.OnesCount64(hours) != 1 {
		return "", fmt.Errorf("the start %q is at several times of the day, so that its end cannot be computed: give the end in cron, as \"%s to END\"", start, start)
	}
	end := time.Duration(bits.TrailingZeros64(hours))*time.Hour + time.Duration(bits.TrailingZeros64(minutes))*time.Minute + duration
	days := strings.Fields(start)[2:]
	if end >= day {
		if days[0] != "*" && days[0] != "?" || days[1] != "*" {
			return "", fmt.Errorf("the end is on the day after %q, which cannot be computed from days of the month: give the end in cron, as \"%s to END\"", start, start)
		}
		end, days[2] = end-day, dayAfter(times.Dow)
	}
	return fmt.Sprintf("%d %d %s", int(end%time.Hour/time.Minute), int(end/time.Hour), strings.Join(days, " ")), nil
}

// dayAfter are the days of the week after these.
func dayAfter(days uint64) string {
	if days&star != 0 {
		return "*"
	}
	var after []string
	for d := range 7 {
		if days&(1<<((d+6)%7)) != 0 {
			after = append(after, strconv.Itoa(d))
		}
	}
	return strings.Join(after, ",")
}

// windows are the schedules, each with an effect.
func (o Options) windows() ([]cronWindow, error) {
	if len(o.Schedules) == 0 {
		if o.TimeZone != "" {
			return nil, fmt.Errorf("the time zone %s is that of schedules, and there is none: give one, or leave it out", o.TimeZone)
		}
		return nil, nil
	}
	if len(o.Schedules) > mostSchedules {
		return nil, fmt.Errorf("there are %d schedules, and at most %d are taken: join those with the same replicas, as \"0 8,20 * * *\"", len(o.Schedules), mostSchedules)
	}
	if _, err := schedule.Zone(o.TimeZone); err != nil {
		return nil, err
	}
	all := make([]cronWindow, 0, len(o.Schedules))
	for _, text := range o.Schedules {
		w, err := readWindow(text)
		if err != nil {
			return nil, err
		}
		if w.replicas <= o.Min {
			return nil, fmt.Errorf("the schedule %q has no effect, because there are always at least %d replicas: ask for more, or allow fewer", text, o.Min)
		}
		if int64(w.replicas)+int64(o.Warm) > int64(o.Max) {
			return nil, fmt.Errorf("the schedule %q and %d replicas that wait are more than %d in all: allow more", text, o.Warm, o.Max)
		}
		all = append(all, w)
	}
	return all, nil
}

// cronTriggers are KEDA's own. Outside of its window a trigger counts 0 replicas (KEDA 2.21,
// pkg/scalers/cron_scaler.go), so that the most of all triggers decides.
func (o Options) cronTriggers(windows []cronWindow) []Trigger {
	zone := o.TimeZone
	if zone == "" {
		zone = "UTC"
	}
	var all []Trigger
	for i, w := range windows {
		all = append(all, Trigger{Type: "cron", Name: fmt.Sprintf("schedule%d", i+1), Metadata: map[string]string{
			"timezone":        zone,
			"start":           w.start,
			"end":             w.end,
			"desiredReplicas": strconv.Itoa(int(w.replicas + o.Warm)),
		}})
	}
	return all
}
