package headroom

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mica-gpu/mica/api/v1alpha1"
)

func entry(start, duration, zone string, devices int32) v1alpha1.Window {
	d, err := time.ParseDuration(duration)
	if err != nil {
		panic(err)
	}
	return v1alpha1.Window{Start: start, Duration: metav1.Duration{Duration: d}, TimeZone: zone, Devices: devices}
}

func at(t *testing.T, text string) time.Time {
	t.Helper()
	when, err := time.Parse(time.RFC3339, text)
	if err != nil {
		t.Fatal(err)
	}
	return when
}

func TestWantedFollowsTheSchedule(t *testing.T) {
	office := entry("0 9 * * 1-5", "9h", "Asia/Seoul", 8)
	night := entry("0 20 * * *", "12h", "America/New_York", 4)
	for name, test := range map[string]struct {
		schedule []v1alpha1.Window
		now      string
		want     int
		next     string
	}{
		"no schedule":         {nil, "2026-10-01T00:00:00Z", 1, ""},
		"before":              {[]v1alpha1.Window{office}, "2026-09-30T23:59:59Z", 1, "2026-10-01T00:00:00Z"},
		"at the start":        {[]v1alpha1.Window{office}, "2026-10-01T00:00:00Z", 8, "2026-10-01T09:00:00Z"},
		"at the end":          {[]v1alpha1.Window{office}, "2026-10-01T09:00:00Z", 1, "2026-10-02T00:00:00Z"},
		"at the weekend":      {[]v1alpha1.Window{office}, "2026-10-03T03:00:00Z", 1, "2026-10-05T00:00:00Z"},
		"less, at times":      {[]v1alpha1.Window{entry("0 0 * * *", "1h", "", 0)}, "2026-10-01T00:30:00Z", 0, "2026-10-01T01:00:00Z"},
		"two at once":         {[]v1alpha1.Window{entry("0 0 * * *", "2h", "", 2), entry("0 1 * * *", "2h", "", 3)}, "2026-10-01T01:30:00Z", 3, "2026-10-01T02:00:00Z"},
		"the lesser later":    {[]v1alpha1.Window{entry("0 0 * * *", "2h", "", 3), entry("0 1 * * *", "2h", "", 2)}, "2026-10-01T01:30:00Z", 3, "2026-10-01T02:00:00Z"},
		"overlapping itself":  {[]v1alpha1.Window{entry("0 * * * *", "90m", "", 5)}, "2026-10-01T01:15:00Z", 5, "2026-10-01T01:30:00Z"},
		"a leap day":          {[]v1alpha1.Window{entry("0 0 29 2 *", "1h", "", 5)}, "2026-10-01T00:00:00Z", 1, "2028-02-29T00:00:00Z"},
		"within a second":     {[]v1alpha1.Window{office}, "2026-09-30T23:59:59.7Z", 1, "2026-10-01T00:00:00Z"},
		"a night 11 hours by": {[]v1alpha1.Window{night}, "2026-03-08T11:59:00Z", 4, "2026-03-08T12:00:00Z"}, // 07:59 EDT; the clocks were set forward
		"that night's end":    {[]v1alpha1.Window{night}, "2026-03-08T12:00:00Z", 1, "2026-03-09T00:00:00Z"},
		"a night 13 hours by": {[]v1alpha1.Window{night}, "2026-11-01T12:59:00Z", 4, "2026-11-01T13:00:00Z"}, // 07:59 EST; the clocks were set back
		"until clocks change": {[]v1alpha1.Window{night}, "2026-11-01T01:00:00Z", 4, "2026-11-01T06:00:00Z"},
		"start left out":      {[]v1alpha1.Window{entry("30 2 * * *", "1h", "America/New_York", 6)}, "2026-03-08T07:00:00Z", 6, "2026-03-08T07:30:00Z"}, // 03:00 EDT
		"twice the same hour": {[]v1alpha1.Window{entry("30 1 * * *", "15m", "America/New_York", 6)}, "2026-11-01T06:30:00Z", 6, "2026-11-01T06:45:00Z"},
		"between the two":     {[]v1alpha1.Window{entry("30 1 * * *", "15m", "America/New_York", 6)}, "2026-11-01T06:00:00Z", 1, "2026-11-01T06:30:00Z"},
	} {
		t.Run(name, func(t *testing.T) {
			got, next, err := Wanted(&v1alpha1.GPUHeadroomSpec{Devices: 1, Schedule: test.schedule}, at(t, test.now))
			if err != nil {
				t.Fatal(err)
			}
			if got != test.want {
				t.Errorf("%d devices are wanted, want %d", got, test.want)
			}
			text := ""
			if !next.IsZero() {
				text = next.UTC().Format(time.RFC3339Nano)
			}
			if text != test.next {
				t.Errorf("that may change at %q, want %q", text, test.next)
			}
		})
	}
}

func TestAWrongScheduleIsExplained(t *testing.T) {
	for name, test := range map[string]struct {
		entry v1alpha1.Window
		say   string
	}{
		"words":             {entry("every morning", "1h", "", 1), `the start "every morning" is not in the five fields of cron`},
		"no duration":       {entry("0 9 * * *", "0s", "", 1), "the duration 0s is not from 1m"},
		"less than nothing": {entry("0 9 * * *", "-1h", "", 1), "the duration -1h0m0s"},
		"too long":          {entry("0 9 * * *", "169h", "", 1), "168h0m0s, which are 7 days"},
		"an unknown zone":   {entry("0 9 * * *", "1h", "Asia/Soul", 1), `unknown time zone "Asia/Soul"`},
	} {
		t.Run(name, func(t *testing.T) {
			spec := &v1alpha1.GPUHeadroomSpec{Schedule: []v1alpha1.Window{entry("0 0 * * *", "1h", "", 1), test.entry}}
			_, _, err := Wanted(spec, at(t, "2026-10-01T00:00:00Z"))
			if err == nil || !strings.Contains(err.Error(), test.say) || !strings.HasPrefix(err.Error(), "entry 1 of the schedule: ") {
				t.Errorf("the error is %v, want one of entry 1 with %q", err, test.say)
			}
		})
	}
}

