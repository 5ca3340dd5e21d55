package scaledobject

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/mica-gpu/mica/pkg/elastic/profile"
	"github.com/mica-gpu/mica/pkg/elastic/workload"
	"github.com/mica-gpu/mica/test/fixture"
)

// options are valid for all profiles.
func options(t *testing.T, change ...func(*Options)) Options {
	t.Helper()
	profiles, err := profile.Load(nil)
	if err != nil {
		t.Fatal(err)
	}
	o := Options{
		Target:     workload.Ref{Kind: "Deployment", Name: "llm"},
		Profiles:   profiles,
		Profile:    "realtime",
		Min:        1,
		Max:        8,
		Serving:    Serving{Engine: "vllm", Model: "meta-llama/Llama-3.1-8B", Namespace: "default"},
		Selector:   "app=llm",
		Prometheus: Prometheus{Address: "http://prometheus.monitoring:9090"},
		Scaler:     Scaler{Address: "mica-controller-keda.mica.svc:9443"},
	}
	for _, c := range change {
		c(&o)
	}
	return o
}

func build(t *testing.T, change ...func(*Options)) Objects {
	t.Helper()
	objects, err := Build(options(t, change...))
	if err != nil {
		t.Fatal(err)
	}
	return objects
}

func with(name string) func(*Options) { return func(o *Options) { o.Profile = name } }

func warm(o *Options) { o.Warm = 1 }

func fromZero(o *Options) {
	o.Min, o.Demand = 0, `sum(gateway_queue_depth{model="llm"})`
}

func mutual(o *Options) {
	o.Target.Namespace = "inference"
	o.Scaler.Secret, o.Scaler.ClientCertificate = "mica-keda-client", true
}

func TestEachProfileGivesAWholeScaledObject(t *testing.T) {
	underscore := func(o *Options) { o.Serving.Underscores = true }
	engine := func(name string) func(*Options) { return func(o *Options) { o.Serving.Engine = name } }
	pods := func(o *Options) {
		o.Serving.AnyPod, o.Serving.Namespace = true, ""
		o.Serving.Model, o.Serving.Matchers = "", []string{`pod=~"llm-\\d+"`, `namespace="inference"`}
	}
	golden := map[string][]func(*Options){
		"realtime-underscore": {underscore},
		"prefill-pods":        {with("prefill"), pods},
		"realtime-zero":       {fromZero},
		"realtime-sigv4": {func(o *Options) {
			o.Prometheus = Prometheus{Address: "https://aps-workspaces.eu-west-1.amazonaws.com/workspaces/ws-1", Region: "eu-west-1"}
		}},
		"realtime-tenant": {mutual, func(o *Options) {
			o.Prometheus.Headers, o.Prometheus.Secret = []string{"X-Scope-OrgID=team-a", "X-Team=a"}, "mimir"
		}},
		"realtime-sglang": {engine("sglang")},
		"realtime-triton": {engine("triton-trtllm")},
		"realtime-nim":    {engine("nim")},
		"prefill-dynamo":  {with("prefill"), engine("dynamo")},
		"decode-tgi":      {with("decode"), engine("tgi"), pods},
		"batch-tls":       {with("batch"), func(o *Options) { o.Scaler.Secret = "mica-keda-client" }},
		"decode-mutual":   {with("decode"), mutual},
		"batch-cluster":   {with("batch"), func(o *Options) { o.Scaler.Cluster = "mica" }},
		"decode-warm":     {warm, with("decode")},
		"zero-warm":       {warm, fromZero},
		"statefulset":     {func(o *Options) { o.Target.Kind, o.NoTolerance, o.Max = "StatefulSet", true, 2 }},
	}
	for _, name := range options(t).Profiles.Names() {
		golden[name] = []func(*Options){with(name)}
	}
	for name, change := range golden {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			if err := build(t, change...).YAML(&out); err != nil {
				t.Fatal(err)
			}
			fixture.Golden(t, name+".yaml", out.String())
		})
	}
}

func TestJSONIsOneObjectOrAList(t *testing.T) {
	for name, test := range map[string]struct {
		objects Objects
		kinds   []string
	}{
		"plain text": {build(t), []string{"ScaledObject"}},
		"mutual TLS": {build(t, mutual), []string{"List", "TriggerAuthentication", "ScaledObject"}},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			if err := test.objects.JSON(&out); err != nil {
				t.Fatal(err)
			}
			var got struct {
				Kind  string
				Items []struct{ Kind string }
			}
			if err := json.Unmarshal(out.Bytes(), &got); err != nil {
				t.Fatal(err)
			}
			kinds := []string{got.Kind}
			for _, item := range got.Items {
				kinds = append(kinds, item.Kind)
			}
			if !slices.Equal(kinds, test.kinds) {
				t.Errorf("got %v, want %v", kinds, test.kinds)
			}
			if strings.Contains(out.String(), `\u0026`) || strings.Contains(out.String(), `\u003e`) {
				t.Error("queries are escaped as for HTML")
			}
		})
	}
}

