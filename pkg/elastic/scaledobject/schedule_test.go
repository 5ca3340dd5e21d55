package scaledobject

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/mica-gpu/mica/pkg/schedule"
	"github.com/mica-gpu/mica/test/fixture"
)

func TestASchedulesEndIsInCron(t *testing.T) {
	for text, want := range map[string]cronWindow{
		"0 8 * * 1-5=4":                            {"0 8 * * 1-5", "0 9 * * 1-5", 4},
		"0 8 * * 1-5 for 12h=4":                    {"0 8 * * 1-5", "0 20 * * 1-5", 4},
		"30 8 * * MON-FRI for 1h30m = 2":           {"30 8 * * MON-FRI", "0 10 * * MON-FRI", 2},
		"0 20 * * * for 12h=4":                     {"0 20 * * *", "0 8 * * *", 4},
		"0 20 * * 1-5 for 12h=4":                   {"0 20 * * 1-5", "0 8 * * 2,3,4,5,6", 4},
		"45 23 * * 6,0 for 15m=4":                  {"45 23 * * 6,0", "0 0 * * 0,1", 4},
		"0 8 1 * * for 2h=9":                       {"0 8 1 * *", "0 10 1 * *", 9},
		"0 8 * * 1 to 0 20 * * 5=4":                {"0 8 * * 1", "0 20 * * 5", 4},
		"*/15 8 * * * to */20 9 * * *=4":           {"*/15 8 * * *", "*/20 9 * * *", 4},
		"  0 8 * * 1-5   to   0 20 * * 1-5   =  4": {"0 8 * * 1-5", "0 20 * * 1-5", 4},
	} {
		got, err := readWindow(text)
		if err != nil {
			t.Errorf("%q: %v", text, err)
		} else if got != want {
			t.Errorf("%q is %v, want %v", text, got, want)
		}
	}
}

func TestAScheduleThatCannotBeReadSaysWhy(t *testing.T) {
	for text, want := range map[string][]string{
		"":                                {"does not say how many replicas", "START for DURATION=REPLICAS"},
		"0 8 * * 1-5":                     {"does not say how many replicas"},
		"0 8 * * 1-5=":                    {`has "" replicas`},
		"0 8 * * 1-5=0":                   {`has "0" replicas`, "from 1 on"},
		"0 8 * * 1-5=4.5":                 {`has "4.5" replicas`},
		"0 8 * * 1-5=99999999999":         {"replicas, which is no number"},
		"every morning=4":                 {`the start "every morning" is not in the five fields of cron`},
		"0 0 8 * * 1-5=4":                 {"exactly 5 fields"},
		"@daily=4":                        {"not in the five fields"},
		"60 8 * * *=4":                    {"above maximum (59)"},
		"0 0 30 2 *=4":                    {"on no day of any year"},
		"TZ=Asia/Seoul 0 8 * * *=4":       {"give the time zone apart"},
		"0 8 * * * to noon=4":             {`the end "noon"`},
		"0 8 * * * to 0 8 * * *=4":        {"ends when it begins"},
		"0 8 * * * for 2h to 0 9 * * *=4": {"both a duration and an end"},
		"0 8 * * * for 2=4":               {`the duration "2" cannot be read`, "1h30m"},
		"0 8 * * * for -1h=4":             {"the duration -1h0m0s is not"},
		"0 8 * * * for 90s=4":             {"whole minutes"},
		"0 8 * * * for 24h=4":             {"less than a day"},
		"0 8-10 * * * for 1h=4":           {"several times of the day", `"0 8-10 * * * to END"`},
		"* * * * *=4":                     {"several times of the day"},
		"0 20 1 * * for 12h=4":            {"the end is on the day after", "days of the month"},
		"0 20 * 6 * for 12h=4":            {"the end is on the day after"},
	} {
		_, err := readWindow(text)
		fixture.Sentence(t, err, append(want, "schedule")...)
	}
}

