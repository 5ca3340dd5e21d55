// Package schedule reads times that come again, as operators write them: the five fields of cron
// and names of time zones. It knows no clock, and does not decide what a time is for.
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

// epoch is where a leap year is near.
var epoch = time.Date(2024, 1, 1, 0, 0, 0, 0, time.UTC)

// Parse reads the five fields of cron. Its times are in the zone of the time that Next is given.
// The error begins with the text.
func Parse(text string) (*cron.SpecSchedule, error) {
	// The parser takes a time zone in front of the fields, too, and cannot stand one alone.
	if strings.Contains(text, "=") {
		return nil, fmt.Errorf("%q is not in the five fields of cron: give the time zone apart from them", text)
	}
	parsed, err := fields.Parse(text)
	if err != nil {
		return nil, fmt.Errorf("%q is not in the five fields of cron, which are minute, hour, day of month, month, day of week: %w", text, err)
	}
	if parsed.Next(epoch).IsZero() {
		return nil, fmt.Errorf("%q is on no day of any year", text)
	}
	times, ok := parsed.(*cron.SpecSchedule)
	if !ok {
		return nil, fmt.Errorf("%q is not in the five fields of cron", text)
	}
	return times, nil
}

// Zone is the time zone of a name; an empty one is UTC.
func Zone(name string) (*time.Location, error) {
	// What is local to the process is nobody's time.
	if name == "Local" {
		return nil, fmt.Errorf("the time zone %q is not known: give a name of the tz database, such as Asia/Seoul", name)
	}
	zone, err := time.LoadLocation(name)
	if err != nil {
		return nil, fmt.Errorf("the time zone %q is not known: give a name of the tz database, such as Asia/Seoul: %w", name, err)
	}
	return zone, nil
}
