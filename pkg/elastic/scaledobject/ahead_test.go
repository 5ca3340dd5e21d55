package scaledobject

import (
	"strings"
	"testing"

	"github.com/mica-gpu/mica/test/fixture"
)

// ahead looks five minutes ahead, by the last week.
func ahead(o *Options) { o.Ahead = "5m" }

func queryOf(t *testing.T, o Objects, trigger string) string {
	t.Helper()
	for _, candidate := range o.ScaledObject.Spec.Triggers {
		if candidate.Name == trigger {
			return candidate.Metadata["query"]
		}
	}
	t.Fatalf("there is no trigger %s", trigger)
	return ""
}

// What was missing a week ago for a while, as a latency tells, says nothing of how much is needed.
func TestWhatWasNeededIsCounted(t *testing.T) {
	_, past, found := strings.Cut(queryOf(t, build(t, ahead), "load"), "max_over_time")
	if !found || !strings.Contains(past, "[5m:1m] offset 6d23h55m") {
		t.Fatalf("the query does not ask for the last week: %s", past)
	}
	for signal, want := range map[string]bool{"kv_cache_usage_perc": true, "num_requests_waiting": true, "time_to_first_token": false} {
		if strings.Contains(past, signal) != want {
			t.Errorf("%s is in what was needed: %v, want %v", signal, !want, want)
		}
	}
}

func TestTheSeasonIsShiftedByTheTimeAhead(t *testing.T) {
	for _, test := range []struct{ ahead, season, want string }{
		{"5m", "", "[5m:1m] offset 6d23h55m"},
		{"10m", "1d", "[10m:1m] offset 23h50m"},
		{"1h", "2w", "[1h:1m] offset 13d23h"},
		{"90s", "7d", "[1m30s:1m] offset 6d23h58m30s"},
	} {
		o := func(o *Options) { o.Ahead, o.Season = test.ahead, test.season }
		if got := queryOf(t, build(t, o), "load"); !strings.Contains(got, test.want) {
			t.Errorf("%s ahead by %q is not %s in %s", test.ahead, test.season, test.want, got)
		}
	}
}

func TestASeasonThatCannotBeUsedSaysWhy(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*Options)
		want   []string
	}{
		"no time ahead":     {func(o *Options) { o.Season = "7d" }, []string{"say how far ahead"}},
		"in words":          {func(o *Options) { o.Ahead = "soon" }, []string{`the time ahead "soon" cannot be read`, "5m"}},
		"a season in words": {func(o *Options) { o.Ahead, o.Season = "5m", "weekly" }, []string{`the season "weekly" cannot be read`, "7d"}},
		"negative":          {func(o *Options) { o.Ahead = "-5m" }, []string{"cannot be read"}},
		"now":               {func(o *Options) { o.Ahead = "0" }, []string{"from 1m to 1h"}},
		"parts of seconds":  {func(o *Options) { o.Ahead = "90500ms" }, []string{"whole seconds"}},
		"too far":           {func(o *Options) { o.Ahead = "2h" }, []string{"from 1m to 1h"}},
		"too long ago":      {func(o *Options) { o.Ahead, o.Season = "5m", "2y" }, []string{"the season is 2y", "from 1h"}},
		"in the season":     {func(o *Options) { o.Ahead, o.Season = "1h", "1h" }, []string{"look less far ahead"}},
		"queue and latency": {func(o *Options) { o.Ahead, o.Profile = "5m", "prefill" }, []string{"profile prefill has no signal", "kvCache, runningRequests, tokensPerSecond", "a schedule"}},
		"devices alone":     {func(o *Options) { o.Ahead, o.Profile = "5m", "batch" }, []string{"profile batch has no signal"}},
		"an untold signal":  {func(o *Options) { o.Ahead, o.Serving.Engine = "5m", "triton" }, []string{"no signal by which"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Build(options(t, test.change))
			fixture.Sentence(t, err, test.want...)
		})
	}
}
