package keda

import (
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/robfig/cron/v3"

	"github.com/mica-gpu/mica/pkg/elastic/scaledobject"
	"github.com/mica-gpu/mica/pkg/elastic/usage"
	"github.com/mica-gpu/mica/pkg/elastic/workload"
	"github.com/mica-gpu/mica/pkg/schedule"
)

// What the replayed model is like.
const (
	// slots are the requests that a replica answers at a time, each in answering. Its cache for keys
	// and values is full of them.
	slots     = 32.0
	answering = 10 * time.Second
	// starting is from a replica that is asked for until it serves: a node of a warm pool, an image
	// that it has, a model of 70B (minutes).
	starting = 4 * time.Minute
	// aheadBy and season are what --ahead and --season say.
	aheadBy, season = 10 * time.Minute, 7 * 24 * time.Hour
	weeks           = 3
	aWeek           = int(season / syncPeriod)
)

// capacity is how many requests a second a replica answers.
var capacity = slots / answering.Seconds()

// monday is when the replay begins.
var monday = time.Date(2026, 9, 7, 0, 0, 0, 0, time.UTC)

// rates are the requests a second of an office, for each look of the autoscaler: at 9 everybody
// comes within minutes, there is lunch, hardly anybody works at night and at weekends. Days begin up to
// two minutes early or late, weeks differ by a tenth, each minute is noisy, and once a day there is
// a rush that nobody foresees.
func rates(seed uint64) []float64 {
	r := rand.New(rand.NewPCG(seed, 8))
	all := make([]float64, 0, weeks*aWeek)
	noise, rush := 0.0, 0
	for range weeks {
		busy := 1 + 0.1*(2*r.Float64()-1)
		for day := range 7 {
			late := (2*r.Float64() - 1) * 2 / 60
			for step := range aWeek / 7 {
				hour := float64(step) * syncPeriod.Hours()
				shape := 0.004 + logistic((hour-9-late)/0.05)*logistic((18-hour)/0.4)*(1-0.4*math.Exp(-math.Pow((hour-12.5)/0.4, 2)))
				if day > 4 {
					shape *= 0.1
				}
				noise = 0.98*noise + 0.1*math.Sqrt(1-0.98*0.98)*r.NormFloat64()
				if rush--; rush < 0 && r.IntN(aWeek/7) == 0 {
					rush = int(10 * time.Minute / syncPeriod)
				}
				if rush > 0 {
					shape *= 1.6
				}
				all = append(all, 8*capacity*busy*shape*math.Exp(noise))
			}
		}
	}
	return all
}

func logistic(x float64) float64 { return 1 / (1 + math.Exp(-x)) }

// served is what users got in a week.
type served struct {
	// waited is in seconds of all requests, late are the requests that waited for over 2 s.
	requests, waited, late float64
	replicaHours           float64
}

// replay is a model under a trace of requests, scaled by the ScaledObject that is printed.
type replay struct {
	*rehearsal
	ready   int
	loading []time.Time // when each begins to serve
	queue   float64
	// needed is what Prometheus remembers: the replicas that were needed, by the minute.
	needed []float64
	// told are the controller's answers by state, load is KEDA's last one of Prometheus.
	told        map[string]float64
	cache, load float64
	// times are the start and the end of the schedule.
	times []cron.Schedule
}

// replayed are the weeks of a trace.
func replayed(t *testing.T, trace []float64, change func(*scaledobject.Options)) [weeks]served {
	t.Helper()
	r := &replay{rehearsal: rehearse(t, "realtime", 1, false, change), ready: 1, told: map[string]float64{}}
	var all [weeks]served
	for step, rate := range trace {
		now := monday.Add(time.Duration(step) * syncPeriod)
		r.serve(now, rate, &all[step/aWeek])
		if step%int(time.Minute/syncPeriod) == 0 {
			r.needed = append(r.needed, r.use())
		}
		if step%2 == 0 { // KEDA's pollingInterval
			r.load = max(r.use(), r.latency()/2*float64(r.ready), r.foreseen(now))
		}
		r.scale(t, now)
	}
	return all
}

// serve answers what can be answered until the next look.
func (r *replay) serve(now time.Time, rate float64, to *served) {
	r.loading = slices.DeleteFunc(r.loading, func(at time.Time) bool {
		if at.After(now) {
			return false
		}
		r.ready++
		return true
	})
	seconds := syncPeriod.Seconds()
	answered := min(r.queue+rate*seconds, float64(r.ready)*capacity*seconds)
	r.queue += rate*seconds - answered
	running := answered / seconds * answering.Seconds() / float64(r.ready)
	r.usage = usage.Usage{Utilization: usage.Mean{Value: 1 - math.Exp(-running)}}
	r.cache = running / slots
	to.requests += rate * seconds
	to.waited += r.queue * seconds
	if r.latency() > 2 {
		to.late += rate * seconds
	}
	to.replicaHours += float64(r.ready+len(r.loading)) * syncPeriod.Hours()
}

// latency is how long who comes now waits.
func (r *replay) latency() float64 { return r.queue / (float64(r.ready) * capacity) }

// use is what the signals ask for that tell how much is needed.
func (r *replay) use() float64 { return max(100*r.cache*float64(r.ready)/80, r.queue/10) }

// foreseen is the most that was needed a season ago, from then until aheadBy later; 0 is nothing.
func (r *replay) foreseen(now time.Time) float64 {
	if !strings.Contains(r.object.Spec.Triggers[0].Metadata["query"], "offset 6d23h50m") {
		return 0
	}
	most := 0.0
	first := int(now.Add(-season).Sub(monday)/time.Minute) + 1
	for minute := max(first, 0); minute < first+int(aheadBy/time.Minute); minute++ {
		if minute >= 0 && minute < len(r.needed) {
			most = max(most, r.needed[minute])
		}
	}
	return most
}

