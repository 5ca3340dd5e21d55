package schedule

import (
	"testing"
	"time"

	"github.com/mica-gpu/mica/test/fixture"
)

func TestTimesAreInTheZoneOfWhoAsks(t *testing.T) {
	times, err := Parse("30 8 * * MON-FRI")
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"": "2026-10-05T08:30:00Z", "Asia/Seoul": "2026-10-05T08:30:00+09:00"} {
		zone, err := Zone(name)
		if err != nil {
			t.Fatal(err)
		}
		saturday := time.Date(2026, 10, 3, 12, 0, 0, 0, zone)
		if got := times.Next(saturday).Format(time.RFC3339); got != want {
			t.Errorf("in %q the next time is %s, want %s", name, got, want)
		}
	}
}

func TestWhatCannotBeReadSaysWhy(t *testing.T) {
	for text, want := range map[string]string{
		"":                        "five fields of cron",
		"@daily":                  "five fields of cron",
		"every morning":           `"every morning" is not in the five fields`,
		"0 0 9 * * 1":             "expected exactly 5 fields",
		"0 24 * * *":              "above maximum",
		"0 0 30 2 *":              "no day of any year",
		"CRON_TZ=UTC 0 9 * * *":   "give the time zone apart",
		"TZ=":                     "give the time zone apart",
		"0 9 * * 1-5 and 0 8 * 6": "five fields of cron",
	} {
		_, err := Parse(text)
		fixture.Sentence(t, err, want)
	}
	for _, name := range []string{"Local", "Asia/Soul", "../../etc/passwd"} {
		_, err := Zone(name)
		fixture.Sentence(t, err, "unknown time zone", "Asia/Seoul")
	}
}
