package pair

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/mica-gpu/mica/api/v1alpha1"
	"github.com/mica-gpu/mica/pkg/scaleout/view"
)

func markedNode(step view.Step) *corev1.Node {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "one"}}
	if step != "" {
		node.Annotations = map[string]string{v1alpha1.AnnotationScaleIn: view.Mark{Step: step, Since: epoch}.String()}
		node.Spec.Unschedulable = view.MarkOf(node).Cordons()
	}
	return node
}

func readNode(t *testing.T, c client.Client) *corev1.Node {
	t.Helper()
	var node corev1.Node
	if err := c.Get(t.Context(), types.NamespacedName{Name: "n"}, &node); err != nil {
		t.Fatal(err)
	}
	return &node
}

func TestANodeIsMarkedStepByStep(t *testing.T) {
	c := apiWith(t, interceptor.Funcs{}, markedNode(""))
	for _, step := range []view.Step{view.StepEmpty, view.StepCordoned, view.StepEmpty, view.StepCordoned, ""} {
		mark := view.Mark{Step: step, Since: epoch}
		if step == "" {
			mark = view.Mark{}
		}
		if err := do(t, c, markNode{Node: readNode(t, c), Mark: mark}); err != nil {
			t.Fatal(err)
		}
		if node := readNode(t, c); view.MarkOf(node) != mark || node.Spec.Unschedulable != mark.Cordons() {
			t.Errorf("the node is marked %v, and cordoned: %t; want %v", view.MarkOf(node), node.Spec.Unschedulable, mark)
		}
	}
	if err := do(t, c, markNode{Node: &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "gone"}}}); err != nil {
		t.Error(err)
	}
}

func TestWhatHasChangedSinceIsNotMarked(t *testing.T) {
	for name, change := range map[string]func(*corev1.Node){
		"another node of its name": func(n *corev1.Node) { n.UID = "two" },
		"another mark":             func(n *corev1.Node) { n.Annotations = markedNode(view.StepCordoned).Annotations },
		"another client's cordon":  func(n *corev1.Node) { n.Spec.Unschedulable = true },
	} {
		t.Run(name, func(t *testing.T) {
			node := markedNode(view.StepEmpty)
			change(node)
			c := apiWith(t, interceptor.Funcs{}, node)
			before := readNode(t, c)
			if err := do(t, c, markNode{Node: markedNode(view.StepEmpty), Mark: view.Mark{Step: view.StepCordoned, Since: epoch}}); err != nil {
				t.Fatal(err)
			}
			if after := readNode(t, c); after.ResourceVersion != before.ResourceVersion {
				t.Errorf("the node is now %+v", after)
			}
		})
	}
}

// ender notes what is ended, and what the node looked like then.
type ender struct {
	fakeEKS
	ended []string
	look  func()
	err   error
}

func (e *ender) End(_ context.Context, _ *v1alpha1.GPUNodeGroup, instance string) error {
	e.ended = append(e.ended, instance)
	e.look()
	return e.err
}

