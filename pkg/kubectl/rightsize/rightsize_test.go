package rightsize

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/model"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/utils/ptr"

	"github.com/mica-gpu/mica/pkg/elastic/workload"
	"github.com/mica-gpu/mica/pkg/gpu"
	"github.com/mica-gpu/mica/pkg/kubectl/terminal"
	"github.com/mica-gpu/mica/pkg/slice"
	"github.com/mica-gpu/mica/test/fixture"
)

// offer is of one node per machine, entire GPUs and partitions, and shares, which are no shapes.
func offer(t *testing.T, machines ...string) Offer {
	t.Helper()
	var all []*resourceapi.ResourceSlice
	for _, machine := range machines {
		facts := fixture.Node(t, machine)
		policy := gpu.Policy{Whole: true, MIG: true, TimeSlicing: &gpu.TimeSlicing{Replicas: 4}}
		for _, s := range slice.Pool(facts, gpu.Shapes(facts.GPUs, func(gpu.GPU) gpu.Policy { return policy }), nil).Slices {
			all = append(all, &resourceapi.ResourceSlice{Spec: resourceapi.ResourceSliceSpec{NodeName: ptr.To(machine), Devices: s.Devices}})
		}
	}
	return OfferOf(all)
}

const gib = 1 << 30

// used is of an H100 unless it is changed.
func used(pod string, peak float64, busy float64, change ...func(*Use)) Use {
	u := Use{Pod: pod, Node: "p5.48xlarge", Device: "gpu-0", PeakBytes: int64(peak * gib), TotalBytes: 80 * gib, Busy: &busy}
	for _, c := range change {
		c(&u)
	}
	return u
}

func silent(u *Use) { u.Busy = nil }

func on(node, device string) func(*Use) {
	return func(u *Use) { u.Node, u.Device = node, device }
}

func TestAdvice(t *testing.T) {
	both := offer(t, "p5.48xlarge", "g6.xlarge")
	for name, test := range map[string]struct {
		uses []Use
		best string
		want map[string]Verdict
	}{
		"idle":               {[]Use{used("llm-0", 5, 0.05)}, "1g.10gb", map[string]Verdict{"1g.10gb": Fits, "whole GPU": Fits}},
		"little and busy":    {[]Use{used("llm-0", 5, 0.95)}, "", map[string]Verdict{"1g.10gb": TooSlow, "7g.80gb": TooSlow, "whole GPU": TooSlow}},
		"little, 40 % busy":  {[]Use{used("llm-0", 5, 0.4)}, "3g.40gb", map[string]Verdict{"2g.20gb": TooSlow, "4g.40gb": Fits}},
		"much and idle":      {[]Use{used("llm-0", 38, 0.05)}, "whole GPU", map[string]Verdict{"4g.40gb": TooSmall, "1g.10gb": TooSmall}},
		"the most of pods":   {[]Use{used("llm-0", 5, 0.05), used("llm-1", 15, 0.01, on("p5.48xlarge", "gpu-1"))}, "1g.20gb", map[string]Verdict{"1g.10gb": TooSmall}},
		"without a figure":   {[]Use{used("llm-0", 5, 0.05, silent)}, "", map[string]Verdict{"1g.10gb": NotKnown, "whole GPU": NotKnown}},
		"of several shapes":  {[]Use{used("llm-0", 5, 0.05), used("llm-1", 4, 0.9, on("p5.48xlarge", "gpu-0-mig-1g10gb-19-0"))}, "", map[string]Verdict{"1g.10gb": NotKnown}},
		"of a node gone":     {[]Use{used("llm-0", 5, 0.05, on("gone", "gpu-0"))}, "", map[string]Verdict{"1g.10gb": NotKnown, "whole GPU": NotKnown}},
		"already in a part":  {[]Use{used("llm-0", 5, 0.5, on("p5.48xlarge", "gpu-0-mig-1g10gb-19-0"))}, "1g.10gb", map[string]Verdict{"whole GPU": Fits}},
		"too busy for apart": {[]Use{used("llm-0", 5, 0.95, on("p5.48xlarge", "gpu-0-mig-1g10gb-19-0"))}, "1g.20gb", map[string]Verdict{"1g.10gb": TooSlow}},
	} {
		t.Run(name, func(t *testing.T) {
			a, err := Of(Question{Workload: "Deployment/llm", Uses: test.uses, Offer: both, Reserve: 0.1})
			if err != nil {
				t.Fatal(err)
			}
			best := ""
			if a.Best != nil {
				best = a.Best.Name()
			}
			if best != test.best {
				t.Errorf("the best is %q, want %q", best, test.best)
			}
			for shape, want := range test.want {
				i := slices.IndexFunc(a.Options, func(o Option) bool { return o.Name() == shape && strings.Contains(o.Product, "H100") })
				if i < 0 || a.Options[i].Verdict != want {
					t.Errorf("%s: want %s among %v", shape, want, a.Options)
				}
			}
		})
	}
}