// Without metrics the current replicas stay, including 0. A profile's number is limited to the workload's range.
func TestTheFallbackKeepsWhatIs(t *testing.T) {
	const keeps, least, formula = "currentReplicas", "currentReplicasIfHigher", "scalingModifiers"
	for _, test := range []struct {
		of, min, max int32
		want         *Fallback
	}{
		{0, 1, 8, &Fallback{0, 1, formula}},
		{0, 4, 8, &Fallback{0, 4, formula}},
		{0, 0, 8, &Fallback{0, 1, formula}},
		{3, 1, 8, &Fallback{3, 3, least}},
		{3, 1, 2, &Fallback{3, 2, least}},
		{3, 4, 8, &Fallback{3, 4, least}},
		{3, 0, 8, &Fallback{3, 3, least}},
	} {
		got := build(t, func(o *Options) {
			o.Min, o.Max, o.Profiles.Fallback.Replicas = test.min, test.max, test.of
			if test.min == 0 {
				o.Demand = "sum(queue)"
			}
		}).ScaledObject.Spec.Fallback
		if diff := cmp.Diff(test.want, got); diff != "" {
			t.Errorf("%d of %d to %d: (-want +got)\n%s", test.of, test.min, test.max, diff)
		}
	}
	if diff := cmp.Diff(&Fallback{3, 2, keeps}, build(t, warm).ScaledObject.Spec.Fallback); diff != "" {
		t.Errorf("without a formula: (-want +got)\n%s", diff)
	}
}

// An operator's profile may scale by any signal.
func TestEverySignalHasAQuery(t *testing.T) {
	profiles, err := profile.Load([]byte(`
profiles:
  everything:
    cooldown: 60s
    triggers: [gpuUtilization, gpuMemory, kvCache, waitingRequests, runningRequests, ttft, promptWait, interTokenLatency, tokensPerSecond]
    targets: {gpuUtilization: 70, gpuMemory: 85, kvCache: 80, waitingRequests: 10, runningRequests: 16, ttft: 2, promptWait: 1, interTokenLatency: 0.2, tokensPerSecond: 2000}
    activation: {ttft: 0.5}
`))
	if err != nil {
		t.Fatal(err)
	}
	signals := map[string]int{"vllm": 7, "sglang": 7, "triton": 2, "triton-trtllm": 4, "tgi": 4, "nim": 6, "dynamo": 5}
	for _, name := range Engines() {
		for _, underscores := range []bool{false, true} {
			all := func(o *Options) {
				o.Profiles, o.Profile, o.Serving.Engine, o.Serving.Underscores = profiles, "everything", name, underscores
				o.Serving.Model, o.Serving.Matchers = "", []string{`pod=~"llm-.*"`}
			}
			objects := build(t, all, warm)
			if got := len(objects.ScaledObject.Spec.Triggers); got != signals[name]+2 || got+len(objects.Missing) != 9 {
				t.Errorf("%s: there are %d triggers, and %v are missing", name, got, objects.Missing)
			}
			for _, trigger := range objects.ScaledObject.Spec.Triggers {
				query, prometheus := trigger.Metadata["query"]
				if (trigger.Metadata["metric"] == "prometheus") != prometheus || prometheus && !strings.Contains(query, `pod=~"llm-.*"`) {
					t.Errorf("%s: %s asks %q", name, trigger.Name, query)
				}
				if underscores && strings.Contains(query, ":") {
					t.Errorf("%s: %s has a colon in %q", name, trigger.Name, query)
				}
				if trigger.Name == profile.TTFT && trigger.Metadata["activationThreshold"] != "0.5" {
					t.Errorf("%s: %s has %v", name, trigger.Name, trigger.Metadata)
				}
			}
			load := build(t, all).ScaledObject.Spec.Triggers[0].Metadata["query"]
			if got := strings.Count(load, `, "signal", `); got != signals[name] || strings.Count(load, `"gpu`) != 0 {
				t.Errorf("%s: %d signals are in %s", name, got, load)
			}
		}
	}
}

// vLLM's newest names are in the metrics of its own test.
func TestVLLMsNamesAreThoseThatItHas(t *testing.T) {
	content, err := os.ReadFile("../../../test/vllmsim/testdata/vllm.txt")
	if err != nil {
		t.Fatal(err)
	}
	known := strings.Split(string(content), "\n")
	e := engines["vllm"]
	for kind, suffix := range map[*map[string]metric]string{&e.gauges: "", &e.counters: "", &e.histograms: "_bucket"} {
		for signal, m := range *kind {
			if !slices.Contains(known, m.names[0]+suffix) {
				t.Errorf("vLLM has no %s%s for %s", m.names[0], suffix, signal)
			}
		}
	}
}