func TestANodeEnds(t *testing.T) {
	daemon := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "d", Name: "d"}, Spec: corev1.PodSpec{NodeName: "n"}}
	yes := true
	daemon.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "DaemonSet", Name: "d", UID: "d", Controller: &yes}}
	late := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "u", Name: "late"}, Spec: corev1.PodSpec{NodeName: "n"}}
	elsewhere := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "u", Name: "elsewhere"}, Spec: corev1.PodSpec{NodeName: "m"}}
	nominated := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "u", Name: "nominated", UID: "nominated"}, Status: corev1.PodStatus{NominatedNodeName: "n"}}
	outdated := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "u", Name: "outdated", UID: "outdated"}, Status: corev1.PodStatus{NominatedNodeName: "n"}}
	for name, test := range map[string]struct {
		step  view.Step
		pods  []client.Object
		fails error
		ended int
		want  view.Step
	}{
		"once it is recorded":          {view.StepCordoned, []client.Object{daemon, elsewhere}, nil, 1, view.StepEnding},
		"again":                        {view.StepEnding, nil, nil, 1, view.StepEnding},
		"not with a pod":               {view.StepCordoned, []client.Object{daemon, late}, nil, 0, ""},
		"not with a nominated pod":     {view.StepCordoned, []client.Object{outdated, nominated}, nil, 0, ""},
		"nominated for too long":       {view.StepCordoned, []client.Object{outdated}, nil, 1, view.StepEnding},
		"AWS does not answer":          {view.StepCordoned, nil, errors.New("timeout"), 1, view.StepEnding},
		"AWS refuses":                  {view.StepCordoned, nil, ErrRefused, 1, view.StepEmpty},
		"AWS refuses the next time":    {view.StepEnding, nil, ErrRefused, 1, view.StepEmpty},
		"not again with a pod":         {view.StepEnding, []client.Object{daemon, late}, nil, 0, ""},
		"it was detached":              {view.StepCordoned, nil, ErrNotInGroup, 1, view.StepEmpty},
		"uncordoned by another client": {"", nil, nil, 0, ""},
	} {
		t.Run(name, func(t *testing.T) {
			c := apiWith(t, interceptor.Funcs{}, append(test.pods, markedNode(test.step))...)
			aws := &ender{err: test.fails}
			aws.look = func() {
				if step := view.MarkOf(readNode(t, c)).Step; step != view.StepEnding {
					t.Errorf("when AWS is called, the node is %q", step)
				}
			}
			seen := markedNode(test.step)
			if test.step == "" {
				seen = markedNode(view.StepCordoned)
			}
			e := &Executor{Client: c, Live: liveReader{c}, Nodegroups: aws}
			result := &Result{Actions: []Action{endNode{Group: eksGroup("p5", "p5"), Node: seen, Instance: "i-1", Now: epoch.Add(time.Hour), Outdated: map[types.UID]bool{"outdated": true}}}, Status: map[string]GroupStatus{}}
			if err := e.Do(t.Context(), result); !errors.Is(err, test.fails) {
				t.Errorf("error %v", err)
			}
			node := readNode(t, c)
			if mark := view.MarkOf(node); len(aws.ended) != test.ended || mark.Step != test.want || node.Spec.Unschedulable != mark.Cordons() {
				t.Errorf("ended %v, and the node is %v, cordoned: %t; want %d, and %q", aws.ended, mark, node.Spec.Unschedulable, test.ended, test.want)
			}
			if problem := result.Status["p5"].ScaleIn.Problem; (problem != "") != (test.fails != nil) || test.fails != nil && !strings.Contains(problem, "node n has been empty for long and does not end: ") {
				t.Errorf("told is %q", problem)
			}
		})
	}
}

// An administrator may uncordon a node that AWS was asked to end, and the machine may end before its Node.
func TestANodeThatEndsIsLookedAtAgain(t *testing.T) {
	for name, test := range map[string]struct {
		step       view.Step
		uncordoned bool
		fails      error
		ended      int
		want       view.Step
	}{
		"uncordoned":            {view.StepEnding, true, nil, 0, ""},
		"uncordoned before":     {view.StepCordoned, true, nil, 0, ""},
		"it has left the group": {view.StepEnding, false, ErrNotInGroup, 1, view.StepEnding},
	} {
		t.Run(name, func(t *testing.T) {
			node := markedNode(test.step)
			node.Spec.Unschedulable = !test.uncordoned
			c := apiWith(t, interceptor.Funcs{}, node)
			aws := &ender{err: test.fails, look: func() {}}
			e := &Executor{Client: c, Live: liveReader{c}, Nodegroups: aws}
			result := &Result{Actions: []Action{endNode{Group: eksGroup("p5", "p5"), Node: markedNode(test.step), Instance: "i-1", Now: epoch.Add(time.Hour)}}, Status: map[string]GroupStatus{}}
			if err := e.Do(t.Context(), result); err != nil {
				t.Errorf("error %v", err)
			}
			node = readNode(t, c)
			if mark := view.MarkOf(node); len(aws.ended) != test.ended || mark.Step != test.want || node.Spec.Unschedulable != mark.Cordons() {
				t.Errorf("ended %v, and the node is %v, cordoned: %t; want %d, and %q", aws.ended, mark, node.Spec.Unschedulable, test.ended, test.want)
			}
			if problem := result.Status["p5"].ScaleIn.Problem; problem != "" {
				t.Errorf("told is %q", problem)
			}
		})
	}
}

// liveReader lists the pods of a node as the API server does: the fake client has no such selector.
type liveReader struct{ client.Reader }

func (r liveReader) List(ctx context.Context, list client.ObjectList, options ...client.ListOption) error {
	wanted := (&client.ListOptions{}).ApplyOptions(options).FieldSelector
	if err := r.Reader.List(ctx, list); err != nil {
		return err
	}
	pods := list.(*corev1.PodList)
	kept := pods.Items[:0]
	for _, pod := range pods.Items {
		if wanted.Matches(podFields{&pod}) {
			kept = append(kept, pod)
		}
	}
	pods.Items = kept
	return nil
}

type podFields struct{ *corev1.Pod }

func (p podFields) Has(field string) bool { return p.Get(field) != "" }

func (p podFields) Get(field string) string {
	switch field {
	case "spec.nodeName":
		return p.Spec.NodeName
	case "status.nominatedNodeName":
		return p.Status.NominatedNodeName
	}
	return ""
}