// KEDA takes what lies between a start and the next end for in force.
func TestAComputedEndIsTheDurationLater(t *testing.T) {
	for _, test := range []struct {
		start    string
		duration time.Duration
	}{{"0 20 * * 5", 12 * time.Hour}, {"30 7 * * 0,3-4", 23*time.Hour + 59*time.Minute}, {"59 23 * * *", time.Minute}, {"5 0 * 2 6", 3 * time.Hour}} {
		times, err := schedule.Parse(test.start)
		if err != nil {
			t.Fatal(err)
		}
		text, err := endAfter(test.start, times, test.duration)
		if err != nil {
			t.Fatal(err)
		}
		end, err := schedule.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
		for range 100 {
			at = times.Next(at)
			if got := end.Next(at); got != at.Add(test.duration) {
				t.Fatalf("%q for %s begins at %s and ends, by %q, at %s", test.start, test.duration, at, text, got)
			}
		}
	}
}

func TestSchedulesAreKEDAsOwnTriggers(t *testing.T) {
	two := func(o *Options) {
		o.TimeZone, o.Schedules = "Asia/Seoul", []string{"0 8 * * 1-5 for 12h=4", "0 12 * * *=2"}
	}
	want := []Trigger{
		{Type: "cron", Name: "schedule1", Metadata: map[string]string{"timezone": "Asia/Seoul", "start": "0 8 * * 1-5", "end": "0 20 * * 1-5", "desiredReplicas": "4"}},
		{Type: "cron", Name: "schedule2", Metadata: map[string]string{"timezone": "Asia/Seoul", "start": "0 12 * * *", "end": "0 13 * * *", "desiredReplicas": "2"}},
	}
	ofCron := func(o Objects) []Trigger {
		return slices.DeleteFunc(slices.Clone(o.ScaledObject.Spec.Triggers), func(t Trigger) bool { return t.Type != "cron" })
	}
	for name, change := range map[string]func(*Options){"native": func(*Options) {}, "through the controller": through, "of devices": with("batch")} {
		objects := build(t, two, change)
		if diff := cmp.Diff(want, ofCron(objects)); diff != "" {
			t.Errorf("%s: (-want +got)\n%s", name, diff)
		}
	}
	if got := build(t, two).ScaledObject.Spec.Advanced.ScalingModifiers.Formula; got != "min([max([load, held ?? 0, schedule1, schedule2]), possible ?? 8])" {
		t.Errorf("the formula is %s", got)
	}
	waiting := ofCron(build(t, two, func(o *Options) { o.Warm = 1 }))
	if got := waiting[0].Metadata["desiredReplicas"]; got != "5" {
		t.Errorf("4 replicas that serve and 1 that waits are %s", got)
	}
}

func TestASchedulesReplicasHaveAnEffect(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*Options)
		want   []string
	}{
		"as many as ever":  {func(o *Options) { o.Min, o.Schedules = 4, []string{"0 8 * * *=4"} }, []string{"no effect", "at least 4"}},
		"too many":         {func(o *Options) { o.Schedules = []string{"0 8 * * *=9"} }, []string{"more than 8 in all"}},
		"too many to wait": {func(o *Options) { o.Warm, o.Schedules = 1, []string{"0 8 * * *=8"} }, []string{"1 replicas that wait", "more than 8"}},
		"beyond numbers":   {func(o *Options) { o.Warm, o.Schedules = 1, []string{"0 8 * * *=2147483647"} }, []string{"1 replicas that wait", "more than 8"}},
		"an unknown zone":  {func(o *Options) { o.TimeZone, o.Schedules = "Asia/Soul", []string{"0 8 * * *=4"} }, []string{`the time zone "Asia/Soul" is not known`}},
		"the machine's":    {func(o *Options) { o.TimeZone, o.Schedules = "Local", []string{"0 8 * * *=4"} }, []string{`"Local" is not known`}},
		"a zone of none":   {func(o *Options) { o.TimeZone = "Asia/Seoul" }, []string{"there is none"}},
		"seventeen":        {func(o *Options) { o.Schedules = make([]string, 17) }, []string{"17 schedules", "at most 16"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Build(options(t, test.change))
			fixture.Sentence(t, err, test.want...)
		})
	}
}
