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
	"k8s.io/utils/ptr"
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

// ender records the instances to end. look is called at each.
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
	daemon.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "DaemonSet", Name: "d", UID: "d", Controller: ptr.To(true)}}
	late := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "u", Name: "late"}, Spec: corev1.PodSpec{NodeName: "n"}}
	elsewhere := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "u", Name: "elsewhere"}, Spec: corev1.PodSpec{NodeName: "m"}}
	nominated := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "u", Name: "nominated", UID: "nominated"}, Status: corev1.PodStatus{NominatedNodeName: "n"}}
	outdated := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "u", Name: "outdated", UID: "outdated"}, Status: corev1.PodStatus{NominatedNodeName: "n"}}
	for name, test := range map[string]struct {
		decided, now *corev1.Node
		pods         []client.Object
		answer, err  error
		ended        int
		want         view.Step
	}{
		"recorded first":               {cordoned(), cordoned(), []client.Object{daemon, elsewhere}, nil, nil, 1, view.StepEnding},
		"again":                        {ending(), ending(), nil, nil, nil, 1, view.StepEnding},
		"with a pod":                   {cordoned(), cordoned(), []client.Object{daemon, late}, nil, nil, 0, ""},
		"again, with a pod":            {ending(), ending(), []client.Object{daemon, late}, nil, nil, 0, ""},
		"with a nominated pod":         {cordoned(), cordoned(), []client.Object{outdated, nominated}, nil, nil, 0, ""},
		"with an outdated nomination":  {cordoned(), cordoned(), []client.Object{outdated}, nil, nil, 1, view.StepEnding},
		"AWS does not answer":          {cordoned(), cordoned(), nil, errTimeout, errTimeout, 1, view.StepEnding},
		"AWS refuses":                  {cordoned(), cordoned(), nil, ErrRefused, ErrRefused, 1, view.StepEmpty},
		"AWS refuses the second time":  {ending(), ending(), nil, ErrRefused, ErrRefused, 1, view.StepEmpty},
		"it was detached":              {cordoned(), cordoned(), nil, ErrNotInGroup, ErrNotInGroup, 1, view.StepEmpty},
		"it left the group meanwhile":  {ending(), ending(), nil, ErrNotInGroup, nil, 1, view.StepEnding},
		"another client has unmarked":  {cordoned(), markedNode(""), nil, nil, nil, 0, ""},
		"uncordoned":                   {cordoned(), uncordoned(cordoned()), nil, nil, nil, 0, ""},
		"uncordoned after AWS's reply": {ending(), uncordoned(ending()), nil, nil, nil, 0, ""},
	} {
		t.Run(name, func(t *testing.T) {
			c := apiWith(t, interceptor.Funcs{}, append(test.pods, test.now)...)
			aws := &ender{err: test.answer}
			aws.look = func() {
				if step := view.MarkOf(readNode(t, c)).Step; step != view.StepEnding {
					t.Errorf("when AWS is called, the node is %q", step)
				}
			}
			e := &Executor{Client: c, Live: liveReader{c}, Nodegroups: aws}
			result := &Result{Actions: []Action{endNode{Group: eksGroup("p5", "p5"), Node: test.decided, Instance: "i-1", Now: epoch.Add(time.Hour), Outdated: map[types.UID]bool{"outdated": true}}}, Status: map[string]GroupStatus{}}
			if err := e.Do(t.Context(), result); !errors.Is(err, test.err) {
				t.Errorf("error %v, want %v", err, test.err)
			}
			node := readNode(t, c)
			if mark := view.MarkOf(node); len(aws.ended) != test.ended || mark.Step != test.want || node.Spec.Unschedulable != mark.Cordons() {
				t.Errorf("ended %v, and the node is %v, cordoned: %t; want %d, and %q", aws.ended, mark, node.Spec.Unschedulable, test.ended, test.want)
			}
			if problem := result.Status["p5"].ScaleIn.Problem; (problem != "") != (test.err != nil) || test.err != nil && !strings.Contains(problem, "node n has been empty for long and does not end: ") {
				t.Errorf("the problem is %q", problem)
			}
		})
	}
}

var errTimeout = errors.New("timeout")

func cordoned() *corev1.Node { return markedNode(view.StepCordoned) }

func ending() *corev1.Node { return markedNode(view.StepEnding) }

// uncordoned is a node that an administrator has uncordoned.
func uncordoned(node *corev1.Node) *corev1.Node {
	node.Spec.Unschedulable = false
	return node
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