// scale is what KEDA and the autoscaler do.
func (r *replay) scale(t *testing.T, now time.Time) {
	t.Helper()
	total := r.ready + len(r.loading)
	wanted := r.load
	for _, trigger := range r.object.Spec.Triggers {
		switch {
		case trigger.Name == "held":
			wanted = max(wanted, r.answer(t, trigger))
		case trigger.Type == "cron":
			wanted = max(wanted, r.inForce(t, trigger.Metadata, now))
		}
	}
	for _, trigger := range r.object.Spec.Triggers {
		if trigger.Name == "possible" {
			wanted = min(wanted, r.answer(t, trigger))
		}
	}
	next := int(r.hpa.look(now, int32(total), []reading{{wanted, 1}}))
	for ; total < next; total++ {
		r.loading = append(r.loading, now.Add(starting))
	}
	// The pods that are not Ready go first.
	for ; total > next && len(r.loading) > 0; total-- {
		r.loading = r.loading[:len(r.loading)-1]
	}
	r.ready -= max(total-next, 0)
}

// answer is the controller's own, asked once for each state: utilization in steps of a hundredth.
func (r *replay) answer(t *testing.T, trigger scaledobject.Trigger) float64 {
	t.Helper()
	r.usage.Utilization.Value = math.Round(r.usage.Utilization.Value*100) / 100
	state := fmt.Sprint(trigger.Name, r.ready, len(r.loading), r.usage.Utilization.Value)
	if known, ok := r.told[state]; ok {
		return known
	}
	r.usage.Devices = r.ready
	r.pods = pods(r.ready)
	for i := range r.loading {
		r.pods = append(r.pods, pod(fmt.Sprint("loading", i), func(p *workload.Pod) {
			p.Ready, p.LoadingSince = false, r.clock.Now()
		}))
	}
	got := r.read(t, trigger.Metadata)
	r.told[state] = got.total / got.target
	return r.told[state]
}

// inForce is what KEDA's cron scaler counts (2.21, pkg/scalers/cron_scaler.go).
func (r *replay) inForce(t *testing.T, metadata map[string]string, now time.Time) float64 {
	t.Helper()
	if r.times == nil {
		for _, text := range []string{metadata["start"], metadata["end"]} {
			times, err := schedule.Parse(text)
			if err != nil {
				t.Fatal(err)
			}
			r.times = append(r.times, times)
		}
	}
	if r.times[0].Next(now).Before(r.times[1].Next(now)) {
		return 0
	}
	var replicas float64
	if _, err := fmt.Sscan(metadata["desiredReplicas"], &replicas); err != nil {
		t.Fatal(err)
	}
	return replicas
}

// ways are how the same load is met.
var ways = []struct {
	name   string
	change func(*scaledobject.Options)
}{
	{"reactive", func(*scaledobject.Options) {}},
	{"`--schedule '50 8 * * 1-5 for 1h=8'`", func(o *scaledobject.Options) { o.Schedules = []string{"50 8 * * 1-5 for 1h=8"} }},
	{"`--ahead 10m --season 7d`", func(o *scaledobject.Options) { o.Ahead, o.Season = "10m", "7d" }},
}

// Weeks of an office's requests, as they are met with and without looking ahead. The third shows that
// what was asked for ahead of time in the second is asked for again.
func TestAheadOfTimeUsersWaitLess(t *testing.T) {
	trace := rates(1)
	var results [][weeks]served
	table := "| scaled | waited in the second week | longer than 2 s | replica-hours | waited in the third week | longer than 2 s | replica-hours |\n|---|---|---|---|---|---|---|\n"
	for _, way := range ways {
		got := replayed(t, trace, way.change)
		results = append(results, got)
		table += "| " + way.name + " | " + got[1].String() + " | " + got[2].String() + " |\n"
	}
	t.Log("\n" + table)
	reactive, scheduled, ahead := results[0], results[1], results[2]
	if ahead[0] != reactive[0] {
		t.Errorf("without a last week the first one is %+v, and %+v without looking ahead", ahead[0], reactive[0])
	}
	// The second week has what the first one needed with all that waited. By the third it is known what is really
	// needed: there are fewer replicas, and nothing to spare for a rush that nobody foresees.
	for week, part := range map[int]float64{1: 0.1, 2: 0.6} {
		expectSaved(t, week, part, "by the last week", ahead[week], reactive[week])
		expectSaved(t, week, part, "by a schedule", scheduled[week], reactive[week])
	}
	page, err := os.ReadFile("../../../docs/use/ahead.md")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(page), table) {
		t.Errorf("docs/use/ahead.md does not have the figures:\n%s", table)
	}
}

// String is the hours that all requests have waited together, the part of them that waited long, and
// what that took.
func (s served) String() string {
	return fmt.Sprintf("%.0f h | %.2f %% | %.0f", s.waited/3600, 100*s.late/s.requests, s.replicaHours)
}

// expectSaved wants at most a part of the waiting, for a twentieth more replicas at most.
func expectSaved(t *testing.T, week int, part float64, how string, got, reactive served) {
	t.Helper()
	if got.requests != reactive.requests {
		t.Errorf("week %d: %v requests %s, and %v without", week+1, got.requests, how, reactive.requests)
	}
	if got.waited > part*reactive.waited {
		t.Errorf("week %d: users wait %.0f s %s, want at most %v of %.0f s", week+1, got.waited, how, part, reactive.waited)
	}
	if got.replicaHours > 1.05*reactive.replicaHours {
		t.Errorf("week %d: there are %.0f replica-hours %s, want at most a twentieth over %.0f", week+1, got.replicaHours, how, reactive.replicaHours)
	}
}
