package cordon

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/mica-gpu/mica/pkg/devices"
	"github.com/mica-gpu/mica/pkg/fleet"
	"github.com/mica-gpu/mica/pkg/gpu"
	"github.com/mica-gpu/mica/pkg/kubectl/terminal"
	"github.com/mica-gpu/mica/pkg/slice"
	"github.com/mica-gpu/mica/test/fixture"
)

const (
	node   = "ip-10-0-0-1.eu-central-1.compute.internal"
	effect = resourceapi.DeviceTaintEffectNoSchedule
)

// published returns the slices of a node with two H100, in all shapes.
func published(t *testing.T, node string) []*resourceapi.ResourceSlice {
	t.Helper()
	facts := fixture.Node(t, "p5.48xlarge")
	policy := gpu.Policy{Whole: true, MIG: true, TimeSlicing: &gpu.TimeSlicing{Replicas: 4}}
	pool := slice.Pool(facts, gpu.Shapes(facts.GPUs[:2], func(gpu.GPU) gpu.Policy { return policy }), nil)
	var all []*resourceapi.ResourceSlice
	for i, s := range pool.Slices {
		all = append(all, &resourceapi.ResourceSlice{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%s-%02d", node, i)},
			Spec: resourceapi.ResourceSliceSpec{
				Driver: slice.DefaultDriver, NodeName: &node, Devices: s.Devices, SharedCounters: s.SharedCounters,
				Pool: resourceapi.ResourcePool{Name: node, Generation: 1, ResourceSliceCount: int64(len(pool.Slices))},
			},
		})
	}
	return all
}

// cluster has two nodes. Claims have a GPU and a share of the first one.
func cluster(t *testing.T) fleet.Fleet {
	t.Helper()
	seen := fleet.Fleet{Slices: append(published(t, node), published(t, "other")...)}
	for name, device := range map[string]string{"train": "gpu-0", "notebook": "gpu-1-timeslice"} {
		result := fixture.Result("gpu", device)
		result.Pool, result.Driver = node, slice.DefaultDriver
		claim := fixture.Claim(name, result)
		claim.Namespace = "research"
		claim.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: name + "-0", UID: types.UID(name)}}
		seen.Holdings = append(seen.Holdings, fleet.HoldingsOf(claim, slice.DefaultDriver)...)
	}
	return seen
}

func gpuOf(t *testing.T, seen fleet.Fleet, name string) Target {
	t.Helper()
	target, err := FindGPU(seen.GPUs(), name)
	if err != nil {
		t.Fatal(err)
	}
	return target
}

// No claim gets anything of a GPU in any shape, and all others stay as they are.
func TestRulesCoverAllShapesOfAGPUAndNothingElse(t *testing.T) {
	seen := cluster(t)
	target := gpuOf(t, seen, node+"/gpu-1")
	uuid := target.GPUs[0].UUID
	if again := gpuOf(t, fleet.Fleet{Slices: published(t, node)}, uuid); again.GPUs[0].Name != "gpu-1" {
		t.Errorf("UUID %s is of %s", uuid, again.GPUs[0].Name)
	}
	for name, rules := range map[string][]resourceapi.DeviceTaintRule{
		"gpu-1 of the first node": target.Rules(effect, "noisy fan"),
		"the first node":          wholeNode(t, seen).Rules(effect, ""),
	} {
		tainted := 0
		for _, s := range devices.WithTaintRules(seen.Slices, rules) {
			for _, d := range s.Spec.Devices {
				is := len(d.Taints) > 0
				want := *s.Spec.NodeName == node && (strings.HasPrefix(d.Name, "gpu-1") || len(rules) == 1)
				if is != want {
					t.Errorf("%s: device %s of node %s is tainted: %t", name, d.Name, *s.Spec.NodeName, is)
				}
				if is {
					tainted++
				}
			}
		}
		if tainted < 25 {
			t.Errorf("%s: only %d devices are tainted", name, tainted)
		}
		for _, rule := range rules {
			if problems := validation.NameIsDNSSubdomain(rule.Name, false); len(problems) > 0 || !Ours(&rule) {
				t.Errorf("rule %s: %v", rule.Name, problems)
			}
		}
	}
}

func wholeNode(t *testing.T, seen fleet.Fleet) Target {
	t.Helper()
	target, err := FindNode(seen.GPUs(), node)
	if err != nil {
		t.Fatal(err)
	}
	return target
}

func TestEachDeviceHasARuleOfItsOwnName(t *testing.T) {
	long := strings.Repeat("a", 250)
	names := map[string]string{}
	for _, pool := range []devices.PoolID{{Driver: slice.DefaultDriver, Name: "n"}, {Driver: slice.DefaultDriver, Name: "n.gpu-0"}, {Driver: "gpu.example.com", Name: "n"}, {Driver: slice.DefaultDriver, Name: "n/x"}, {Driver: slice.DefaultDriver, Name: long}} {
		for _, device := range []string{"", "gpu-0", "gpu-0-timeslice"} {
			kind := OfGPU
			if device == "" {
				kind = OfNode
			}
			name := ruleName(kind, pool, device)
			if other := names[name]; other != "" || len(name) > 253 {
				t.Errorf("%s is too long, or also the rule of %s", name, other)
			}
			names[name] = fmt.Sprint(kind, pool, device)
		}
	}
}