func TestAdviceIsPrinted(t *testing.T) {
	both := offer(t, "p5.48xlarge", "g6.xlarge")
	for name, uses := range map[string][]Use{
		"smaller":  {used("llm-7d9f-abcde", 5.2, 0.08), used("llm-7d9f-fghij", 4, 0.1, on("p5.48xlarge", "gpu-1"))},
		"reserved": {used("llm-7d9f-abcde", 72, 0.4, silent)},
		"gone":     {used("llm-7d9f-abcde", 12, 0.4, on("gone", "gpu-0"))},
	} {
		a, err := Of(Question{Workload: "Deployment/llm", Uses: uses, Offer: both, Reserve: 0.1})
		if err != nil {
			t.Fatal(err)
		}
		for _, width := range []int{0, 40} {
			screen := terminal.Screen{Width: width}
			var out bytes.Buffer
			if err := Write(&out, screen, a, "7d"); err != nil {
				t.Fatal(err)
			}
			fixture.Golden(t, fmt.Sprintf("%s-%d.txt", name, width), out.String())
		}
	}
}

func TestQueriesAreOfTheWorkloadsPods(t *testing.T) {
	for name, test := range map[string]struct {
		target workload.Ref
		over   time.Duration
		want   []string
	}{
		"a Deployment":  {workload.Ref{Kind: "Deployment", Namespace: "ml", Name: "llm.v1"}, 7 * 24 * time.Hour, []string{`namespace="ml"`, `pod=~"llm\\.v1-[a-z0-9]+-[a-z0-9]{5}"`, "[1w:5m]"}},
		"a StatefulSet": {workload.Ref{Kind: "StatefulSet", Namespace: "ml", Name: "embed"}, time.Hour, []string{`pod=~"embed-[0-9]+"`, "[1h:5s]"}},
		"a ReplicaSet":  {workload.Ref{Kind: "ReplicaSet", Namespace: "ml", Name: "rs"}, 90 * 24 * time.Hour, []string{`pod=~"rs-[a-z0-9]{5}"`, "[90d:1h5m]"}},
	} {
		queries := QueriesOf(test.target, test.over)
		for _, query := range []string{queries.Peak, queries.Total, queries.Busy} {
			for _, want := range test.want {
				if !strings.Contains(query, want) {
					t.Errorf("%s: %s is not in %s", name, want, query)
				}
			}
		}
	}
}

// Prometheus' own tool plays these queries.
func TestTheQueriesArePlayed(t *testing.T) {
	played, err := os.ReadFile("../../../deployments/observability/rightsize_test.yaml")
	if err != nil {
		t.Fatal(err)
	}
	queries := QueriesOf(workload.Ref{Kind: "Deployment", Namespace: "ml", Name: "llm"}, time.Hour)
	for _, query := range []string{queries.Peak, queries.Busy} {
		if !strings.Contains(string(played), query+"\n") {
			t.Errorf("rightsize_test.yaml does not have %s", query)
		}
	}
}

func TestATimeThatCannotBeReadSaysWhy(t *testing.T) {
	for text, want := range map[string]string{"a week": "cannot be read", "": "cannot be read", "1m": "from 10m", "1y": "to 90d"} {
		_, err := ReadOver(text)
		fixture.Sentence(t, err, want)
	}
	if over, err := ReadOver("7d"); err != nil || over != 7*24*time.Hour {
		t.Errorf("7d is %v, %v", over, err)
	}
}

func TestAnswersArePutTogether(t *testing.T) {
	sample := func(pod, node, device string, value float64) *model.Sample {
		return &model.Sample{Metric: model.Metric{"pod": model.LabelValue(pod), "node": model.LabelValue(node), "device": model.LabelValue(device)}, Value: model.SampleValue(value)}
	}
	uses, err := Answers{
		Peak:  model.Vector{sample("a", "n", "gpu-0", 5), sample("b", "n", "gpu-1", 6)},
		Total: model.Vector{sample("b", "n", "gpu-1", 80), sample("a", "n", "gpu-0", 80)},
		Busy:  model.Vector{sample("b", "n", "gpu-1", 0.5)},
	}.Uses()
	if err != nil || len(uses) != 2 {
		t.Fatalf("got %v, %v", uses, err)
	}
	if a, b := uses[0], uses[1]; a.Busy != nil || a.TotalBytes != 80 || b.PeakBytes != 6 || b.Busy == nil || *b.Busy != 0.5 {
		t.Errorf("got %+v and %+v", a, b)
	}
	_, err = Answers{Peak: model.Vector{sample("a", "", "gpu-0", 5)}}.Uses()
	fixture.Sentence(t, err, "no label node", "podMonitor.enabled")
	_, err = Of(Question{Workload: "Deployment/llm"})
	fixture.Sentence(t, err, "nothing is known", "Deployment/llm")
}
