package profile

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mica-gpu/mica/test/fixture"
)

// Operators depend on these numbers.
func TestTheProfilesAreThoseOfThePractice(t *testing.T) {
	s, err := Load(nil)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"batch", "conversational", "decode", "prefill", "realtime"}, s.Names()); diff != "" {
		t.Error(diff)
	}
	for name, want := range map[string]struct {
		out, in   float64
		metric    string
		cooldown  time.Duration
		tolerance float64
		triggers  []string
	}{
		"realtime":       {70, 30, GPUUtilization, time.Minute, 0.571, []string{KVCache, WaitingRequests, TTFT, GPUUtilization}},
		"batch":          {85, 40, GPUUtilization, 5 * time.Minute, 0.529, []string{GPUUtilization}},
		"conversational": {60, 25, GPUUtilization, 30 * time.Second, 0.583, []string{KVCache, WaitingRequests, TTFT, GPUUtilization}},
		"prefill":        {2, 0.5, TTFT, time.Minute, 0.75, []string{WaitingRequests, TTFT, PromptWait}},
		"decode":         {80, 20, KVCache, time.Minute, 0.75, []string{KVCache, InterTokenLatency, RunningRequests}},
	} {
		p, err := s.Get(name)
		if err != nil {
			t.Fatal(err)
		}
		if p.Targets[want.metric] != want.out || p.ScaleInBelow[want.metric] != want.in || p.Cooldown.Duration != want.cooldown {
			t.Errorf("%s scales out above %v and in below %v %s after %v, want %+v", name, p.Targets[want.metric], p.ScaleInBelow[want.metric], want.metric, p.Cooldown, want)
		}
		if got := p.ScaleInTolerance(); got != want.tolerance {
			t.Errorf("%s tolerates %v, want %v", name, got, want.tolerance)
		}
		if diff := cmp.Diff(want.triggers, p.Triggers); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
		for _, signal := range []string{KVCache, WaitingRequests, TTFT, GPUMemory} {
			if p.Targets[signal] != map[string]float64{KVCache: 80, WaitingRequests: 10, TTFT: 2, GPUMemory: 85}[signal] {
				t.Errorf("%s has %v for %s", name, p.Targets[signal], signal)
			}
		}
	}
	common := Set{
		PollingInterval: metav1.Duration{Duration: 30 * time.Second},
		Fallback:        Fallback{Failures: 3},
		ScaleOut:        Rate{Percent: 100, Pods: 4, Period: metav1.Duration{Duration: 15 * time.Second}},
		ScaleIn:         Rate{Stabilization: metav1.Duration{Duration: 5 * time.Minute}, Percent: 25, Pods: 1, Period: metav1.Duration{Duration: time.Minute}},
		profiles:        s.profiles,
	}
	if diff := cmp.Diff(common, s, cmp.AllowUnexported(Set{})); diff != "" {
		t.Error(diff)
	}
}

func TestAnOperatorsFileOverridesFieldByField(t *testing.T) {
	s, err := Load([]byte(`
fallback: {replicas: 2}
profiles:
  realtime:
    targets: {gpuUtilization: 75}
    triggers: [gpuUtilization]
  nightly:
    cooldown: 10m
    triggers: [gpuMemory]
    targets: {gpuMemory: 90}
`))
	if err != nil {
		t.Fatal(err)
	}
	if s.Fallback != (Fallback{Failures: 3, Replicas: 2}) {
		t.Errorf("fallback is %+v", s.Fallback)
	}
	realtime, err := s.Get("realtime")
	if err != nil {
		t.Fatal(err)
	}
	if realtime.Targets[GPUUtilization] != 75 || realtime.Targets[KVCache] != 80 || len(realtime.Triggers) != 1 || realtime.Cooldown.Duration != time.Minute {
		t.Errorf("realtime is %+v", realtime)
	}
	nightly, err := s.Get("nightly")
	if err != nil {
		t.Fatal(err)
	}
	if nightly.Targets[GPUMemory] != 90 || nightly.ScaleInTolerance() != 0 {
		t.Errorf("nightly is %+v", nightly)
	}
	unchanged, err := Load(nil)
	if err != nil {
		t.Fatal(err)
	}
	if p, err := unchanged.Get("realtime"); err != nil || p.Targets[GPUUtilization] != 70 {
		t.Errorf("one operator's file has changed the profiles of others: %+v, %v", p, err)
	}
}

