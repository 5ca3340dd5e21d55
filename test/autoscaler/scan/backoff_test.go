package scan

import (
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

func TestAGroupWhoseMachinesDoNotComeIsLeftAlone(t *testing.T) {
	r := newRig(t, group("cheap"), group("dear"))
	pod := r.pod("one")
	r.scan()
	fail := func() Result {
		r.state.Groups[0].Failed = 1
		r.state.Groups[0].Code, r.state.Groups[0].Message = "InsufficientInstanceCapacity", "there is none in this zone"
		return r.scan()
	}
	if r.state.Groups[0].Target != 1 {
		t.Fatalf("the first group by name was not asked: %+v", r.state.Groups)
	}
	result := fail()
	expect(t, "in the scan that sees the failure", result, "one TriggeredScaleUp: pod triggered scale-up: [{dear 0->1 (max: 5)}]")
	if size, asked := result.Sizes["cheap"]; !asked || size != 0 {
		t.Errorf("the machine is still asked for: %v", result.Sizes)
	}
	status := result.Status.NodeGroups[0].ScaleUp
	if status.Status != "Backoff" || status.BackoffInfo.ErrorCode != "InsufficientInstanceCapacity" {
		t.Errorf("the status says %+v", status)
	}
	r.state.Groups = r.state.Groups[:1]
	pod.Spec.NodeSelector = nil
	expect(t, "without another group", r.scan(), "one NotTriggerScaleUp: pod didn't trigger scale-up: 1 in backoff after failed scale-up")
	r.after(5 * time.Minute)
	expect(t, "after five minutes", r.scan(), "one TriggeredScaleUp: pod triggered scale-up: [{cheap 0->1 (max: 5)}]")
	fail()
	r.after(5 * time.Minute)
	expect(t, "after five more", r.scan(), "one NotTriggerScaleUp: pod didn't trigger scale-up: 1 in backoff after failed scale-up")
	r.after(5 * time.Minute)
	expect(t, "after ten", r.scan(), "one TriggeredScaleUp: pod triggered scale-up: [{cheap 0->1 (max: 5)}]")
	r.after(backoffReset)
	fail()
	r.after(5 * time.Minute)
	expect(t, "after five, with the last failure forgotten", r.scan(), "one TriggeredScaleUp: pod triggered scale-up: [{cheap 0->1 (max: 5)}]")
}

func TestAFailureDuringABackoffIsNoOtherOne(t *testing.T) {
	r := newRig(t, group("h100"))
	for range 3 {
		r.state.Groups[0].Target, r.state.Groups[0].Failed = 1, 1
		r.scan()
	}
	if got := r.memory.Backoffs["h100"].Duration; got != 5*time.Minute {
		t.Errorf("the group is left alone for %s", got)
	}
}

func TestTheStatusIsAsTheRealOneWritesIt(t *testing.T) {
	r := newRig(t, group("h100"))
	r.state.Groups[0].Failed, r.state.Groups[0].Target = 1, 1
	r.state.Groups[0].Code = "OutOfCapacity"
	text, err := r.scan().Status.YAML()
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{
		"time: 2026-10-01 12:00:00 +0000 UTC", "- health:", "    cloudProviderTarget: 0", "    maxSize: 5", "  name: h100",
		"    backoffInfo:", "      errorCode: OutOfCapacity", "    status: Backoff", "        notStarted: 0",
	} {
		if !strings.Contains(text, line+"\n") {
			t.Errorf("%q is not in\n%s", line, text)
		}
	}
}

func TestEmptyNodesAreRemovedAfterAWhile(t *testing.T) {
	r := newRig(t, group("h100", func(g *Group) { g.Target = 4; g.Min = 1 }))
	for _, name := range []string{"used", "kept", "empty-1", "empty-2"} {
		r.open(r.join(name))
	}
	r.state.Nodes[1].Annotations = map[string]string{annotationScaleDownDisabled: "true"}
	bind(r.pod("user"), "used")
	daemon := r.pod("daemon", func(p *corev1.Pod) {
		p.OwnerReferences = append(p.OwnerReferences, daemonSet)
	})
	bind(daemon, "empty-1")
	r.after(time.Minute)
	if got := r.scan().Remove; len(got) > 0 {
		t.Errorf("at once: %q", got)
	}
	r.after(9 * time.Minute)
	if got := r.scan().Remove; len(got) > 0 {
		t.Errorf("after nine minutes: %q", got)
	}
	growing := r.pod("growing", func(p *corev1.Pod) {
		p.Spec.Containers[0].Resources.Requests[corev1.ResourceCPU] = resource.MustParse("16")
		p.Spec.NodeSelector = map[string]string{"fresh": "true"}
	})
	r.state.Groups = append(r.state.Groups, group("fresh", func(g *Group) { g.Labels["fresh"] = "true" }))
	r.after(time.Minute)
	if got := r.scan().Remove; len(got) > 0 {
		t.Errorf("in the scan of a scale-up: %q", got)
	}
	r.options.DelayAfterAdd = time.Minute
	bind(growing, "used")
	r.after(59 * time.Second)
	if got := r.scan().Remove; len(got) > 0 {
		t.Errorf("a minute after it: %q", got)
	}
	r.after(time.Second)
	waiting := r.pod("waiting", func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{corev1.LabelHostname: "empty-2"} })
	r.state.Nodes[3].Labels[corev1.LabelHostname] = "empty-2"
	if got := r.scan().Remove; len(got) != 1 || got[0] != "empty-1" {
		t.Errorf("after that, with a pod for the other one: %q", got)
	}
	bind(waiting, "used")
	r.state.Nodes = slices.Delete(r.state.Nodes, 2, 3)
	r.scan()
	r.after(10 * time.Minute)
	if got := r.scan().Remove; len(got) != 1 || got[0] != "empty-2" {
		t.Errorf("ten minutes after the pod: %q", got)
	}
	r.options.ScaleDownUnneeded = 0
	if got := r.scan().Remove; len(got) > 0 {
		t.Errorf("switched off: %q", got)
	}
}

func TestAGroupHasATimeOfItsOwn(t *testing.T) {
	r := newRig(t, group("h100", func(g *Group) { g.Target = 1; g.ScaleDownUnneeded = 10 * time.Second }))
	r.options.ScaleDownUnneeded = 0
	r.open(r.join("n1"))
	if got := r.scan().Remove; len(got) > 0 {
		t.Errorf("at once: %q", got)
	}
	r.after(10 * time.Second)
	if got := r.scan().Remove; len(got) != 1 {
		t.Errorf("after ten seconds: %q", got)
	}
}

func TestNoGroupGetsSmallerThanItsLeast(t *testing.T) {
	r := newRig(t, group("h100", func(g *Group) { g.Target = 2; g.Min = 1 }))
	r.open(r.join("n1"))
	r.open(r.join("n2"))
	r.scan()
	r.after(10 * time.Minute)
	if got := r.scan().Remove; len(got) != 1 {
		t.Errorf("removed %q", got)
	}
}

func TestAScanChangesNothingThatItIsGiven(t *testing.T) {
	r := newRig(t, group("h100", func(g *Group) { g.Target = 1; g.Failed = 1 }))
	r.open(r.join("n1"))
	before := r.memory
	for range 2 {
		if _, err := Scan(t.Context(), r.options, r.state, before); err != nil {
			t.Fatal(err)
		}
	}
	if len(before.Backoffs)+len(before.Templates)+len(before.Unneeded) > 0 {
		t.Errorf("the memory has become %+v", before)
	}
}
