package scaledobject

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/common/model"

	"github.com/mica-gpu/mica/pkg/elastic/profile"
)

const (
	usualSeason = 7 * 24 * time.Hour
	// mostAhead bounds what Prometheus has to compute: the load of each minute of it.
	mostAhead = time.Hour
	// mostSeason is longer than Prometheus usually remembers.
	mostSeason = 366 * 24 * time.Hour
)

// season says what of the past tells of the future: what was needed a season ago, from then until
// ahead later.
type season struct {
	ahead, length time.Duration
}

// season is nil where nothing is asked for ahead of time.
func (o Options) season() (*season, error) {
	if o.Ahead == "" {
		if o.Season != "" {
			return nil, errors.New("a season tells what is needed ahead of time: say how far ahead, such as 5m")
		}
		return nil, nil
	}
	ahead, err := readPeriod("time ahead", o.Ahead, time.Minute, mostAhead)
	if err != nil {
		return nil, err
	}
	length := usualSeason
	if o.Season != "" {
		if length, err = readPeriod("season", o.Season, time.Hour, mostSeason); err != nil {
			return nil, err
		}
	}
	if length <= ahead {
		return nil, fmt.Errorf("a season of %s has not been %s from now: look less far ahead", o.Season, o.Ahead)
	}
	return &season{ahead, length}, nil
}

// readPeriod reads a time as Prometheus writes it, also in days and weeks.
func readPeriod(name, text string, least, most time.Duration) (time.Duration, error) {
	d, err := model.ParseDuration(text)
	if err != nil {
		return 0, fmt.Errorf("the %s %q cannot be read: write it as Prometheus does, such as 5m, 1d or 7d", name, text)
	}
	if got := time.Duration(d); got < least || got > most || got%time.Second != 0 {
		return 0, fmt.Errorf("the %s is %s, and has to be whole seconds from %s to %s", name, text, model.Duration(least), model.Duration(most))
	}
	return time.Duration(d), nil
}

// remembered are the signals that tell how much was needed. A latency tells how late it was.
func (s signals) remembered() []string {
	return slices.DeleteFunc(slices.Clone(s.load), func(signal string) bool {
		return signal != profile.WaitingRequests && !profile.OfUse(signal)
	})
}

// foreseeable is an error where the signals tell what was missing, and nothing of what was in use:
// what was asked for ahead of time is not missing, and so would not be asked for the next time.
func (s signals) foreseeable(p profile.Profile) error {
	if slices.ContainsFunc(s.load, profile.OfUse) {
		return nil
	}
	return fmt.Errorf("profile %s has no signal by which the last season tells what it used: a queue or a latency is gone once there are enough replicas, and would be seen every other time: "+
		"name %s in triggers of a file for --profiles, or give a schedule", p.Name, strings.Join(profile.UseSignals(), ", "))
}

// foreseen is PromQL for the most replicas that were needed a season ago, from then until ahead
// later. Where Prometheus has nothing of that time, it gives nothing.
func (o Options) foreseen(p profile.Profile, s signals, by season) string {
	return fmt.Sprintf("max_over_time(max(%s)[%s:1m] offset %s)",
		o.replicas(p, s, s.remembered()), model.Duration(by.ahead), model.Duration(by.length-by.ahead))
}

// known is PromQL that gives something where the present load is known. What is foreseen adds to it,
// and stands for nothing that cannot be read.
func (o Options) known(s signals) string {
	if o.Demand != "" {
		return "sum(" + o.Demand + ")"
	}
	return s.of.replicas()
}
