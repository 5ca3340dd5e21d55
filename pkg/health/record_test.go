package health

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mica-gpu/mica/pkg/gpu"
)

var (
	start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	rules = Rules{Quiet: 5 * time.Minute}
	half  = gpu.Placement{Start: 0, Size: 4}
)

func answers(action Action, events ...Event) Facts {
	return Facts{Reach: Answers, Level: Level{Action: action, Release: 580}, Events: events}
}

// said are a record's faults and notes in short.
func said(r Record) (lines []string) {
	for _, f := range r.Faults {
		lines = append(lines, fmt.Sprintf("%s=%s %s %d", f.Condition, f.Value, f.Severity, f.Place.Size))
	}
	for _, n := range r.Notes {
		lines = append(lines, "note: "+n.Words)
	}
	return lines
}

func TestWhatIsAFault(t *testing.T) {
	for name, c := range map[string]struct {
		facts Facts
		want  []string
	}{
		"nothing":                         {answers(ActionNone), nil},
		"a driver without actions":        {answers(ActionUnknown), nil},
		"an error of the application":     {answers(ActionUnknown, Event{XID: 31}), []string{"note: XID 31: page fault in GPU memory; the application has to be restarted; the GPU goes on"}},
		"109 by the table":                {answers(ActionUnknown, Event{XID: 109}), []string{"xid=109 drain 0"}},
		"109 by the action":               {answers(ActionReset, Event{XID: 109}), []string{"xid=109 drain 0"}},
		"109 without an action":           {answers(ActionNone, Event{XID: 109}), []string{"note: XID 109: timeout of a context switch; the driver asks for no action"}},
		"94 is the application's":         {answers(ActionUnknown, Event{XID: 94}), []string{"note: XID 94: contained memory error; the application has to be restarted; the GPU goes on"}},
		"43 beside a fault":               {answers(ActionReset, Event{XID: 43}), []string{"recovery-action=gpu-reset drain 0", "note: XID 43: the GPU stopped processing for one application; nothing has to be done"}},
		"79":                              {Facts{Reach: Gone, Why: "lost", Events: []Event{{XID: 79}}}, []string{"gpu-lost= dead 0", "xid=79 dead 0"}},
		"79 asks for a reboot":            {answers(ActionReboot, Event{XID: 79}), []string{"xid=79 dead 0"}},
		"a number that is not listed":     {answers(ActionUnknown, Event{XID: 1000}), []string{"note: XID 1000; see NVIDIA's XID catalog"}},
		"not listed, with an action":      {answers(ActionReset, Event{XID: 1000}), []string{"xid=1000 drain 0"}},
		"of a partition, by the table":    {answers(ActionUnknown, Event{XID: 95, Place: half}), []string{"xid=95 drain 4"}},
		"of a partition, with an action":  {answers(ActionReset, Event{XID: 95, Place: half}), []string{"xid=95 drain 0"}},
		"double bit":                      {answers(ActionUnknown, Event{Incident: DoubleBitECC}), []string{"memory=double-bit-ecc drain 0"}},
		"an action without a known cause": {answers(ActionDrainAndReset), []string{"recovery-action=drain-and-reset drain 0"}},
		"rows to remap":                   {Facts{Reach: Answers, Level: Level{Action: ActionNone, RemapPending: true}}, []string{"memory=row-remap-pending degraded 0"}},
		"no rows left":                    {Facts{Reach: Answers, Level: Level{RemapPending: true, RemapFailed: true}}, []string{"memory=row-remap-failed drain 0"}},
		"an unhealthy fabric":             {Facts{Reach: Answers, Level: Level{Fabric: FabricHealth{Summary: FabricUnhealthy, Reasons: "no partition"}}}, []string{"fabric=unhealthy drain 0"}},
		"a fabric with less bandwidth":    {Facts{Reach: Answers, Level: Level{Fabric: FabricHealth{Summary: FabricLimited}}}, []string{"fabric=limited-capacity degraded 0"}},
		"a healthy fabric":                {Facts{Reach: Answers, Level: Level{Fabric: FabricHealth{Summary: FabricHealthy}}}, nil},
		"no answer":                       {Facts{Reach: Silent}, []string{"unresponsive= dead 0"}},
	} {
		t.Run(name, func(t *testing.T) {
			if got := said(Record{}.Next(c.facts, rules, start)); !slices.Equal(got, c.want) {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

// A fault is over when its cause has been gone for long enough.
func TestWhenAFaultIsOver(t *testing.T) {
	faulty := func(r Record) bool { return len(r.Faults) > 0 }
	check := func(what string, got, want bool) {
		t.Helper()
		if got != want {
			t.Errorf("%s: faulty %t, want %t", what, got, want)
		}
	}
	confirmed := Record{}.Next(answers(ActionReset, Event{XID: 109}), rules, start)
	again := confirmed.Next(answers(ActionReset), rules, start.Add(time.Hour))
	check("the action lasts", faulty(again), true)
	check("the action is over for less than the quiet time", faulty(again.Next(answers(ActionNone), rules, start.Add(time.Hour+4*time.Minute))), true)
	check("the action is over", faulty(again.Next(answers(ActionNone), rules, start.Add(time.Hour+6*time.Minute))), false)
	check("the GPU cannot be asked", faulty(again.Next(Facts{}, rules, start.Add(48*time.Hour))), true)

	byTable := Record{}.Next(answers(ActionUnknown, Event{XID: 119}), rules, start)
	later := byTable.Next(answers(ActionUnknown), rules, start.Add(24*time.Hour))
	check("without a repair", faulty(later), true)
	restored := answers(ActionUnknown)
	restored.Restored = true
	mended := later.Next(restored, rules, start.Add(25*time.Hour))
	check("the GPU was just restored", faulty(mended), true)
	check("the GPU was restored", faulty(mended.Next(answers(ActionUnknown), rules, start.Add(25*time.Hour+rules.Quiet))), false)
	again = mended.Next(answers(ActionUnknown, Event{XID: 119}), rules, start.Add(25*time.Hour+time.Minute))
	check("it comes again after that", faulty(again.Next(answers(ActionUnknown), rules, start.Add(48*time.Hour))), true)

	lost := Record{}.Next(Facts{Reach: Gone}, rules, start)
	check("lost and back", faulty(lost.Next(answers(ActionNone), rules, start.Add(time.Minute))), true)
	check("back for long", faulty(lost.Next(answers(ActionNone), rules, start.Add(time.Hour))), false)
}

// A repair by hand ends what no level reports, if no error came after it.
func TestARepairByHand(t *testing.T) {
	repaired := func(action Action, at time.Time, events ...Event) Facts {
		facts := answers(action, events...)
		facts.Repaired = at
		return facts
	}
	byTable := Record{}.Next(answers(ActionUnknown, Event{XID: 79}), rules, start)
	worn := Record{}.Next(Facts{Reach: Answers, Level: Level{RemapFailed: true}}, rules, start)
	for name, c := range map[string]struct {
		before Record
		facts  Facts
		want   []string
	}{
		"after the error":           {byTable, repaired(ActionUnknown, start.Add(time.Second)), nil},
		"before the error":          {byTable, repaired(ActionUnknown, start.Add(-time.Second)), []string{"xid=79 dead 0"}},
		"in the second of it":       {byTable, repaired(ActionUnknown, start), []string{"xid=79 dead 0"}},
		"never":                     {byTable, answers(ActionUnknown), []string{"xid=79 dead 0"}},
		"it came again":             {byTable, repaired(ActionUnknown, start.Add(time.Second), Event{XID: 79}), []string{"xid=79 dead 0"}},
		"a milder one came":         {byTable, repaired(ActionUnknown, start.Add(time.Second), Event{XID: 119}), []string{"xid=79 dead 0"}},
		"the driver asks for it":    {byTable, repaired(ActionReset, start.Add(time.Second)), []string{"xid=79 dead 0"}},
		"one that the GPU confirms": {worn, repaired(ActionUnknown, start.Add(time.Second)), []string{"memory=row-remap-failed drain 0"}},
	} {
		t.Run(name, func(t *testing.T) {
			if got := said(c.before.Next(c.facts, rules, start.Add(time.Minute))); !slices.Equal(got, c.want) {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

// A driver that asks for nothing decides only for XIDs for which its recovery action speaks. For others the table does.
func TestForWhichXIDsTheDriverDecides(t *testing.T) {
	const noted, tainted = "note", "fault"
	for xid, releases := range map[uint64]map[int]string{
		46:   {565: tainted, 580: tainted},
		95:   {0: tainted, 565: noted, 580: noted},
		109:  {565: tainted, 570: noted},
		119:  {565: tainted, 580: tainted, 595: tainted},
		140:  {580: tainted},
		143:  {570: tainted, 575: noted},
		13:   {0: noted, 580: noted},
		1000: {580: noted},
	} {
		for release, want := range releases {
			r := Record{}.Next(Facts{Reach: Answers, Level: Level{Action: ActionNone, Release: release}, Events: []Event{{XID: xid}}}, rules, start)
			got := noted
			if len(r.Faults) > 0 {
				got = tainted
				if !r.Faults[0].Unconfirmed || !r.AsksForReset() {
					t.Errorf("XID %d with R%d: a reset ends %+v", xid, release, r.Faults[0])
				}
			}
			if got != want {
				t.Errorf("XID %d with R%d: got a %s, want a %s", xid, release, got, want)
			}
		}
	}
}

// An action that comes some time after its XID has it as its cause, but not an XID of long ago, nor that of an application.
func TestAnActionAfterItsXID(t *testing.T) {
	for name, c := range map[string]struct {
		events []Event
		after  time.Duration
		want   []string
	}{
		"soon":           {[]Event{{XID: 109}}, 3 * time.Second, []string{"xid=109 drain 0"}},
		"of a partition": {[]Event{{XID: 95, Place: half}}, 3 * time.Second, []string{"xid=95 drain 0"}},
		"the first":      {[]Event{{XID: 48}, {XID: 95}}, 3 * time.Second, []string{"xid=48 drain 0", "note: XID 95: uncontained memory error; the driver asks for no action"}},
		"not listed":     {[]Event{{XID: 1000}}, 3 * time.Second, []string{"xid=1000 drain 0"}},
		"late":           {[]Event{{XID: 109}}, causeTime, []string{"recovery-action=gpu-reset drain 0", "note: XID 109: timeout of a context switch; the driver asks for no action"}},
		"an application": {[]Event{{XID: 94}}, 3 * time.Second, []string{"recovery-action=gpu-reset drain 0", "note: XID 94: contained memory error; the application has to be restarted; the GPU goes on"}},
	} {
		t.Run(name, func(t *testing.T) {
			r := Record{}.Next(answers(ActionNone, c.events...), rules, start).Next(answers(ActionReset), rules, start.Add(c.after))
			if got := said(r); !slices.Equal(got, c.want) {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

// The first cause is kept, with the time when it was first seen.
func TestTheFirstCauseIsKept(t *testing.T) {
	r := Record{}.Next(answers(ActionReset, Event{XID: 109}), rules, start)
	for i := range 100 {
		r = r.Next(answers(ActionReset, Event{XID: uint64(110 + i%10)}), rules, start.Add(time.Duration(i)*time.Second))
	}
	if got := said(r); len(got) == 0 || got[0] != "xid=109 drain 0" || !r.Faults[0].Since.Equal(start) {
		t.Errorf("got %q since %v", got, r.Faults[0].Since)
	}
}

// A milder fault of the same condition neither hides a worse one nor ends it.
func TestAMilderFaultDoesNotHideAWorseOne(t *testing.T) {
	r := Record{}.Next(answers(ActionUnknown, Event{Incident: FatalPoison}), rules, start)
	pending := Facts{Reach: Answers, Level: Level{RemapPending: true}}
	for i := range 100 {
		r = r.Next(pending, rules, start.Add(time.Duration(i)*time.Minute))
	}
	if got := said(r); !slices.Equal(got, []string{"memory=fatal-poison drain 0"}) {
		t.Errorf("got %q", got)
	}
}

// Whatever happens, a record stays bounded, a healthy time ends every fault that was restored, and
// a GPU without a serious report has no fault that keeps claims away.
func TestAnyHistory(t *testing.T) {
	numbers := slices.Sorted(maps.Keys(xids))
	for seed := range uint64(300) {
		random := rand.New(rand.NewPCG(seed, 0))
		r, now, serious := Record{}, start, false
		for range 50 {
			now = now.Add(time.Duration(random.IntN(400)) * time.Second)
			facts := Facts{Reach: Reach(random.IntN(4)), Level: Level{Action: Action(random.IntN(len(actions)))}, Restored: random.IntN(3) == 0}
			for range random.IntN(4) {
				facts.Events = append(facts.Events, Event{XID: numbers[random.IntN(len(numbers))], Place: gpu.Placement{Start: random.IntN(8), Size: random.IntN(3)}})
			}
			serious = serious || facts.Reach >= Gone || facts.Level.Action.Asks() || slices.ContainsFunc(facts.Events, func(e Event) bool { return xids[e.XID].class >= NeedsReset })
			before := fmt.Sprint(r)
			next := r.Next(facts, rules, now)
			if fmt.Sprint(r) != before {
				t.Fatalf("seed %d: the record was changed", seed)
			}
			r = next
			if len(r.Notes) > maxNotes || len(r.Faults) > len(Conditions)*24 {
				t.Fatalf("seed %d: %d notes and %d faults", seed, len(r.Notes), len(r.Faults))
			}
			for _, f := range r.Faults {
				if f.Severity == OK || f.Words == "" || !slices.Contains(Conditions, f.Condition) || !serious {
					t.Fatalf("seed %d: got %+v, serious %t", seed, f, serious)
				}
			}
		}
		healthy := answers(ActionNone)
		healthy.Restored = true
		r = r.Next(healthy, rules, now).Next(healthy, rules, now.Add(rules.Quiet))
		if len(r.Faults) > 0 {
			t.Fatalf("seed %d: got %+v after a healthy time", seed, r.Faults)
		}
	}
}

// Every XID has a class and words, and its advice is a sentence.
func TestTheTable(t *testing.T) {
	for number, x := range xids {
		if x.class == Unlisted || x.meaning == "" || strings.HasSuffix(x.meaning, ".") {
			t.Errorf("XID %d: %+v", number, x)
		}
	}
	never := []uint64{46, 54, 119, 140, 151}
	for number, x := range xids {
		if _, linked := linkedSince[number]; linked == slices.Contains(never, number) && x.class >= NeedsReset || linked && x.class < NeedsReset {
			t.Errorf("XID %d, %+v, is linked %t to the recovery action", number, x, linked)
		}
	}
	for action, a := range actions {
		if action.Asks() != (a.severity > OK) || action.Asks() != (a.advice != "") {
			t.Errorf("%s: %+v", action, a)
		}
	}
}

// Of two plugins that saw a fault, the earlier time counts.
func TestSince(t *testing.T) {
	mine := Record{}.Next(answers(ActionReset), rules, start.Add(time.Second))
	other := Record{}.Next(answers(ActionReset), rules, start).Next(answers(ActionReset), rules, start.Add(time.Minute))
	if got := mine.Merge(other, Record{}).Faults[0].Since; !got.Equal(start) {
		t.Errorf("got %v", got)
	}
	if got := other.Merge(mine, Record{}).Faults[0].Since; !got.Equal(start) {
		t.Errorf("got %v", got)
	}
}

func TestOf(t *testing.T) {
	board := gpu.GPU{UUID: "GPU-1", MIG: gpu.MIGEnabled, MIGSwitchable: true}
	r := Record{}.Next(answers(ActionUnknown, Event{XID: 95, Place: half}, Event{XID: 13, Place: gpu.Placement{Start: 4, Size: 1}}), rules, start)
	for name, c := range map[string]struct {
		shape    gpu.Shape
		severity Severity
		words    int
	}{
		"whole":        {gpu.Whole{GPU: board}, Drain, 2},
		"its own":      {gpu.Partition{GPU: board, Profile: gpu.Profile{Size: 4}, Start: 0}, Drain, 1},
		"overlapping":  {gpu.Partition{GPU: board, Profile: gpu.Profile{Size: 1}, Start: 3}, Drain, 1},
		"with a note":  {gpu.Partition{GPU: board, Profile: gpu.Profile{Size: 4}, Start: 4}, OK, 1},
		"without that": {gpu.Partition{GPU: board, Profile: gpu.Profile{Size: 1}, Start: 5}, OK, 0},
	} {
		if severity, words := r.Of(c.shape); severity != c.severity || len(words) != c.words {
			t.Errorf("%s: got %s and %q, want %s and %d sentences", name, severity, words, c.severity, c.words)
		}
	}
}
