package explain

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/mica-gpu/mica/pkg/excerpt"
	"github.com/mica-gpu/mica/pkg/scaleout"
	"github.com/mica-gpu/mica/pkg/scaleout/template"
	"github.com/mica-gpu/mica/test/fixture"
)

// world is a snapshot in the making.
type world struct{ scaleout.Snapshot }

func newWorld() *world { return &world{scaleout.Snapshot{Classes: classes()}} }

func allocatable(cpu string) corev1.ResourceList {
	return corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse("512Gi"), corev1.ResourcePods: resource.MustParse("100"),
	}
}

// renamed has a machine's slices as those of another node.
func renamed(m *machine, name string) []*resourceapi.ResourceSlice {
	var all []*resourceapi.ResourceSlice
	for i, slice := range m.offer.slices {
		own := slice.DeepCopy()
		own.Name = fmt.Sprintf("%s-%d", name, i)
		own.Spec.NodeName, own.Spec.Pool.Name = ptr.To(name), name
		all = append(all, own)
	}
	return all
}

// group adds a group of such machines; change may be nil.
func (w *world) group(name, cpu string, m *machine, change func(*scaleout.Group)) *world {
	g := scaleout.Group{Name: name}
	if m != nil {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "template-" + name, Labels: map[string]string{"group": name}}}
		node.Status.Allocatable = allocatable(cpu)
		g.Template = &template.Template{Node: node, Slices: renamed(m, node.Name)}
	}
	if change != nil {
		change(&g)
	}
	w.Groups = append(w.Groups, g)
	return w
}

// unknown adds groups without a template, with the text of package template.
func (w *world) unknown(names ...string) *world {
	for _, name := range names {
		w.group(name, "", nil, func(g *scaleout.Group) {
			g.Unknown = "what a new node of group " + name + " has is not known: give spec.instanceType"
		})
	}
	return w
}

// node adds a live node with allocated devices.
func (w *world) node(name, group string, m *machine, taken ...string) *world {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"group": group}}}
	node.Status.Allocatable = allocatable("96")
	w.Nodes = append(w.Nodes, scaleout.Node{Object: node, Group: group})
	w.Slices = append(w.Slices, renamed(m, name)...)
	for _, device := range taken {
		claim := fixture.Claim(name+"-"+device, resourceapi.DeviceRequestAllocationResult{Request: "a", Driver: driver, Pool: name, Device: device})
		w.Claims = append(w.Claims, claim)
	}
	return w
}

// pods adds pods that are alike, with a claim from a template of the same name.
func (w *world) pods(name string, n int, claim *resourceapi.ResourceClaim) *world {
	w.ClaimTemplates = append(w.ClaimTemplates, &resourceapi.ResourceClaimTemplate{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec:       resourceapi.ResourceClaimTemplateSpec{Spec: claim.Spec},
	})
	for i := range n {
		pod := waiting(fmt.Sprintf("%s-%d", name, i))
		pod.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpus", ResourceClaimTemplateName: ptr.To(name)}}
		pod.Spec.Containers = []corev1.Container{{Name: "main", Resources: corev1.ResourceRequirements{
			Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("4")},
			Claims:   []corev1.ResourceClaim{{Name: "gpus"}},
		}}}
		w.Pending = append(w.Pending, pod)
	}
	return w
}

func (w *world) explain(t *testing.T, pod string) Explanation {
	t.Helper()
	p := scaleout.NewPlanner(w.Snapshot)
	e, known, err := Pod(t.Context(), p, types.NamespacedName{Namespace: "default", Name: pod})
	if err != nil || !known {
		t.Fatalf("pod %s: known %t, error %v", pod, known, err)
	}
	return e
}

// mixedFleet has a group for each way to be blocked, and nodes that are alike.
func mixedFleet() *world {
	h100s := func() *machine { return newMachine().gpus(8, h100, "81152Mi") }
	a10gs := func() *machine { return newMachine().gpus(4, "NVIDIA A10G", "23028Mi") }
	w := newWorld()
	w.group("p5", "192", h100s(), nil)
	w.group("p5-max", "192", newMachine().gpus(8, "NVIDIA H200", "143771Mi"), func(g *scaleout.Group) { g.Size, g.Max = 2, ptr.To(2) })
	w.group("p5-backoff", "192", newMachine().gpus(8, "NVIDIA H200", "143771Mi"), func(g *scaleout.Group) { g.Closed = "in backoff after a failed scale-up: no capacity" })
	w.group("unknown", "", nil, func(g *scaleout.Group) {
		g.Unknown = "what a new node of group unknown has is not known: unknown instance type x9.large: give spec.template.gpus"
	})
	w.group("g5", "48", a10gs(), nil)
	w.group("small", "2", newMachine().gpus(8, "NVIDIA H200", "143771Mi"), nil)
	w.group("tainted", "48", newMachine().gpus(8, "NVIDIA H200", "143771Mi"), func(g *scaleout.Group) {
		g.Template.Node.Spec.Taints = []corev1.Taint{{Key: "team", Value: "a", Effect: corev1.TaintEffectNoSchedule}}
	})
	w.node("g5-1", "g5", a10gs()).node("g5-2", "g5", a10gs()).node("g5-3", "g5", a10gs(), "gpu-1")
	w.node("lone", "", newMachine().gpus(2, "NVIDIA H200", "143771Mi"), "gpu-0")
	return w
}

