package view

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mica-gpu/mica/api/v1alpha1"
	"github.com/mica-gpu/mica/pkg/scaleout/template"
)

// ours is a node with a mark of ours, and the cordon that goes with it.
func ours(name string, step Step) *corev1.Node {
	node := testNode(name, time.Hour, pool("g"))
	node.Annotations = map[string]string{v1alpha1.AnnotationScaleIn: Mark{Step: step, Since: t0}.String()}
	if MarkOf(node).Cordons() {
		node.Spec.Unschedulable = true
		node.Spec.Taints = []corev1.Taint{{Key: "kept"}, {Key: corev1.TaintNodeUnschedulable}}
	}
	return node
}

func TestMarksAreRead(t *testing.T) {
	for _, step := range []Step{StepEmpty, StepCordoned, StepEnding} {
		if got, want := MarkOf(ours("n", step)), (Mark{Step: step, Since: t0}); got != want {
			t.Errorf("a mark is read as %v, want %v", got, want)
		}
	}
	for _, text := range []string{"", "ending", "ending soon", "gone 2026-03-01T12:00:00Z"} {
		node := testNode("n", 0, nil)
		node.Annotations = map[string]string{v1alpha1.AnnotationScaleIn: text}
		if got := MarkOf(node); got != (Mark{}) {
			t.Errorf("%q is read as %v", text, got)
		}
	}
}

// What is cordoned until it ends has room for who needs it, and what ends has none.
func TestWhatEndsIsNoCapacity(t *testing.T) {
	dying := testNode("dying", time.Hour, pool("g"))
	dying.DeletionTimestamp = &metav1.Time{Time: t0}
	cordoned := ours("cordoned", StepCordoned)
	all := &objects{}
	for _, node := range []*corev1.Node{dying, ours("empty", StepEmpty), cordoned, ours("ending", StepEnding)} {
		all.nodes.Items = append(all.nodes.Items, *node)
	}
	got := map[string]*corev1.Node{}
	for _, node := range newReading(all, Options{Driver: testDriver, Now: t0, Memo: NewMemo()}).view().Nodes {
		got[node.Object.Name] = node.Object
	}
	if len(got) != 2 || got["empty"] == nil || got["cordoned"] == nil {
		t.Fatalf("planned with are %v, want empty and cordoned", got)
	}
	if spec := got["cordoned"].Spec; spec.Unschedulable || len(spec.Taints) != 1 || spec.Taints[0].Key != "kept" {
		t.Errorf("the cordoned node is planned with as %+v", spec)
	}
	if !all.nodes.Items[2].Spec.Unschedulable {
		t.Error("the cached node has changed")
	}
}

func TestSizesCountWhatStaysAndWhatAWSWants(t *testing.T) {
	dying := testNode("dying", time.Hour, pool("g"))
	dying.DeletionTimestamp = &metav1.Time{Time: t0}
	drained := testNode("drained", time.Hour, pool("g"))
	drained.Spec.Taints = []corev1.Taint{{Key: template.TaintToBeDeleted}}
	stays := testNode("stays", time.Hour, pool("g"))
	for name, test := range map[string]struct {
		nodes                 []*corev1.Node
		coming, desired, want int
	}{
		"none":                            {nil, 0, 0, 0},
		"one that stays":                  {[]*corev1.Node{stays}, 0, 1, 1},
		"beside one that is deleted":      {[]*corev1.Node{stays, dying}, 1, 2, 2},
		"one that ends, still wanted":     {[]*corev1.Node{drained}, 0, 1, 1},
		"one that ends, wanted no more":   {[]*corev1.Node{drained}, 0, 0, 0},
		"one that we end, still wanted":   {[]*corev1.Node{ours("n", StepEnding)}, 0, 1, 1},
		"one that we end, wanted no more": {[]*corev1.Node{ours("n", StepEnding)}, 1, 1, 1},
		"a cordoned one":                  {[]*corev1.Node{ours("n", StepCordoned)}, 0, 1, 1},
	} {
		t.Run(name, func(t *testing.T) {
			group := Group{}
			for _, node := range test.nodes {
				group.Nodes = append(group.Nodes, NodeState{Object: node})
			}
			if got := group.SizeWith(test.coming, test.desired); got != test.want {
				t.Errorf("the size is %d, want %d", got, test.want)
			}
		})
	}
}

// The planner is told of the room that AWS gives: a group of one may replace a node that dies.
func TestADyingNodeIsNotCountedForTheMaximum(t *testing.T) {
	group := paired(v1alpha1.PairingDirect)
	dying := testNode("dying", time.Hour, group.Spec.Provider.Selector())
	dying.DeletionTimestamp = &metav1.Time{Time: t0}
	all := &objects{}
	all.groups.Items = append(all.groups.Items, *group)
	all.nodes.Items = append(all.nodes.Items, *dying)
	r := newReading(all, Options{Driver: testDriver, Now: t0, Memo: NewMemo()})
	r.eks = map[string]Nodegroup{"g": {Max: 1}}
	if planned := r.view().Groups[0]; planned.Size != 0 || *planned.Max != 1 {
		t.Errorf("the group has %d of %d nodes, want 0 of 1", planned.Size, *planned.Max)
	}
}
