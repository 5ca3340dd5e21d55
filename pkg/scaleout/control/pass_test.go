package control

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mica-gpu/mica/api/v1alpha1"
)

// expectServed checks that each pod has a node, and that no placeholder or demand is left.
func expectServed(t *testing.T, w *world, pods, nodes int) {
	t.Helper()
	if got := w.placed(); got != pods {
		t.Errorf("%d pods have a node, want %d", got, pods)
	}
	if got := w.nodes(); got != nodes {
		t.Errorf("there are %d nodes, want %d", got, nodes)
	}
	if got := w.placeholders(); got != 0 {
		t.Errorf("%d placeholders are left", got)
	}
	if got := w.status("g6"); len(got.InFlight) != 0 || got.Demand != 0 || got.Starting != 0 {
		t.Errorf("the status is left with %d in flight, %d demanded and %d starting", len(got.InFlight), got.Demand, got.Starting)
	}
}

func TestAControllerThatIsKilledAtAnyWriteGoesOn(t *testing.T) {
	story := func(t *testing.T, dieAt int, after bool) int {
		w := newWorld(t, append(oneGPU(5), group("g6"))...)
		w.dieAt, w.dieAfter = dieAt, after
		w.run(6 * time.Minute)
		expectServed(t, w, 5, 2)
		return w.writes
	}
	writes := story(t, 0, false)
	if writes < 10 {
		t.Fatalf("the story has %d writes only", writes)
	}
	every := 1
	if testing.Short() {
		every = 4
	}
	for dieAt := 1; dieAt <= writes; dieAt += every {
		for _, after := range []bool{false, true} {
			t.Run(fmt.Sprintf("write %d, done %v", dieAt, after), func(t *testing.T) { story(t, dieAt, after) })
		}
	}
}

func TestAPassWithoutChangesWritesNothing(t *testing.T) {
	w := newWorld(t, append(oneGPU(5), group("g6"))...)
	w.run(4 * time.Minute)
	before := w.writes
	w.pass()
	w.restart()
	w.pass()
	if w.writes != before {
		t.Errorf("two passes without a change have written %d times", w.writes-before)
	}
}

func TestAChangeHasOneEvent(t *testing.T) {
	w := newWorld(t, append(oneGPU(5), group("g6"), group("twin", func(g *v1alpha1.GPUNodeGroup) {
		g.Spec.Provider.EKS.Nodegroup = "other"
		g.Spec.InstanceType = "x9.large"
	}))...)
	w.run(4 * time.Minute)
	all := w.events()
	w.expectEvents(all, 1, "Normal ScaleUpBegun", "")
	w.expectEvents(all, 1, "Warning UnknownTemplate", "")
	w.expectCondition("twin", v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonUnknownTemplate)
}

func TestANodeThatIsNotAsPredictedEndsTheScaleUp(t *testing.T) {
	w := newWorld(t, append(oneGPU(8), group("g6"))...)
	w.publishes = "g6.xlarge" // of one GPU
	w.run(15 * time.Minute)
	w.expectCondition("g6", v1alpha1.ConditionTemplateValid, metav1.ConditionFalse, v1alpha1.ReasonLiveNodeDiffers)
	if status := w.status("g6"); status.Template.Source != v1alpha1.SourceLiveNode || status.Template.Devices[0].Count != 1 {
		t.Errorf("the template is %+v, want that of the live nodes", status.Template)
	}
}

func TestHeadroomIsReported(t *testing.T) {
	headroom := func(name string, change func(*v1alpha1.GPUHeadroomSpec)) *v1alpha1.GPUHeadroom {
		h := &v1alpha1.GPUHeadroom{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec:       v1alpha1.GPUHeadroomSpec{DeviceClassName: driverName, Devices: 2},
		}
		change(&h.Spec)
		return h
	}
	w := newWorld(t, append(oneGPU(1), group("g6"),
		headroom("kept", func(*v1alpha1.GPUHeadroomSpec) {}),
		headroom("invalid", func(spec *v1alpha1.GPUHeadroomSpec) { spec.Selectors = []v1alpha1.Selector{"device.nonsense("} }),
		headroom("nowhere", func(spec *v1alpha1.GPUHeadroomSpec) { spec.NodeGroups = []string{"gone"} }),
	)...)
	w.run(4 * time.Minute)
	for name, reason := range map[string]string{
		"kept": v1alpha1.ReasonKept, "invalid": v1alpha1.ReasonInvalid, "nowhere": v1alpha1.ReasonInvalid,
	} {
		h := get(w, &v1alpha1.GPUHeadroom{}, "", name)
		if len(h.Status.Conditions) != 1 || h.Status.Conditions[0].Reason != reason {
			t.Errorf("the status of %s is %+v, want %s", name, h.Status, reason)
		}
	}
	protected := 0
	for _, node := range all(w, &corev1.NodeList{}).Items {
		if node.Annotations[v1alpha1.AnnotationProtected] != "" {
			protected++
		}
	}
	if protected != 1 {
		t.Errorf("%d nodes are protected, want the one that has the devices", protected)
	}
}

// One pod has no claims, because of a quota, and the other no scheduler. A node for them would stay empty, be removed, and
// be asked for again.
func TestNoNodeIsAskedForPodsThatCannotUseIt(t *testing.T) {
	pods := oneGPU(2)
	w := newWorld(t, pods[0], group("g6"))
	refused, ignored := pods[1].(*corev1.Pod), pods[2].(*corev1.Pod)
	ignored.Spec.SchedulerName = "none"
	w.create(refused)
	w.create(ignored)
	w.try(ignored)
	ignored.Status.Conditions = nil
	w.updateStatus(ignored)
	w.run(5 * time.Minute)
	if n := w.nodes() + w.placeholders(); n > 0 {
		t.Errorf("%d nodes were asked for", n)
	}
	all := w.events()
	w.expectEvents(all, 1, "Warning GPUScaleUpHeld", `its claim "gpu" is not made`)
	w.expectEvents(all, 1, "Warning GPUScaleUpHeld", `scheduler "none" has not tried`)
}

// A device plugin has the GPUs of the group's node. Another node would be no better.
func TestAGroupWhoseNodesWithholdTheirGPUsIsLeftAlone(t *testing.T) {
	w := newWorld(t, append(oneGPU(1), group("g6"))...)
	w.withhold = "a device plugin gives out this node's GPUs"
	w.run(4 * time.Minute)
	if got := w.nodes(); got != 1 {
		t.Fatalf("the group has %d nodes, want the one that was tried", got)
	}
	w.expectCondition("g6", v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonWithheld)
	w.expectCondition("g6", v1alpha1.ConditionInBackoff, metav1.ConditionTrue, v1alpha1.ReasonNodeIncomplete)
	conditions := all(w, &corev1.PodList{}).Items[0].Status.Conditions
	if !slices.ContainsFunc(conditions, func(c corev1.PodCondition) bool {
		return c.Reason == "GPUScaleUpBlocked" && strings.Contains(c.Message, w.withhold)
	}) {
		t.Errorf("the pod has the conditions %+v, want why nodes offer nothing", conditions)
	}
	w.end(&all(w, &corev1.NodeList{}).Items[0])
	w.run(time.Minute)
	if got := w.nodes(); got != 0 {
		t.Errorf("another node was asked for at once: the group has %d", got)
	}
}