// KEDA queries Prometheus only when it polls, because the autoscaler gets cached values.
func TestThousandObjectsAskPrometheusSeldom(t *testing.T) {
	const objects, autoscalerPeriod, most = 1000, 15.0, 40.0
	perSecond := 0.0
	profiles := options(t).Profiles.Names()
	for i := range objects {
		change := []func(*Options){with(profiles[i%len(profiles)])}
		if i%2 == 0 {
			change = append(change, fromZero)
		}
		spec := build(t, change...).ScaledObject.Spec
		for _, trigger := range spec.Triggers {
			if trigger.Metadata["metric"] == "prometheus" {
				t.Fatalf("the controller is to ask for %v", trigger.Metadata)
			}
			if trigger.Type != "prometheus" {
				continue
			}
			perSecond += 1 / float64(spec.PollingInterval)
			if !trigger.UseCachedMetrics {
				perSecond += 1 / autoscalerPeriod
			}
		}
	}
	if perSecond > most || perSecond == 0 {
		t.Errorf("%d workloads ask Prometheus %.1f times a second, want at most %v", objects, perSecond, most)
	}
	t.Logf("%d workloads ask Prometheus %.1f times a second", objects, perSecond)
}

func TestWhatCannotBeIsRefusedInWords(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*Options)
		want   []string
	}{
		"a profile":           {with("interactive"), []string{`"interactive"`, "batch, conversational"}},
		"more than most":      {func(o *Options) { o.Min = 9 }, []string{"9 to 8 replicas"}},
		"fewer than none":     {func(o *Options) { o.Min = -1 }, []string{"-1 to 8"}},
		"none at all":         {func(o *Options) { o.Min, o.Max = 0, 0 }, []string{"0 to 0"}},
		"zero without demand": {func(o *Options) { o.Min = 0 }, []string{"with 0 replicas", "query", "keep 1 replica"}},
		"demand without zero": {func(o *Options) { o.Demand = "sum(x)" }, []string{"at least 1 replicas", "leave it out"}},
		"no address":          {func(o *Options) { o.Scaler.Address = "" }, []string{"address", "host:port"}},
		"two ways of TLS":     {func(o *Options) { o.Scaler.Secret, o.Scaler.Cluster = "s", "c" }, []string{"Secret s", "ClusterTriggerAuthentication c"}},
		"a key from nowhere":  {func(o *Options) { o.Scaler.ClientCertificate = true }, []string{"client certificate", "Secret"}},
		"an engine":           {func(o *Options) { o.Serving.Engine = "ollama" }, []string{`"ollama"`, "dynamo, nim, sglang, tgi, triton, triton-trtllm, vllm", "write a trigger"}},
		"an engine's model":   {func(o *Options) { o.Serving.Engine = "tgi" }, []string{"tgi do not name the model", "leave it out", `pod=~"llm-.*"`}},
		"no known signal": {func(o *Options) {
			var err error
			if o.Profiles, err = profile.Load([]byte("profiles: {realtime: {triggers: [gpuUtilization, promptWait], targets: {promptWait: 1}}}")); err != nil {
				t.Fatal(err)
			}
			o.Serving.Engine = "nim"
		}, []string{"promptWait", "nim", "choose another profile"}},
		"no Prometheus":        {func(o *Options) { o.Prometheus.Address = "prometheus:9090" }, []string{"address of Prometheus", "http://prometheus.monitoring:9090"}},
		"half a header":        {func(o *Options) { o.Prometheus.Headers = []string{"X-Scope-OrgID"} }, []string{`"X-Scope-OrgID"`, "Name=value"}},
		"two identities":       {func(o *Options) { o.Prometheus.Region, o.Prometheus.Secret = "eu-west-1", "s" }, []string{"region eu-west-1", "Secret s", "choose one"}},
		"everybody's metrics":  {func(o *Options) { o.Serving.Model, o.Serving.AnyPod = "", true }, []string{"profile realtime", "kvCache", "name the model"}},
		"a frontend's":         {func(o *Options) { o.Serving.Engine, o.Serving.Model = "dynamo", "" }, []string{"nothing selects the workload's metrics", "name the model"}},
		"half a matcher":       {func(o *Options) { o.Serving.Matchers = []string{"pod=llm"} }, []string{`"pod=llm"`, `pod=~"llm-.*"`}},
		"two matchers in one":  {func(o *Options) { o.Serving.Matchers = []string{`a="b",c="d"`} }, []string{"no matcher"}},
		"a matcher that leaks": {func(o *Options) { o.Serving.Matchers = []string{`a="b"} or vector(1) or x{a="b"`} }, []string{"no matcher"}},
		"a lone backslash":     {func(o *Options) { o.Serving.Matchers = []string{`pod=~"llm-\d"`} }, []string{`pod=~"llm-\d"`, "backslash"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Build(options(t, test.change))
			fixture.Sentence(t, err, test.want...)
		})
	}
}