func TestExplanationOfAPodThatNothingTakes(t *testing.T) {
	e := mixedFleet().pods("train", 3, claimOf("x", wants(2, eighty))).explain(t, "train-1")
	var encoded bytes.Buffer
	encoder := json.NewEncoder(&encoded)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	if err := encoder.Encode(e); err != nil {
		t.Fatal(err)
	}
	fixture.Golden(t, "blocked.json", encoded.String())
}

func TestSummarySaysWhatThePodWaitsFor(t *testing.T) {
	h100s := func() *machine { return newMachine().gpus(8, h100, "81152Mi") }
	for name, tc := range map[string]struct {
		world *world
		claim *resourceapi.ResourceClaim
		want  scaleout.Outcome
		says  string
	}{
		"room": {newWorld().node("n1", "", h100s()), claimOf("x", wants(1)), scaleout.FitsNode,
			"fits on node n1, which has room now: the scheduler will put it there or elsewhere"},
		"a node that was asked for": {newWorld().group("p5", "96", h100s(), func(g *scaleout.Group) { g.Upcoming, g.Size = 1, 1 }), claimOf("x", wants(1)), scaleout.FitsStarting,
			"waits for a node of group p5 that is starting or was asked for"},
		"growth": {newWorld().group("p5", "96", h100s(), nil), claimOf("x", wants(1)), scaleout.NeedsNode,
			"needs a new node of group p5"},
		"growth by an administrator": {newWorld().group("p5", "96", h100s(), func(g *scaleout.Group) { g.Advised = true }), claimOf("x", wants(1)), scaleout.Advised,
			"needs a new node of group p5, whose pairing is observe: add a node, or set the pairing to placeholder or direct"},
		"nothing to grow": {newWorld(), claimOf("x", wants(1)), scaleout.Blocked,
			"no node fits, and there is no GPUNodeGroup that could grow: create one"},
		"group at its maximum": {newWorld().group("p5", "96", h100s(), func(g *scaleout.Group) { g.Size, g.Max = 1, ptr.To(1) }), claimOf("x", wants(1)), scaleout.Blocked,
			"no node fits and no group can grow for it; nearest is a node of group p5: would fit, but at its maximum of 1 node (raise max, or wait until devices are free)"},
		"devices in use": {newWorld().group("p5", "96", h100s(), nil).node("n1", "other", newMachine().gpus(2, "NVIDIA H200", "143771Mi"), "gpu-0"), claimOf("x", wants(2, eighty)), scaleout.Blocked,
			`no node fits and no group can grow for it; nearest is a live node of group other: request a of claim "gpus": 2 devices wanted, 1 free; of 2 matching devices 1 allocated to claims`},
		"the template of the only group is unknown": {newWorld().unknown("new"), claimOf("x", wants(1)), scaleout.Blocked,
			"no node fits, and whether a new node of group new would is unknown: what a new node of group new has is not known: give spec.instanceType"},
		"the template of another group is unknown": {newWorld().unknown("new").group("p5", "96", h100s(), nil), claimOf("x", wants(1, eighty)), scaleout.Blocked,
			`quantity("79Gi")); groups with an unknown template (see condition Ready): new`},
		"the templates of others are unknown": {newWorld().unknown("a", "b", "c", "d", "e").group("p5", "96", h100s(), nil), claimOf("x", wants(9)), scaleout.Blocked,
			"nearest is a node of group p5: request a of claim \"gpus\": 9 devices wanted, and the node has 8 devices of class gpu.nvidia.com (ask for at most 8 per pod, or for a larger node); groups with an unknown template (see condition Ready): a, b, c and 2 more"},
		"devices that are not alike": {newWorld().group("p5", "96", h100s(), nil), alike(claimOf("x", wants(4)), numa), scaleout.Blocked,
			"4 devices with the same resource.kubernetes.io/numaNode wanted, and the node has 2 at most"},
		"unknown class": {newWorld().group("p5", "96", h100s(), nil), claimOf("x", ofClass("tpu", 1)), scaleout.Blocked, "tpu"},
	} {
		t.Run(name, func(t *testing.T) {
			e := tc.world.pods("p", 1, tc.claim).explain(t, "p-0")
			if e.Outcome != tc.want {
				t.Errorf("outcome %s, want %s", e.Outcome, tc.want)
			}
			if !strings.Contains(e.Summary, tc.says) {
				t.Errorf("it says %q, not %q", e.Summary, tc.says)
			}
		})
	}
}

