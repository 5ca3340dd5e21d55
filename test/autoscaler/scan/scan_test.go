package scan

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const claimless = "pod didn't trigger scale-up: 1 cannot allocate all claims"

func expect(t *testing.T, what string, result Result, want ...string) {
	t.Helper()
	if got := says(result); !slices.Equal(got, want) {
		t.Errorf("%s: said\n\t%s\nwant\n\t%s", what, strings.Join(got, "\n\t"), strings.Join(want, "\n\t"))
	}
}

func TestAGroupAtZeroKnowsNoDevices(t *testing.T) {
	r := newRig(t, group("h100"))
	r.pod("one", r.claiming("H100"))
	result := r.scan()
	expect(t, "a claim", result, "one NotTriggerScaleUp: "+claimless)
	if len(result.Sizes) > 0 {
		t.Errorf("asked for %v", result.Sizes)
	}
}

func TestAPodWithoutClaimsBringsUpTheGroupItIsPinnedTo(t *testing.T) {
	r := newRig(t, group("a10g"), group("h100"))
	r.pod("pinned", pinned("h100"))
	r.pod("claiming", r.claiming("H100"))
	result := r.scan()
	expect(t, "with a claim beside it", result, "pinned TriggeredScaleUp: pod triggered scale-up: [{h100 0->1 (max: 5)}]")
	if want := map[string]int{"h100": 1}; !maps.Equal(result.Sizes, want) {
		t.Errorf("asked for %v, want %v", result.Sizes, want)
	}
	r.after(5 * time.Second)
	expect(t, "while the machine boots", r.scan(), "claiming NotTriggerScaleUp: pod didn't trigger scale-up: 2 cannot allocate all claims")
}

func TestWhichPodsAreLookedAt(t *testing.T) {
	for name, change := range map[string]func(*corev1.Pod){
		"not worth a node":          func(p *corev1.Pod) { p.Spec.Priority = new(int32(-11)) },
		"has a node":                func(p *corev1.Pod) { p.Spec.NodeName = "elsewhere" },
		"is deleted":                func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: start} },
		"the scheduler looks at it": func(p *corev1.Pod) { p.Status.Conditions = nil },
		"is younger than it has to be": func(p *corev1.Pod) {
			p.Annotations = map[string]string{annotationScaleUpDelay: "876000h"}
		},
		"its claim is not made yet": func(p *corev1.Pod) {
			p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimTemplateName: new("t")}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, group("h100"))
			r.pod("one", change)
			expect(t, name, r.scan())
		})
	}
	r := newRig(t, group("h100"))
	r.pod("one", func(p *corev1.Pod) { p.Spec.Priority = new(int32(-10)) })
	expect(t, "of the lowest priority that counts", r.scan(), "one TriggeredScaleUp: pod triggered scale-up: [{h100 0->1 (max: 5)}]")
}

func TestNodesThatStartAreNotAskedForAgain(t *testing.T) {
	r := newRig(t, group("h100"))
	r.pod("pinned", pinned("h100"))
	r.scan()
	for _, state := range []struct {
		name   string
		change func()
	}{
		{"booting", func() {}},
		{"not ready", func() { r.join("n1").Status.Conditions = nil }},
		{"ready with its startup taint", func() { r.state.Nodes = nil; r.join("n1") }},
		{"open", func() { r.open(r.state.Nodes[0]) }},
	} {
		state.change()
		r.after(5 * time.Second)
		if result := r.scan(); len(result.Sizes) > 0 || len(result.Events) > 0 {
			t.Errorf("%s: asked for %v, said %q", state.name, result.Sizes, says(result))
		}
	}
}

func TestANodeTeachesItsGroup(t *testing.T) {
	r := newRig(t, group("h100"))
	r.state.Groups[0].Target = 1
	node := r.join("n1")
	r.publish("n1", 2)
	r.scan()
	r.after(2 * time.Minute)
	r.scan()
	if r.memory.Templates["h100"] != nil {
		t.Error("a node with a startup taint became the template")
	}
	r.open(node)
	r.scan()
	r.remove()
	for i := range 9 {
		r.pod(fmt.Sprintf("p%d", i), r.claiming("H100"))
	}
	forgetful := *r
	forgetful.memory = NewMemory()
	if got := says(r.scan()); len(got) != 9 || got[0] != "p0 TriggeredScaleUp: pod triggered scale-up: [{h100 0->2 (max: 5)}]" {
		t.Errorf("nine claims for eight GPUs a node: said %q", got)
	}
	r.after(5 * time.Second)
	if result := r.scan(); len(result.Sizes) > 0 {
		t.Errorf("asked for %v while two nodes come", result.Sizes)
	}
	if got := says(forgetful.scan()); len(got) != 9 || got[0] != "p0 NotTriggerScaleUp: "+claimless {
		t.Errorf("after a restart: said %q", got)
	}
}

func TestATemplateTakesItsTime(t *testing.T) {
	r := newRig(t, group("h100"))
	r.state.Groups[0].Target = 1
	r.open(r.join("n1"))
	r.publish("n1", 2)
	for i := range 8 {
		bind(r.pod(fmt.Sprint("p", i), r.claiming("H100")), "n1")
		r.allocate(fmt.Sprint("claim-p", i), "n1", fmt.Sprint("gpu-", i))
	}
	r.pod("more", r.claiming("H100"))
	r.after(59 * time.Second)
	expect(t, "before a minute", r.scan(), "more NotTriggerScaleUp: "+claimless)
	r.after(time.Second)
	expect(t, "after a minute", r.scan(), "more TriggeredScaleUp: pod triggered scale-up: [{h100 1->2 (max: 5)}]")
}

