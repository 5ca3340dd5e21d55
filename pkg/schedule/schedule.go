// Package schedule parses recurring times: the five fields of cron, and names of time zones. It never reads a
// clock.
package schedule

import (
	"fmt"
	"strings"
	"time"

	"github.com/robfig/cron/v3"

	// Images have no tz database.
	_ "time/tzdata"
)

// fields are the five of cron. Names for whole schedules, such as @daily, are not among them.
var fields = cron.NewParser(cron.Minute | cron.Hour | cron.Dom | cron.Month | cron.Dow)

// epoch is in a leap year, so that 29 February is near.
var epoch = time.Date(2024, 1, 1, 0, 0, 0, 0, time.UTC)

// Parse parses the five fields of cron. Next returns times in the zone of its argument. The error begins with
// the text.
func Parse(text string) (*cron.SpecSchedule, error) {
	// The parser also accepts a time zone before the fields, and panics on one alone.
	if strings.Contains(text, "=") {
		return nil, fmt.Errorf("%q is not in the five fields of cron: give the time zone apart from them", text)
	}
	parsed, err := fields.Parse(text)
	if err != nil {
		return nil, fmt.Errorf("%q is not in the five fields of cron, which are minute, hour, day of month, month, day of week: %w", text, err)
	}
	if parsed.Next(epoch).IsZero() {
		return nil, fmt.Errorf("%q matches no day of any year", text)
	}
	times, ok := parsed.(*cron.SpecSchedule)
	if !ok {
		return nil, fmt.Errorf("%q is not in the five fields of cron", text)
	}
	return times, nil
}

// Zone returns the time zone with this name. An empty name is UTC.
func Zone(name string) (*time.Location, error) {
	// LoadLocation takes Local for the process's own zone.
	if name == "Local" {
		return nil, fmt.Errorf("unknown time zone %q: use a name of the tz database, such as Asia/Seoul", name)
	}
	zone, err := time.LoadLocation(name)
	if err != nil {
		return nil, fmt.Errorf("unknown time zone %q: use a name of the tz database, such as Asia/Seoul: %w", name, err)
	}
	return zone, nil
}