func TestABadFileIsRefusedInWords(t *testing.T) {
	for name, test := range map[string]struct {
		file string
		want []string
	}{
		"not YAML":                {"profiles: [", []string{"read the profiles"}},
		"an unknown field":        {"polling: 15s", []string{"polling"}},
		"an unknown field inside": {"profiles: {realtime: {threshold: 3}}", []string{"profile realtime", "threshold"}},
		"a key twice":             {"scaleOut: {pods: 1}\nscaleOut: {pods: 2}", []string{"scaleOut"}},
		"no duration":             {"pollingInterval: often", []string{"read the profiles", "often"}},
		"half a second":           {"pollingInterval: 500ms", []string{"pollingInterval is 500ms", "whole seconds from 1s"}},
		"half seconds":            {"profiles: {realtime: {cooldown: 1500ms}}", []string{"profile realtime", "cooldown is 1.5s"}},
		"a negative cooldown":     {"profiles: {realtime: {cooldown: -1s}}", []string{"cooldown is -1s"}},
		"a long period":           {"scaleIn: {period: 31m}", []string{"scaleIn.period is 31m0s", "30m0s"}},
		"a long stabilization":    {"scaleIn: {stabilization: 2h}", []string{"scaleIn.stabilization is 2h0m0s"}},
		"no pods":                 {"scaleOut: {pods: 0}", []string{"scaleOut.pods is 0", "at least 1"}},
		"nothing left":            {"fallback: {replicas: -1}", []string{"fallback.replicas is -1"}},
		"a metric by a typo":      {"profiles: {realtime: {targets: {gpuUtilisation: 3}}}", []string{"profile realtime", "targets.gpuUtilisation", "gpuMemory, gpuUtilization, interTokenLatency, kvCache"}},
		"no target":               {"profiles: {realtime: {targets: {ttft: 0}}}", []string{"targets.ttft", "0 is not above 0"}},
		"more than all":           {"profiles: {realtime: {targets: {kvCache: 800}}}", []string{"targets.kvCache", "800 is more than 100 percent"}},
		"a negative activation":   {"profiles: {realtime: {activation: {kvCache: -1}}}", []string{"activation.kvCache", "-1 is below 0"}},
		"in above out":            {"profiles: {realtime: {scaleInBelow: {gpuUtilization: 70}}}", []string{"scaleInBelow.gpuUtilization", "70 is not between 0 and 70"}},
		"in without out":          {"profiles: {realtime: {scaleInBelow: {promptWait: 1}}}", []string{"scaleInBelow.promptWait", "targets has no number"}},
		"a trigger without":       {"profiles: {realtime: {triggers: [promptWait]}}", []string{"triggers has promptWait", "targets has no number"}},
		"a trigger twice":         {"profiles: {realtime: {triggers: [ttft, ttft]}}", []string{"triggers has ttft twice"}},
		"no trigger":              {"profiles: {mine: {targets: {ttft: 2}}}", []string{"profile mine", "triggers is empty"}},
		"two mistakes":            {"scaleOut: {pods: 0}\nscaleIn: {pods: 0}", []string{"scaleOut.pods", "; ", "scaleIn.pods"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Load([]byte(test.file))
			fixture.Sentence(t, err, test.want...)
		})
	}
}

func TestAProfileThatIsNotThereNamesThoseThatAre(t *testing.T) {
	s, err := Load(nil)
	if err != nil {
		t.Fatal(err)
	}
	_, err = s.Get("interactive")
	fixture.Sentence(t, err, `"interactive"`, "batch, conversational, decode, prefill, realtime")
}

// One request uses a device as much as many do: only a queue, a cache or a latency shows that there are too few.
func TestSignalsOfDevicesHoldBesideSignalsOfLoad(t *testing.T) {
	for _, test := range []struct {
		triggers []string
		signal   string
		holds    bool
	}{
		{[]string{KVCache, GPUUtilization}, GPUUtilization, true},
		{[]string{GPUMemory, GPUUtilization, TTFT}, GPUMemory, true},
		{[]string{KVCache, GPUUtilization}, KVCache, false},
		{[]string{GPUUtilization}, GPUUtilization, false},
		{[]string{GPUUtilization, GPUMemory}, GPUUtilization, false},
	} {
		if got := (Profile{Triggers: test.triggers}).Holds(test.signal); got != test.holds {
			t.Errorf("%s among %v holds: %v, want %v", test.signal, test.triggers, got, test.holds)
		}
	}
}
