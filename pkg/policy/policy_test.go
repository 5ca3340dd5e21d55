package policy

import (
	"reflect"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/mica-gpu/mica/api/v1alpha1"
	"github.com/mica-gpu/mica/pkg/gpu"
	"github.com/mica-gpu/mica/test/fixture"
)

func parse(t testing.TB, text string) *v1alpha1.GPUPolicy {
	t.Helper()
	policy := &v1alpha1.GPUPolicy{ObjectMeta: metav1.ObjectMeta{Name: "p"}}
	if err := yaml.UnmarshalStrict([]byte(text), &policy.Spec); err != nil {
		t.Fatal(err)
	}
	return policy
}

func TestTheHighestPriorityThatSelectsANodeApplies(t *testing.T) {
	policy := func(name string, priority int32, pool string) *v1alpha1.GPUPolicy {
		p := &v1alpha1.GPUPolicy{ObjectMeta: metav1.ObjectMeta{Name: name}}
		p.Spec.Priority = priority
		if pool != "" {
			p.Spec.NodeSelector.MatchLabels = map[string]string{"pool": pool}
		}
		return p
	}
	broken := policy("broken", 1000, "")
	broken.Spec.NodeSelector.MatchExpressions = []metav1.LabelSelectorRequirement{{Key: "pool", Operator: "Near"}}
	all := []*v1alpha1.GPUPolicy{policy("z", 0, ""), policy("b", 5, "train"), policy("a", 5, "train"), policy("low", -1, "train"), policy("other", 9, "serve"), broken}
	for pool, want := range map[string]string{"train": "a", "serve": "other", "": "z"} {
		if got := Select(all, map[string]string{"pool": pool}); got == nil || got.Name != want {
			t.Errorf("pool %q: got %v, want %s", pool, got, want)
		}
	}
	if got := Select(all[1:], nil); got != nil {
		t.Errorf("got %s for a node that none selects", got.Name)
	}
	fixture.Sentence(t, Check(broken), "GPUPolicy broken, spec.nodeSelector", "selects no node")
}

func TestWhatAPolicyMeansForEachGPU(t *testing.T) {
	node := fixture.Node(t, "p5.48xlarge")
	for name, test := range map[string]struct {
		spec string
		want gpu.Policy // of GPU 1; GPU 0 is offered whole where there are overrides
	}{
		"nothing is offered that is not named": {"shapes: {whole: {}}", gpu.Policy{Whole: true}},
		"whole GPUs for any number of claims":  {"shapes: {whole: {consumableShares: unlimited}}", gpu.Policy{Whole: true, Consumable: &gpu.ConsumableShares{By: gpu.ByNothing}}},
		"whole GPUs by memory":                 {"shapes: {whole: {consumableShares: memory}}", gpu.Policy{Whole: true, Consumable: &gpu.ConsumableShares{By: gpu.ByMemory}}},
		"whole GPUs in shares":                 {"shapes: {whole: {consumableShares: 4}}", gpu.Policy{Whole: true, Consumable: &gpu.ConsumableShares{By: gpu.ByCount, Count: 4}}},
		"all profiles":                         {"shapes: {mig: {}}", gpu.Policy{MIG: true}},
		"all profiles, made for claims":        {"shapes: {mig: {creation: OnDemand}}", gpu.Policy{MIG: true}},
		"only what is there":                   {"shapes: {whole: {}, mig: {creation: Never}}", gpu.Policy{Whole: true, MIG: true, OnlyExisting: true}},
		"some profiles":                        {"shapes: {mig: {profiles: [1g.10gb, 9g.1gb]}}", gpu.Policy{MIG: true, Profiles: []string{"1g.10gb", "9g.1gb"}}},
		"only shares of partitions": {"shapes: {mig: {shared: [{profile: 1g.10gb, mps: {clients: 3}}]}}",
			gpu.Policy{SharedProfiles: map[string]gpu.Sharing{"1g.10gb": gpu.MPS{Clients: 3}}}},
		"partitions and shares of them": {"shapes: {mig: {profiles: [2g.20gb], shared: [{profile: 1g.10gb, timeSlice: {replicas: 3}}]}}",
			gpu.Policy{MIG: true, Profiles: []string{"2g.20gb"}, SharedProfiles: map[string]gpu.Sharing{"1g.10gb": gpu.TimeSlicing{Replicas: 3, Interval: gpu.DefaultInterval}}}},
		"both kinds of shares": {"shapes: {timeSlice: {replicas: 2, interval: Long}, mps: {clients: 48}}",
			gpu.Policy{TimeSlicing: &gpu.TimeSlicing{Replicas: 2, Interval: gpu.LongInterval}, MPS: &gpu.MPS{Clients: 48}}},
		"the first override that matches": {`
shapes: {mig: {}}
overrides:
- {when: 'device.attributes["gpu.nvidia.com"].minor == 0', shapes: {whole: {}}}
- {when: 'device.attributes["gpu.nvidia.com"].productName.startsWith("NVIDIA H100") && device.capacity["gpu.nvidia.com"].memory.compareTo(quantity("40Gi")) > 0', shapes: {timeSlice: {replicas: 7}}}
- {when: "true", shapes: {mps: {clients: 2}}}
`, gpu.Policy{TimeSlicing: &gpu.TimeSlicing{Replicas: 7, Interval: gpu.DefaultInterval}}},
	} {
		t.Run(name, func(t *testing.T) {
			compiled, err := Compile(fixture.Driver, parse(t, test.spec))
			if err != nil {
				t.Fatal(err)
			}
			got, err := compiled.For(t.Context(), node)
			if err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(got[1], test.want) {
				t.Errorf("got %+v, want %+v", got[1], test.want)
			}
			if len(compiled.overrides) > 0 && !reflect.DeepEqual(got[0], gpu.Policy{Whole: true}) {
				t.Errorf("GPU 0 is offered as %+v", got[0])
			}
		})
	}
}