func TestAProfileWithoutSignalsOfAServerNeedsNoModel(t *testing.T) {
	profiles, err := profile.Load([]byte("profiles: {batch: {triggers: [gpuUtilization]}}"))
	if err != nil {
		t.Fatal(err)
	}
	objects := build(t, with("batch"), func(o *Options) { o.Profiles, o.Serving = profiles, Serving{} })
	if got := len(objects.ScaledObject.Spec.Triggers); got != 1 {
		t.Errorf("there are %d triggers, want 1", got)
	}
}

// Each of two workloads that serve one model is scaled by its own load.
func TestQueriesNameTheirWorkload(t *testing.T) {
	for name, test := range map[string]struct {
		change []func(*Options)
		want   string
	}{
		"a Deployment":      {nil, `{namespace="default",pod=~"llm-[a-z0-9]+-[a-z0-9]{5}",model_name="meta-llama/Llama-3.1-8B"}`},
		"by the controller": {[]func(*Options){warm}, `{namespace="default",pod=~"llm-[a-z0-9]+-[a-z0-9]{5}",model_name="meta-llama/Llama-3.1-8B"}`},
		"a StatefulSet":     {[]func(*Options){func(o *Options) { o.Target.Kind = "StatefulSet" }}, `pod=~"llm-[0-9]+"`},
		"another kind":      {[]func(*Options){func(o *Options) { o.Target.Kind, o.Target.Group = "Rollout", "argoproj.io" }}, `pod=~"llm-.*"`},
		"a name with a dot": {[]func(*Options){func(o *Options) { o.Target.Name = "llm.v1" }}, `pod=~"llm\\.v1-[a-z0-9]+-[a-z0-9]{5}"`},
		"a very long name":  {[]func(*Options){func(o *Options) { o.Target.Name = strings.Repeat("a", 60) }}, `a-.*"`},
		"by pods alone":     {[]func(*Options){func(o *Options) { o.Serving.Model = "" }}, `{namespace="default",pod=~"llm-[a-z0-9]+-[a-z0-9]{5}"}`},
		"of other pods":     {[]func(*Options){func(o *Options) { o.Serving.AnyPod, o.Serving.Namespace = true, "" }}, `{model_name="meta-llama/Llama-3.1-8B"}`},
		"a frontend's":      {[]func(*Options){func(o *Options) { o.Serving.Engine = "dynamo" }}, `{namespace="default",model="meta-llama/Llama-3.1-8B"}`},
	} {
		t.Run(name, func(t *testing.T) {
			seen := 0
			for _, trigger := range build(t, test.change...).ScaledObject.Spec.Triggers {
				query := trigger.Metadata["query"]
				braces := strings.Count(query, "{") - strings.Count(query, "]{5}")
				if n := strings.Count(query, test.want); n != braces {
					t.Errorf("%d of %d selectors of %s have %s", n, braces, query, test.want)
				}
				seen += braces
			}
			if seen == 0 {
				t.Error("nothing is asked of Prometheus")
			}
		})
	}
}

// A trigger that fails does not disable the others.
func TestAFormulaGoesOnWithoutATrigger(t *testing.T) {
	for name, test := range map[string]struct {
		change            []func(*Options)
		formula, fallback string
	}{
		"from zero, of unknown pods":    {[]func(*Options){fromZero, func(o *Options) { o.Selector = "" }}, "min([max([load, held]), possible])", "none"},
		"with replicas to fall back to": {[]func(*Options){func(o *Options) { o.Profiles.Fallback.Replicas = 3 }}, "min([max([load, held]), possible])", "currentReplicasIfHigher 3 3"},
	} {
		t.Run(name, func(t *testing.T) {
			spec := build(t, test.change...).ScaledObject.Spec
			if got := spec.Advanced.ScalingModifiers.Formula; got != test.formula {
				t.Errorf("the formula is %s, want %s", got, test.formula)
			}
			fallback := "none"
			if f := spec.Fallback; f != nil {
				fallback = fmt.Sprint(f.Behavior, " ", f.FailureThreshold, " ", f.Replicas)
			}
			if fallback != test.fallback {
				t.Errorf("the fallback is %s, want %s", fallback, test.fallback)
			}
		})
	}
}