func TestANodeThatIsReadyBeforeItsSlicesPoisonsTheTemplate(t *testing.T) {
	r := newRig(t, group("h100"))
	r.state.Groups[0].Target = 1
	r.open(r.join("n1"))
	r.after(time.Minute)
	r.scan()
	r.remove()
	r.pod("one", r.claiming("H100"))
	expect(t, "although there was a node", r.scan(), "one NotTriggerScaleUp: "+claimless)
}

func TestANodeIsStartedWithAllPoolsOfTheTemplate(t *testing.T) {
	r := newRig(t, group("h100"))
	r.state.Groups[0].Target = 2
	r.open(r.join("n1"))
	r.publish("n1", 2)
	r.after(time.Minute)
	r.scan()
	r.memory.Requests["h100"] = Request{Increase: 1, Since: r.state.Now}
	r.open(r.join("n2"))
	r.publish("n2", 1)
	status := r.scan().Status.NodeGroups[0]
	if counts := status.Health.NodeCounts.Registered; counts.Ready != 1 || counts.NotStarted != 1 || status.ScaleUp.Status != "InProgress" {
		t.Errorf("with half a pool: %+v, %+v", counts, status.ScaleUp)
	}
	r.after(15 * time.Minute)
	if counts := r.scan().Status.NodeGroups[0].Health.NodeCounts.Registered; counts.Unready.Total != 1 {
		t.Errorf("with half a pool for too long: %+v", counts)
	}
	r.state.Slices = r.state.Slices[:2]
	r.publish("n2", 2)
	if counts := r.scan().Status.NodeGroups[0].Health.NodeCounts.Registered; counts.Ready != 2 {
		t.Errorf("with all of it: %+v", counts)
	}
}

func TestASharedClaimIsAllocatedOnce(t *testing.T) {
	r := newRig(t, group("h100"))
	r.state.Groups[0].Target = 1
	r.open(r.join("n1"))
	r.publish("n1", 2)
	r.after(time.Minute)
	r.scan()
	r.remove()
	for i := range 12 {
		r.pod(fmt.Sprintf("p%02d", i), r.sharing("together", "H100"))
	}
	if got := says(r.scan()); len(got) != 12 || !strings.Contains(got[11], "0->1") {
		t.Errorf("said %q", got)
	}
}

func TestWhyNoGroupGrows(t *testing.T) {
	for name, test := range map[string]struct {
		group  Group
		change func(*corev1.Pod)
		want   string
	}{
		"at max":        {group("h100", func(g *Group) { g.Max = 0 }), pinned("h100"), "1 max node group size reached"},
		"other group":   {group("h100"), pinned("a10g"), "1 node(s) didn't match Pod's node affinity/selector"},
		"no toleration": {group("h100"), func(p *corev1.Pod) { p.Spec.Tolerations = nil }, "1 node(s) had untolerated taint(s)"},
		"too large": {group("h100"), func(p *corev1.Pod) {
			p.Spec.Containers[0].Resources.Requests[corev1.ResourceCPU] = resource.MustParse("17")
		}, "1 Insufficient cpu"},
		"unknown resource": {group("h100"), func(p *corev1.Pod) {
			p.Spec.Containers[0].Resources.Requests["example.com/fpga"] = resource.MustParse("1")
		}, "1 Insufficient example.com/fpga"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, test.group)
			r.pod("one", test.change)
			expect(t, name, r.scan(), "one NotTriggerScaleUp: pod didn't trigger scale-up: "+test.want)
		})
	}
}

func TestATaintWithoutAValueIsLostFromTheTemplate(t *testing.T) {
	r := newRig(t, group("h100", func(g *Group) { g.Taints[0].Value = "" }))
	r.pod("one", func(p *corev1.Pod) { p.Spec.Tolerations = nil })
	expect(t, "without toleration", r.scan(), "one TriggeredScaleUp: pod triggered scale-up: [{h100 0->1 (max: 5)}]")
}

func TestPodsThatKeepApartGetANodeEach(t *testing.T) {
	apart := func(p *corev1.Pod) {
		p.Labels = map[string]string{"app": "apart"}
		p.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{
			{TopologyKey: corev1.LabelHostname, LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "apart"}}},
		}}}
	}
	r := newRig(t, group("h100"))
	r.pod("one", apart)
	r.pod("two", apart)
	if result := r.scan(); result.Sizes["h100"] != 2 {
		t.Errorf("asked for %v", result.Sizes)
	}
}

func TestExtendedResourcesAreCountedBeforeTheFirstNodeOnly(t *testing.T) {
	wants := func(p *corev1.Pod) {
		p.Spec.Containers[0].Resources.Requests["example.com/gpu"] = resource.MustParse("1")
	}
	r := newRig(t, group("h100", func(g *Group) { g.Allocatable["example.com/gpu"] = resource.MustParse("8") }))
	for i := range 9 {
		r.pod(fmt.Sprint("p", i), wants)
	}
	if result := r.scan(); result.Sizes["h100"] != 2 {
		t.Errorf("by number: asked for %v", result.Sizes)
	}
	r = newRig(t, group("h100"))
	r.state.Groups[0].Target = 1
	r.open(r.join("n1"))
	r.publish("n1", 2)
	r.after(time.Minute)
	r.scan()
	r.remove()
	for i := range 9 {
		r.pod(fmt.Sprint("p", i), wants)
	}
	if result := r.scan(); result.Sizes["h100"] != 1 {
		t.Errorf("by a class, which is looked at and not taken: asked for %v", result.Sizes)
	}
}
