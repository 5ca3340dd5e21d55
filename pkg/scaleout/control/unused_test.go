package control

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/mica-gpu/mica/api/v1alpha1"
	"github.com/mica-gpu/mica/pkg/scaleout/autoscaler"
	"github.com/mica-gpu/mica/pkg/scaleout/view"
)

const unbound = "0/1 nodes are available: pod has unbound immediate PersistentVolumeClaims"

// A node does not help a pod with an unbound volume. Without a backoff, empty nodes would be ended and bought again: 19 in
// six hours.
func TestAPodThatNoNodeHelpsHasOneAndThenHoursOfBackoff(t *testing.T) {
	const days = 3 * 24 * time.Hour
	for name, begin := range map[string]func(*testing.T, ...client.Object) (w *world, others func()){
		"placeholder": beginPlaceholder,
		"direct":      beginDirect,
	} {
		t.Run(name, func(t *testing.T) {
			w, others := begin(t, oneGPU(1)...)
			pod := w.cannotBind()
			unused := testutil.ToFloat64(nodesCame.WithLabelValues(name, "unused"))
			bought := w.boughtWithin(days, others)
			if len(bought) != 7 {
				t.Fatalf("in three days, nodes were bought after %v, want 7", bought)
			}
			if wait := bought[1] - bought[0]; wait < time.Hour {
				t.Errorf("the second node was bought %s after the first, want an hour at least", wait)
			}
			for i := 2; i < len(bought); i++ {
				if wait := bought[i] - bought[i-1]; wait < min(bought[i-1], 24*time.Hour) {
					t.Errorf("node %d was bought %s after the one before, at %s: the wait has not doubled", i+1, wait, bought[i])
				}
			}
			if n := w.nodes() + w.placeholders(); n != 0 {
				t.Errorf("at the end there are %d nodes and placeholders", n)
			}
			w.expectUnused(pod)
			if got := testutil.ToFloat64(nodesCame.WithLabelValues(name, "unused")) - unused; int(got) != len(bought) {
				t.Errorf("%v nodes of the group are counted as unused, want all %d", got, len(bought))
			}
		})
	}
}

// beginPlaceholder has a Cluster Autoscaler that ends nodes which are unused for ten minutes.
func beginPlaceholder(t *testing.T, pods ...client.Object) (*world, func()) {
	w := newWorld(t, append(pods, group("placeholder"))...)
	return w, func() {
		w.autoscale()
		for _, node := range all(w, &corev1.NodeList{}).Items {
			if w.clock.Since(node.CreationTimestamp.Time) > 11*time.Minute && node.Annotations[v1alpha1.AnnotationScaleDownDisabled] == "" {
				w.end(&node)
			}
		}
	}
}

// beginDirect has an EKS that succeeds at once, and no Cluster Autoscaler.
func beginDirect(t *testing.T, pods ...client.Object) (*world, func()) {
	w := newWorld(t, append(pods, group("direct", byEKS))...)
	if err := w.client.Delete(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: autoscaler.Namespace, Name: autoscaler.StatusName}}); err != nil {
		t.Fatal(err)
	}
	eks := &nodegroups{Nodegroup: view.Nodegroup{Max: 5, Status: "ACTIVE"}}
	w.loop.Nodegroups, w.loop.executor.Nodegroups = eks, eks
	made := 0
	return w, func() {
		for _, node := range all(w, &corev1.NodeList{}).Items {
			if view.MarkOf(&node).Step == view.StepEnding {
				w.end(&node)
			}
		}
		for w.nodes() < eks.Desired {
			made++
			name := fmt.Sprintf("made-%d", made)
			w.addNode(name, map[string]string{v1alpha1.LabelEKSNodegroup: "direct"})
			node := w.node(name)
			node.Spec.ProviderID = "aws:///us-east-1a/i-" + name
			w.update(node)
		}
	}
}

// cannotBind gives the one pod a scheduler's message about an unbound volume.
func (w *world) cannotBind() types.NamespacedName {
	pod := &all(w, &corev1.PodList{}).Items[0]
	for i := range pod.Status.Conditions {
		pod.Status.Conditions[i].Message = unbound
	}
	w.updateStatus(pod)
	return client.ObjectKeyFromObject(pod)
}

// boughtWithin are the times at which nodes came, at most twenty. Steps are longer while nothing happens.
func (w *world) boughtWithin(d time.Duration, others func()) []time.Duration {
	var bought []time.Duration
	begun, known := w.clock.Now(), map[types.UID]bool{}
	for w.clock.Since(begun) < d && len(bought) < 20 {
		others()
		w.startNodes()
		w.pass()
		step := 10 * time.Minute
		for _, node := range all(w, &corev1.NodeList{}).Items {
			step = time.Minute
			if !known[node.UID] {
				known[node.UID] = true
				bought = append(bought, w.clock.Since(begun))
			}
		}
		if w.placeholders() > 0 || len(all(w, &v1alpha1.GPUNodeGroupList{}).Items[0].Status.InFlight) > 0 {
			step = time.Minute
		}
		w.clock.Step(step)
	}
	return bought
}

// expectUnused checks the conditions of the pod and its group.
func (w *world) expectUnused(pod types.NamespacedName) {
	w.t.Helper()
	conditions := get(w, &corev1.Pod{}, pod.Namespace, pod.Name).Status.Conditions
	if !slices.ContainsFunc(conditions, func(c corev1.PodCondition) bool {
		return c.Type == v1alpha1.ConditionScaleUp && c.Status == corev1.ConditionFalse &&
			c.Reason == v1alpha1.ReasonNodeUnused && strings.Contains(c.Message, unbound)
	}) {
		w.t.Errorf("the pod has the conditions %+v, want that nodes stay unused because of its volume", conditions)
	}
	group := all(w, &v1alpha1.GPUNodeGroupList{}).Items[0]
	w.expectCondition(group.Name, v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady)
	w.expectCondition(group.Name, v1alpha1.ConditionInBackoff, metav1.ConditionFalse, v1alpha1.ReasonNoBackoff)
}

func TestAGroupReportsUnusedNodes(t *testing.T) {
	w := newWorld(t, append(oneGPU(1), group("g6"))...)
	expect := func(when string, want int32) {
		t.Helper()
		if got := all(w, &v1alpha1.GPUNodeGroupList{}).Items[0].Status; got.Nodes != 1 || got.Unused != want {
			t.Errorf("%s: %d of %d nodes are unused, want %d of 1", when, got.Unused, got.Nodes, want)
		}
	}
	for range 48 { // quarters of a minute
		if w.clock.Step(15 * time.Second); w.nodes() == 0 {
			w.autoscale()
		}
		w.startNodes()
		w.pass()
	}
	expect("no claim takes it", 1)
	w.schedule()
	w.pass()
	expect("a pod is there", 0)
}