// pattern is a cron expression of minutes, hours and weekdays.
type pattern struct {
	minutes, hours, weekdays map[int]bool
}

func randomPattern(r *rand.Rand) pattern {
	some := func(below, most int) map[int]bool {
		set := map[int]bool{}
		for range 1 + r.IntN(most) {
			set[r.IntN(below)] = true
		}
		return set
	}
	p := pattern{minutes: some(60, 3), hours: some(24, 4), weekdays: some(7, 6)}
	if r.IntN(3) == 0 {
		// The hours in which clocks change.
		p.hours = some(4, 3)
	}
	return p
}

func (p pattern) String() string {
	list := func(set map[int]bool) string {
		var all []string
		for i := range 60 {
			if set[i] {
				all = append(all, fmt.Sprint(i))
			}
		}
		return strings.Join(all, ",")
	}
	return fmt.Sprintf("%s %s * * %s", list(p.minutes), list(p.hours), list(p.weekdays))
}

// inForce checks each minute of local time within a window's length.
func (p pattern) inForce(local time.Time, duration time.Duration) bool {
	shown := time.Date(local.Year(), local.Month(), local.Day(), local.Hour(), local.Minute(), 0, 0, time.UTC)
	for back := time.Duration(0); back < duration; back += time.Minute {
		s := shown.Add(-back)
		if p.minutes[s.Minute()] && p.hours[s.Hour()] && p.weekdays[int(s.Weekday())] {
			return true
		}
	}
	return false
}

// changes are days on which clocks changed: forward and back, by an hour, half an hour and a day, and at midnight.
var changes = []struct{ zone, day string }{
	{"America/New_York", "2026-03-08T00:00:00Z"},
	{"America/New_York", "2026-11-01T00:00:00Z"},
	{"Europe/London", "2026-03-29T00:00:00Z"},
	{"Europe/London", "2026-10-25T00:00:00Z"},
	{"Australia/Lord_Howe", "2026-04-04T00:00:00Z"},
	{"Australia/Lord_Howe", "2026-10-03T00:00:00Z"},
	{"America/Sao_Paulo", "2018-11-03T12:00:00Z"},
	{"Pacific/Apia", "2011-12-29T12:00:00Z"},
	{"Asia/Seoul", "2026-10-01T00:00:00Z"},
	{"", "2028-02-28T00:00:00Z"},
}

func TestAScheduleIsInForceByTheClockOnTheWall(t *testing.T) {
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 5))
		change := changes[r.IntN(len(changes))]
		zone, err := time.LoadLocation(change.zone)
		if err != nil {
			t.Fatal(err)
		}
		p, length := randomPattern(r), time.Duration(1+r.IntN(30*60))*time.Minute
		spec := &v1alpha1.GPUHeadroomSpec{Schedule: []v1alpha1.Window{{
			Start: p.String(), Duration: metav1.Duration{Duration: length}, TimeZone: change.zone, Devices: 1,
		}}}
		now := at(t, change.day).Add(-12 * time.Hour)
		var same time.Time // until when the last answer has to hold
		before := -1
		for range 60 * 4 {
			got, next, err := Wanted(spec, now)
			if err != nil {
				t.Fatal(err)
			}
			want := 0
			if p.inForce(now.In(zone), length) {
				want = 1
			}
			if got != want {
				t.Fatalf("seed %d: %q for %s in %q: at %s %d is wanted, want %d", seed, p, length, change.zone, now.In(zone), got, want)
			}
			if before >= 0 && got != before && now.Before(same) {
				t.Fatalf("seed %d: %q for %s in %q: at %s it changes, and was said not to before %s", seed, p, length, change.zone, now.In(zone), same.In(zone))
			}
			if !next.After(now) {
				t.Fatalf("seed %d: at %s the next change is at %s", seed, now, next)
			}
			before, same = got, next
			now = now.Add(time.Duration(1+r.IntN(15)) * time.Minute)
		}
	}
}

func FuzzWanted(f *testing.F) {
	f.Add("0 9 * * 1-5", "Asia/Seoul", int64(time.Hour))
	f.Add("TZ=", "UTC", int64(0))
	f.Add("*/5 1-3,7 ? JAN sun", "Europe/London", int64(time.Minute))
	f.Fuzz(func(t *testing.T, start, zone string, duration int64) {
		spec := &v1alpha1.GPUHeadroomSpec{Schedule: []v1alpha1.Window{{
			Start: start, TimeZone: zone, Duration: metav1.Duration{Duration: time.Duration(duration)}, Devices: 1,
		}}}
		now := time.Date(2024, 1, 1, 0, 0, 0, 0, time.UTC)
		for range 3 {
			_, next, err := Wanted(spec, now)
			if err != nil {
				return
			}
			if !next.After(now) {
				t.Fatalf("%q: at %s the next change is at %s", start, now, next)
			}
			now = next
		}
	})
}