func TestWhatIsNotFound(t *testing.T) {
	all := cluster(t).GPUs()
	for text, want := range map[string][]string{
		node + "/gpu-7":           {"no GPU \"gpu-7\"", "gpu-0, gpu-1"},
		node + "/gpu-1-timeslice": {"part of GPU gpu-1", "give " + node + "/gpu-1"},
		"nowhere/gpu-0":           {"node \"nowhere\"", "kubectl gpu list"},
		"GPU-1234":                {"UUID \"GPU-1234\"", "NODE/GPU"},
		"":                        {"UUID"},
	} {
		_, err := FindGPU(all, text)
		fixture.Sentence(t, err, want...)
	}
	_, err := FindNode(all, "nowhere")
	fixture.Sentence(t, err, "nowhere", "kubectl gpu list")
	_, err = ParseEffect("NoExec")
	fixture.Sentence(t, err, "NoExec", "NoExecute")
	gone := []fleet.GPU{{Node: "n", Name: "gpu-0"}}
	_, err = FindGPU(gone, "n/gpu-0")
	fixture.Sentence(t, err, "no device", "cordon node n")
}

// Only what was cordoned under the same name is uncordoned, also if the GPU is gone.
func TestRulesAreFoundAgain(t *testing.T) {
	seen := cluster(t)
	first, second, whole := gpuOf(t, seen, node+"/gpu-0"), gpuOf(t, seen, node+"/gpu-1"), wholeNode(t, seen)
	foreign := whole.Rules(effect, "")[0]
	foreign.Labels = nil
	both := append(first.Rules(effect, ""), second.Rules(effect, "")...)
	all := append(append([]resourceapi.DeviceTaintRule{foreign}, both...), whole.Rules(effect, "")...)
	for name, tc := range map[string]struct {
		found Found
		rules int
		note  string
	}{
		"a GPU":              {ForGPU(both, node+"/gpu-1"), len(second.GPUs[0].Devices), ""},
		"a UUID":             {ForGPU(both, first.GPUs[0].UUID), len(first.GPUs[0].Devices), ""},
		"a GPU of a node":    {ForGPU(all, node+"/gpu-1"), len(second.GPUs[0].Devices), "uncordon node " + node},
		"a node":             {ForNode(all, node), 1, node + "/gpu-0, " + node + "/gpu-1"},
		"another node":       {ForNode(all, "other"), 0, ""},
		"another node's GPU": {ForGPU(all, "other/gpu-1"), 0, ""},
		"no such UUID":       {ForGPU(both, "GPU-1"), 0, ""},
	} {
		if len(tc.found.Rules) != tc.rules || !strings.Contains(tc.found.Note, tc.note) || tc.note == "" && tc.found.Note != "" {
			t.Errorf("%s: %d rules and the note %q, want %d and %q", name, len(tc.found.Rules), tc.found.Note, tc.rules, tc.note)
		}
	}
}

// A claim with two devices of the node is one claim.
func TestClaimsAreCountedOnce(t *testing.T) {
	target := Target{Kind: OfNode, Node: "n", GPUs: []fleet.GPU{
		{Name: "gpu-0", Claims: []fleet.Holding{{Namespace: "a", Claim: "pair", Device: "gpu-0"}}},
		{Name: "gpu-1", Claims: []fleet.Holding{{Namespace: "a", Claim: "pair", Device: "gpu-1"}}},
	}}
	var out bytes.Buffer
	if err := (Report{Target: target, Effect: effect}).Write(&out, terminal.Screen{}); err != nil || !strings.Contains(out.String(), "The pods of 1 claim keep it") {
		t.Errorf("%v: %s", err, &out)
	}
}

func TestReports(t *testing.T) {
	var all bytes.Buffer
	idle := gpuOf(t, fleet.Fleet{Slices: published(t, node)}, node+"/gpu-1")
	for _, target := range []Target{gpuOf(t, cluster(t), node+"/gpu-0"), wholeNode(t, cluster(t)), idle} {
		for _, e := range Effects {
			for _, dryRun := range []bool{false, true} {
				report := Report{Target: target, Effect: e, Rules: target.Rules(e, ""), DryRun: dryRun}
				if target.Kind == OfNode {
					report.NotSeen = []string{"you may not list the claims of all namespaces"}
				}
				for _, width := range []int{0, 80} {
					fmt.Fprintf(&all, "--- %s %s dry run %t, %d characters\n", target.Kind, e, dryRun, width)
					if err := report.Write(&all, terminal.Screen{Width: width}); err != nil {
						t.Fatal(err)
					}
				}
			}
		}
	}
	for _, f := range []Found{{}, {Rules: make([]resourceapi.DeviceTaintRule, 2), Note: "more is cordoned"}} {
		fmt.Fprintf(&all, "--- uncordon\n%s\n%s\n", f.Sentence(OfGPU, "n/gpu-0", true), f.Sentence(OfNode, "n", false))
	}
	fixture.Golden(t, "reports.txt", all.String())
}