// The summary of a pod does not name another one.
func TestAlikePodsHaveTheSameSummary(t *testing.T) {
	w := mixedFleet().pods("train", 3, claimOf("x", wants(2, eighty)))
	p := scaleout.NewPlanner(w.Snapshot)
	explained, err := Pods(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	if len(explained) != 3 {
		t.Fatalf("%d explanations of 3 pods", len(explained))
	}
	for _, e := range explained {
		if e.Summary != explained[0].Summary || strings.Contains(e.Summary, "train") {
			t.Errorf("pod %s has %q, pod %s %q", e.Pod, e.Summary, explained[0].Pod, explained[0].Summary)
		}
	}
}

// The controller explains each plan: pods that fit cost nothing.
func TestPodsThatFitGetNoVerdicts(t *testing.T) {
	w := newWorld().node("n1", "", newMachine().gpus(8, h100, "81152Mi")).pods("p", 2, claimOf("x", wants(1)))
	p := scaleout.NewPlanner(w.Snapshot)
	explained, err := Pods(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range explained {
		if e.Outcome != scaleout.FitsNode || len(e.Verdicts) != 0 {
			t.Errorf("pod %s: %s with %d verdicts, want none", e.Pod, e.Outcome, len(e.Verdicts))
		}
	}
}

func TestANodeThatWithholdsItsGPUsSaysWhy(t *testing.T) {
	w := newWorld().node("plain", "", newMachine()).node("owned", "", newMachine())
	w.Slices = nil
	w.Nodes[1].Withheld = "offers none of its GPUs: a device plugin has them"
	e := w.pods("train", 1, claimOf("x", wants(1))).explain(t, "train-0")
	const want = "no node fits and no group can grow for it; nearest is a node that is in no group: offers none of its GPUs: a device plugin has them"
	if e.Summary != want || len(e.Verdicts) != 2 || e.Verdicts[0].Blocker != blockerWithheld || e.Verdicts[0].Example != "owned" {
		t.Errorf("got %q with %+v, want %q", e.Summary, e.Verdicts, want)
	}
}

// CEL takes minutes per device to read the number, and does not look at the context.
func TestANumberWithoutEndIsExplained(t *testing.T) {
	const (
		endless = `device.capacity["gpu.nvidia.com"].memory.isGreaterThan(quantity("1e-9999999"))`
		why     = `has the number "1e-9999999", whose exponent has more than 2 digits: write one that devices can have`
	)
	w := newWorld().group("p5", "192", newMachine().gpus(8, h100, "81152Mi"), nil).node("live", "p5", newMachine().gpus(8, h100, "81152Mi"))
	of := w.Classes[0].DeepCopy()
	of.Name = "endless"
	of.Spec.Selectors = []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: endless}}}
	w.Classes = append(w.Classes, of)
	w.pods("claim", 1, claimOf("x", wants(1, endless))).pods("class", 1, claimOf("x", ofClass("endless", 1)))
	for _, name := range []string{"claim-0", "class-0"} {
		if e := w.explain(t, name); !strings.Contains(e.Summary, why) {
			t.Errorf("%s: %s %q does not say that it %s", name, e.Outcome, e.Summary, why)
		}
	}
}

func TestExplanationIsBounded(t *testing.T) {
	w := newWorld()
	for i := range 30 {
		w.group(fmt.Sprintf("group-%02d", i), "96", newMachine().gpus(i+1, "NVIDIA A10G", "23028Mi"), nil)
	}
	e := w.pods("p", 1, claimOf("x", wants(1, eighty))).explain(t, "p-0")
	if len(e.Verdicts) != maxVerdicts || e.More != 30-maxVerdicts {
		t.Errorf("%d verdicts and %d more", len(e.Verdicts), e.More)
	}
	if len(e.Summary) > excerpt.MaxEvent {
		t.Errorf("the summary has %d bytes", len(e.Summary))
	}
}

// A long summary still ends with the group whose template is unknown.
func TestAnUnknownGroupIsAlwaysMentioned(t *testing.T) {
	long := claimOf("x", wants(1, `device.attributes["gpu.nvidia.com"].productName == "`+strings.Repeat("é", excerpt.MaxEvent)+`"`))
	w := newWorld().unknown("new").group("p5", "96", newMachine().gpus(8, h100, "81152Mi"), nil)
	e := w.pods("p", 1, long).explain(t, "p-0")
	if !strings.HasSuffix(e.Summary, "…; groups with an unknown template (see condition Ready): new") || len(e.Summary) > excerpt.MaxEvent {
		t.Errorf("it says, in %d bytes, %q", len(e.Summary), e.Summary)
	}
}

func BenchmarkPods(b *testing.B) {
	w := newWorld()
	for i := range 50 {
		w.group(fmt.Sprintf("group-%02d", i), "96", newMachine().gpus(8, fmt.Sprintf("NVIDIA GPU %d", i), "23028Mi"), nil)
	}
	for i := range 1000 {
		w.node(fmt.Sprintf("node-%04d", i), fmt.Sprintf("group-%02d", i%50), newMachine().gpus(8, fmt.Sprintf("NVIDIA GPU %d", i%50), "23028Mi"), "gpu-0")
	}
	for i := range 20 {
		w.pods(fmt.Sprintf("kind-%02d", i), 500, claimOf("x", wants(int64(1+i%8), eighty)))
	}
	p := scaleout.NewPlanner(w.Snapshot)
	if _, err := p.Decide(b.Context()); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Pods(b.Context(), p); err != nil {
			b.Fatal(err)
		}
	}
}