func TestRefusalsNamePolicyFieldAndGPU(t *testing.T) {
	node := fixture.Node(t, "p5.48xlarge")
	old := fixture.Node(t, "p5.48xlarge")
	old.GPUs[3].ComputeCapability, old.GPUs[3].ProductName = "6.1", "Tesla P40"
	for name, test := range map[string]struct {
		spec string
		node gpu.Node
		want []string
	}{
		"no shapes":            {"shapes: {}", node, []string{"GPUPolicy p, spec.shapes.", "name at least one shape"}},
		"too many replicas":    {"shapes: {timeSlice: {replicas: 129}}", node, []string{"GPUPolicy p, GPU 0 (GPU-", "spec.shapes.timeSlice: replicas is 129"}},
		"both kinds":           {"shapes: {mig: {shared: [{profile: 1g.10gb, mps: {clients: 2}, timeSlice: {replicas: 2}}]}}", node, []string{"spec.shapes.mig.shared[0]", "exactly one of"}},
		"a later creation":     {"shapes: {mig: {creation: Sometimes}}", node, []string{"GPUPolicy p, spec.shapes.mig.creation is \"Sometimes\"", "choose OnDemand or Never"}},
		"twice":                {"shapes: {mig: {shared: [{profile: a, mps: {clients: 2}}, {profile: a, mps: {clients: 2}}]}}", node, []string{"mig.shared[1]", "twice"}},
		"no CEL":               {"{shapes: {whole: {}}, overrides: [{when: 'device.', shapes: {mig: {}}}]}", node, []string{"spec.overrides[0].when", "compilation failed"}},
		"not a truth":          {"{shapes: {whole: {}}, overrides: [{when: '1', shapes: {mig: {}}}]}", node, []string{"spec.overrides[0].when", "bool"}},
		"dear":                 {"{shapes: {whole: {}}, overrides: [{when: 'device.attributes.all(a, device.attributes.all(b, device.attributes.all(c, device.attributes.all(d, a != b && c != d))))', shapes: {mig: {}}}]}", node, []string{"spec.overrides[0].when", "simpler"}},
		"long":                 {"{shapes: {whole: {}}, overrides: [{when: '" + strings.Repeat("!", 20000) + "true', shapes: {mig: {}}}]}", node, []string{"20004 bytes"}},
		"a number without end": {"{shapes: {whole: {}}, overrides: [{when: 'device.capacity[\"gpu.nvidia.com\"].memory.isGreaterThan(quantity(\"1e-9999999\"))', shapes: {mig: {}}}]}", node, []string{"spec.overrides[0].when: it has the number \"1e-9999999\"", "write one that devices can have"}},
		"a missing key":        {"{shapes: {whole: {}}, overrides: [{when: 'device.attributes[\"gpu.nvidia.com\"].colour == \"red\"', shapes: {mig: {}}}]}", node, []string{"spec.overrides[0].when, GPU 0", "no such key", "orValue"}},
		"old GPU":              {"{shapes: {whole: {}}, overrides: [{when: 'true', shapes: {mps: {clients: 2}}}]}", old, []string{"GPU 3", "spec.overrides[0].shapes.mps", "Tesla P40"}},
		"bad override shape":   {"{shapes: {whole: {}}, overrides: [{when: 'true', shapes: {}}]}", node, []string{"spec.overrides[0].shapes."}},
	} {
		t.Run(name, func(t *testing.T) {
			compiled, err := Compile(fixture.Driver, parse(t, test.spec))
			if err == nil {
				_, err = compiled.For(t.Context(), test.node)
			}
			fixture.Sentence(t, err, test.want...)
		})
	}
}

func TestUsesMPS(t *testing.T) {
	for spec, want := range map[string]bool{
		"shapes: {whole: {}, timeSlice: {replicas: 2}}":                                    false,
		"shapes: {mps: {clients: 2}}":                                                      true,
		"shapes: {mig: {shared: [{profile: 1g.10gb, mps: {clients: 2}}]}}":                 true,
		"shapes: {mig: {shared: [{profile: 1g.10gb, timeSlice: {replicas: 2}}]}}":          false,
		"{shapes: {whole: {}}, overrides: [{when: 'false', shapes: {mps: {clients: 2}}}]}": false,
	} {
		compiled, err := Compile(fixture.Driver, parse(t, spec))
		if err != nil {
			t.Fatal(err)
		}
		policies, err := compiled.For(t.Context(), fixture.Node(t, "p5.48xlarge"))
		if err != nil {
			t.Fatal(err)
		}
		if got := UsesMPS(policies); got != want {
			t.Errorf("%s: got %t", spec, got)
		}
	}
}

// A policy is either refused with a sentence or compiled, and the shapes of a compiled policy can be computed.
func FuzzAPolicyIsUnderstoodOrRefused(f *testing.F) {
	for _, spec := range []string{
		"shapes: {whole: {}, mig: {profiles: [1g.10gb], shared: [{profile: 2g.20gb, timeSlice: {replicas: 2}}]}, timeSlice: {replicas: 4, interval: Long}, mps: {clients: 3}}",
		"{shapes: {whole: {}}, overrides: [{when: 'device.driver == \"gpu.nvidia.com\"', shapes: {mig: {}}}]}",
		"{shapes: {mps: {clients: 100}}, nodeSelector: {matchExpressions: [{key: a, operator: Near}]}}",
	} {
		f.Add(spec)
	}
	node := fixture.Node(f, "p5.48xlarge")
	f.Fuzz(func(t *testing.T, spec string) {
		policy := &v1alpha1.GPUPolicy{ObjectMeta: metav1.ObjectMeta{Name: "p"}}
		if yaml.UnmarshalStrict([]byte(spec), &policy.Spec) != nil {
			return
		}
		Select([]*v1alpha1.GPUPolicy{policy}, nil)
		compiled, err := Compile(fixture.Driver, policy)
		if err != nil {
			fixture.Sentence(t, err, "GPUPolicy p, spec.")
			return
		}
		policies, err := compiled.For(t.Context(), node)
		if err != nil {
			fixture.Sentence(t, err, "GPUPolicy p, ")
			return
		}
		gpu.Shapes(node.GPUs, func(g gpu.GPU) gpu.Policy { return policies[g.Index] })
	})
}
