package ready

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/mica-gpu/mica/api/v1alpha1"
	"github.com/mica-gpu/mica/pkg/excerpt"
	"github.com/mica-gpu/mica/pkg/scaleout"
	"github.com/mica-gpu/mica/pkg/scaleout/view"
)

const driver = "gpu.example.com"

var (
	created = time.Date(2026, 11, 22, 1, 0, 0, 0, time.UTC)
	startup = corev1.Taint{Key: v1alpha1.TaintStartup, Value: "wait", Effect: corev1.TaintEffectNoSchedule}
	lasting = corev1.Taint{Key: "gpu", Effect: corev1.TaintEffectNoSchedule, TimeAdded: ptr.To(metav1.NewTime(created))}
	evicts  = corev1.Taint{Key: v1alpha1.TaintStartup, Effect: corev1.TaintEffectNoExecute}
)

func nodeWith(name string, taints ...corev1.Taint) *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name), CreationTimestamp: metav1.NewTime(created)},
		Spec:       corev1.NodeSpec{Taints: taints},
		Status:     corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}},
	}
}

// viewOf is a cluster whose group "group" has one node.
func viewOf(node *corev1.Node, ready bool, missing ...string) *view.View {
	group := &v1alpha1.GPUNodeGroup{ObjectMeta: metav1.ObjectMeta{Name: "group"}}
	group.Spec.ProvisionTimeout.Duration = 10 * time.Minute
	return &view.View{
		Snapshot:    scaleout.Snapshot{Nodes: []scaleout.Node{{Object: node, Group: "group"}}},
		GroupStates: []view.Group{{Object: group, Nodes: []view.NodeState{{Object: node, Ready: ready, Missing: missing}}}},
	}
}

// diary keeps Events as "NODE TYPE REASON: TEXT".
type diary []string

func (d *diary) Eventf(object, _ runtime.Object, eventtype, reason, _, note string, args ...any) {
	*d = append(*d, object.(*corev1.Node).Name+" "+eventtype+" "+reason+": "+fmt.Sprintf(note, args...))
}

type rig struct {
	*Gate
	events *diary
}

func newRig(funcs interceptor.Funcs, nodes ...*corev1.Node) rig {
	if funcs.Patch == nil {
		funcs.Patch = asTheAPIServer
	}
	builder := fake.NewClientBuilder().WithScheme(scheme.Scheme).WithInterceptorFuncs(funcs)
	for _, n := range nodes {
		builder = builder.WithObjects(n.DeepCopy())
	}
	events := &diary{}
	return rig{Gate: &Gate{Driver: driver, Client: builder.Build(), Recorder: events}, events: events}
}

// asTheAPIServer gives a JSON patch that does not apply the API server's status (jsonPatcher in k8s.io/apiserver). The fake
// client's error has none.
func asTheAPIServer(ctx context.Context, c client.WithWatch, o client.Object, p client.Patch, options ...client.PatchOption) error {
	err := c.Patch(ctx, o, p, options...)
	if status := apierrors.APIStatus(nil); err == nil || errors.As(err, &status) {
		return err
	}
	return apierrors.NewGenericServerResponse(http.StatusUnprocessableEntity, "", schema.GroupResource{}, "", err.Error(), 0, false)
}

func (r rig) taints(t *testing.T, name string) []corev1.Taint {
	t.Helper()
	var node corev1.Node
	if err := r.Client.Get(t.Context(), types.NamespacedName{Name: name}, &node); err != nil {
		t.Fatal(err)
	}
	return node.Spec.Taints
}

func TestTheTaintGoesWhenTheNodeIsComplete(t *testing.T) {
	for name, test := range map[string]struct {
		taints, want []corev1.Taint
		notReady     bool
		missing      []string
		deleted      bool
	}{
		"complete":                   {taints: []corev1.Taint{lasting, startup}, want: []corev1.Taint{lasting}},
		"the only taint":             {taints: []corev1.Taint{startup}},
		"two of them, others around": {taints: []corev1.Taint{startup, lasting, evicts}, want: []corev1.Taint{lasting}},
		"none":                       {taints: []corev1.Taint{lasting}, want: []corev1.Taint{lasting}},
		"lacks a slice":              {taints: []corev1.Taint{startup}, want: []corev1.Taint{startup}, missing: []string{"a slice"}},
		"not Ready":                  {taints: []corev1.Taint{startup}, want: []corev1.Taint{startup}, notReady: true},
		"being deleted":              {taints: []corev1.Taint{startup}, want: []corev1.Taint{startup}, deleted: true},
	} {
		t.Run(name, func(t *testing.T) {
			node := nodeWith("node", test.taints...)
			r := newRig(interceptor.Funcs{}, node)
			if test.deleted {
				node.DeletionTimestamp = ptr.To(metav1.NewTime(created))
			}
			v := viewOf(node, !test.notReady, test.missing...)
			for range 2 { // the second time, with a view that is outdated
				if _, err := r.Act(t.Context(), v, created.Add(time.Minute)); err != nil {
					t.Fatal(err)
				}
			}
			if diff := cmp.Diff(test.want, r.taints(t, "node")); diff != "" {
				t.Errorf("taints (-want +got):\n%s", diff)
			}
			if len(*r.events) > 0 {
				t.Errorf("it was reported: %q", *r.events)
			}
		})
	}
}

// Another controller has changed the taints since the view was read.
func TestNoOtherTaintIsLost(t *testing.T) {
	other := corev1.Taint{Key: "node.kubernetes.io/unreachable", Effect: corev1.TaintEffectNoExecute}
	seen := nodeWith("node", lasting, startup)
	for name, now := range map[string][]corev1.Taint{
		"one before it":  {other, lasting, startup},
		"one was put in": {lasting, other, startup},
		"one has gone":   {startup},
		"all have gone":  nil,
		"it has changed": {lasting, evicts},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(interceptor.Funcs{}, nodeWith("node", now...))
			if _, err := r.Act(t.Context(), viewOf(seen, true), created); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(now, r.taints(t, "node")); diff != "" {
				t.Errorf("taints (-want +got):\n%s", diff)
			}
			// The next pass sees the new taints.
			again := nodeWith("node", now...)
			if _, err := r.Act(t.Context(), viewOf(again, true), created); err != nil {
				t.Fatal(err)
			}
			for _, taint := range r.taints(t, "node") {
				if isStartup(taint) {
					t.Errorf("it still has %v", taint)
				}
			}
		})
	}
}

func TestFailuresOfTheAPIServer(t *testing.T) {
	resource := schema.GroupResource{Resource: "nodes"}
	for name, test := range map[string]struct {
		failure error
		fails   bool
	}{
		"changed":   {failure: apierrors.NewConflict(resource, "a", errors.New("changed"))},
		"gone":      {failure: apierrors.NewNotFound(resource, "a")},
		"a test":    {failure: apierrors.NewGenericServerResponse(http.StatusUnprocessableEntity, "", schema.GroupResource{}, "", "testing value failed", 0, false)},
		"forbidden": {failure: apierrors.NewForbidden(resource, "a", errors.New("no")), fails: true},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := nodeWith("a", startup), nodeWith("b", startup)
			r := newRig(interceptor.Funcs{
				Patch: func(ctx context.Context, c client.WithWatch, o client.Object, p client.Patch, options ...client.PatchOption) error {
					if o.GetName() == "a" {
						return test.failure
					}
					return c.Patch(ctx, o, p, options...)
				},
			}, a, b)
			v := viewOf(a, true)
			v.GroupStates[0].Nodes = append(v.GroupStates[0].Nodes, view.NodeState{Object: b, Ready: true})
			_, err := r.Act(t.Context(), v, created)
			if (err != nil) != test.fails || test.fails && !strings.Contains(err.Error(), "remove the startup taint of node a") {
				t.Errorf("got %v", err)
			}
			if got := r.taints(t, "b"); len(got) != 0 {
				t.Errorf("the other node kept %v", got)
			}
		})
	}
}

func TestNodesOfNoGroup(t *testing.T) {
	node := nodeWith("node", startup)
	untainted := nodeWith("untainted")
	slice := &resourceapi.ResourceSlice{Spec: resourceapi.ResourceSliceSpec{
		Driver: driver, NodeName: ptr.To("node"), Pool: resourceapi.ResourcePool{Name: "node", ResourceSliceCount: 2},
	}}
	v := &view.View{Snapshot: scaleout.Snapshot{
		Nodes:  []scaleout.Node{{Object: node}, {Object: untainted}},
		Slices: []*resourceapi.ResourceSlice{slice},
	}}
	r := newRig(interceptor.Funcs{}, node)
	look := func(after time.Duration) time.Time {
		t.Helper()
		again, err := r.Act(t.Context(), v, created.Add(after))
		if err != nil {
			t.Fatal(err)
		}
		return again
	}
	if again := look(0); !again.Equal(created.Add(v1alpha1.DefaultProvisionTimeout)) || len(r.taints(t, "node")) != 1 {
		t.Errorf("it is looked at again at %v", again)
	}
	look(v1alpha1.DefaultProvisionTimeout)
	want := "node Warning GPUNodeIncomplete: 30m0s after its creation, the node lacks what removes its startup taint: " +
		"driver gpu.example.com has published 1 of the 2 slices of pool node: see the Events of the node, and the pods that publish its devices; " +
		"the node keeps the taint startup-taint.cluster-autoscaler.kubernetes.io/mica until it is complete"
	if len(*r.events) != 1 || (*r.events)[0] != want {
		t.Errorf("got %q, want %q", *r.events, want)
	}
	v.Nodes[0].Withheld = "offers none of its GPUs: a device plugin has them"
	look(v1alpha1.DefaultProvisionTimeout)
	if len(*r.events) != 2 || !strings.Contains((*r.events)[1], v.Nodes[0].Withheld) {
		t.Errorf("got %q, want why the node offers nothing", *r.events)
	}
	v.Nodes[0].Withheld = ""
	slice.Spec.Pool.ResourceSliceCount = 1
	if again := look(v1alpha1.DefaultProvisionTimeout); !again.IsZero() || len(r.taints(t, "node")) != 0 {
		t.Errorf("it has %v", r.taints(t, "node"))
	}
}

// A node whose kubelet does not report keeps its taint, even if its slices are complete.
func TestANodeThatIsNotKnownToBeReadyIsNotOpened(t *testing.T) {
	slice := &resourceapi.ResourceSlice{Spec: resourceapi.ResourceSliceSpec{
		Driver: driver, NodeName: ptr.To("node"), Pool: resourceapi.ResourcePool{Name: "node", ResourceSliceCount: 1},
	}}
	for status, want := range map[corev1.ConditionStatus]int{"": 1, corev1.ConditionUnknown: 1, corev1.ConditionFalse: 1, corev1.ConditionTrue: 0} {
		node := nodeWith("node", startup)
		node.Status.Conditions[0].Status = status
		if status == "" {
			node.Status.Conditions = nil
		}
		r := newRig(interceptor.Funcs{}, node)
		v := &view.View{Snapshot: scaleout.Snapshot{Nodes: []scaleout.Node{{Object: node}}, Slices: []*resourceapi.ResourceSlice{slice}}}
		if _, err := r.Act(t.Context(), v, created); err != nil {
			t.Fatal(err)
		}
		if got := r.taints(t, "node"); len(got) != want {
			t.Errorf("with Ready %q the node has taints %v, want %d", status, got, want)
		}
	}
}

func TestOverdueNodesAreReportedOnceAChange(t *testing.T) {
	for name, test := range map[string]struct {
		taints []corev1.Taint
		// first is when the node is first looked at.
		first    time.Duration
		reported time.Duration
	}{
		"closed":                       {taints: []corev1.Taint{startup}, reported: 10 * time.Minute},
		"closed, by a new controller":  {taints: []corev1.Taint{startup}, first: time.Hour, reported: time.Hour},
		"never closed":                 {reported: 10 * time.Minute},
		"in use, and publishing again": {first: time.Hour, reported: time.Hour + republishGrace},
	} {
		t.Run(name, func(t *testing.T) {
			node := nodeWith("node", test.taints...)
			r := newRig(interceptor.Funcs{}, node)
			look := func(after time.Duration, ready bool, missing ...string) (time.Time, int) {
				t.Helper()
				again, err := r.Act(t.Context(), viewOf(node, ready, missing...), created.Add(after))
				if err != nil {
					t.Fatal(err)
				}
				return again, len(*r.events)
			}
			if test.first < test.reported {
				if again, n := look(test.first, true, "x"); n != 0 || !again.Equal(created.Add(test.reported)) {
					t.Errorf("at first: %d events, again at %v", n, again)
				}
				if again, n := look(test.reported-time.Second, true, "x"); n != 0 || !again.Equal(created.Add(test.reported)) {
					t.Errorf("a second before: %d events, again at %v", n, again)
				}
			}
			for i, step := range []struct {
				ready   bool
				missing []string
				events  int
			}{
				{true, []string{"x"}, 1}, {true, []string{"x"}, 1}, {true, []string{"y"}, 2}, {false, []string{"y"}, 3}, {false, []string{"y"}, 3},
			} {
				if again, n := look(test.reported+time.Duration(i), step.ready, step.missing...); n != step.events || !again.IsZero() {
					t.Errorf("step %d: %d events, want %d, again at %v", i, n, step.events, again)
				}
			}
			if last := (*r.events)[2]; !strings.Contains(last, "GPUNodeGroup group offer: it is not Ready; y: see") {
				t.Errorf("it says %q", last)
			}
		})
	}
}

// A node is opened without pools that another driver never published. That is reported once, even if the first patch fails.
func TestANodeIsOpenedWithoutWhatIsWaived(t *testing.T) {
	node := nodeWith("node", startup)
	refuses := true
	r := newRig(interceptor.Funcs{Patch: func(ctx context.Context, c client.WithWatch, o client.Object, p client.Patch, options ...client.PatchOption) error {
		if refuses {
			return apierrors.NewInternalError(errors.New("later"))
		}
		return c.Patch(ctx, o, p, options...)
	}}, node)
	v := viewOf(node, true)
	v.GroupStates[0].Nodes[0].Waived = []string{"driver dra.net has published no slice"}
	if _, err := r.Act(t.Context(), v, created.Add(10*time.Minute)); err == nil {
		t.Error("the failure of the patch is lost")
	}
	refuses = false
	if _, err := r.Act(t.Context(), v, created.Add(11*time.Minute)); err != nil {
		t.Fatal(err)
	}
	if left := r.taints(t, "node"); len(left) > 0 {
		t.Errorf("it kept %v", left)
	}
	want := "node Warning GPUNodeIncomplete: 10m0s after its creation, the node lacks what nodes of GPUNodeGroup group offer: " +
		"driver dra.net has published no slice: its startup taint is removed without that; new nodes are expected to be like most of the live ones"
	if len(*r.events) != 1 || (*r.events)[0] != want {
		t.Errorf("got %q, want %q", *r.events, want)
	}
}

// Pods that a node needs before it has GPUs may not tolerate the startup taint. Then node and pods wait for each other.
func TestDaemonSetsThatTheTaintKeepsOffAreNamed(t *testing.T) {
	set := func(namespace, name string, change ...func(*appsv1.DaemonSet)) appsv1.DaemonSet {
		s := appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
		for _, c := range change {
			c(&s)
		}
		return s
	}
	tolerating := func(tolerations ...corev1.Toleration) func(*appsv1.DaemonSet) {
		return func(s *appsv1.DaemonSet) { s.Spec.Template.Spec.Tolerations = tolerations }
	}
	gpus := corev1.Toleration{Key: "gpu", Operator: corev1.TolerationOpExists}
	critical := func(s *appsv1.DaemonSet) { s.Spec.Template.Spec.PriorityClassName = "system-node-critical" }
	owned := func(s *appsv1.DaemonSet) {
		s.OwnerReferences = []metav1.OwnerReference{{Kind: "ClusterPolicy", Name: "cluster-policy", Controller: ptr.To(true)}}
	}
	elsewhere := func(s *appsv1.DaemonSet) { s.Spec.Template.Spec.NodeSelector = map[string]string{"other": "node"} }
	const patch = `kubectl -n gpu patch daemonset nfd --type=json -p '[{"op":"add","path":"/spec/template/spec/tolerations/-","value":{"key":"startup-taint.cluster-autoscaler.kubernetes.io/mica","operator":"Exists"}}]'`
	for name, test := range map[string]struct {
		sets   []appsv1.DaemonSet
		reason string
		want   string
	}{
		"none":                 {reason: v1alpha1.ReasonNodeIncomplete},
		"all that it needs":    {sets: []appsv1.DaemonSet{set("gpu", "nfd", tolerating(corev1.Toleration{Operator: corev1.TolerationOpExists}))}, reason: v1alpha1.ReasonNodeIncomplete},
		"of other nodes":       {sets: []appsv1.DaemonSet{set("gpu", "nfd", tolerating(gpus), elsewhere)}, reason: v1alpha1.ReasonNodeIncomplete},
		"kept off anyway":      {sets: []appsv1.DaemonSet{set("gpu", "nfd")}, reason: v1alpha1.ReasonNodeIncomplete},
		"by the taint":         {[]appsv1.DaemonSet{set("gpu", "nfd", tolerating(gpus))}, v1alpha1.ReasonDaemonSetsKeptOff, "gpu/nfd. If it needs one of them, as for its driver or network, let that tolerate the taint: " + patch},
		"one of an operator":   {[]appsv1.DaemonSet{set("gpu", "driver", tolerating(gpus), owned)}, v1alpha1.ReasonDaemonSetsKeptOff, "to ClusterPolicy cluster-policy, which owns driver"},
		"the critical first":   {[]appsv1.DaemonSet{set("a", "logs", tolerating(gpus)), set("gpu", "nfd", tolerating(gpus), critical)}, v1alpha1.ReasonDaemonSetsKeptOff, "gpu/nfd, a/logs. "},
		"too many to name all": {[]appsv1.DaemonSet{set("a", "1", tolerating(gpus)), set("a", "2", tolerating(gpus)), set("a", "3", tolerating(gpus)), set("a", "4", tolerating(gpus)), set("a", "5", tolerating(gpus)), set("a", "6", tolerating(gpus))}, v1alpha1.ReasonDaemonSetsKeptOff, "a/4, 2 more. "},
	} {
		t.Run(name, func(t *testing.T) {
			notReady := corev1.Taint{Key: corev1.TaintNodeNotReady, Effect: corev1.TaintEffectNoSchedule}
			node := nodeWith("node", corev1.Taint{Key: "gpu", Value: "yes", Effect: corev1.TaintEffectNoSchedule}, startup, notReady)
			r := newRig(interceptor.Funcs{}, node)
			v := viewOf(node, true, "a slice")
			v.Daemons = view.DaemonsOf(test.sets)
			look := func(after time.Duration) time.Time {
				t.Helper()
				again, err := r.Act(t.Context(), v, created.Add(after))
				if err != nil {
					t.Fatal(err)
				}
				return again
			}
			soon := test.reason == v1alpha1.ReasonDaemonSetsKeptOff
			due := 10 * time.Minute
			if soon {
				due = keptOffAfter
			}
			if again := look(due - time.Second); !again.Equal(created.Add(due)) || len(*r.events) > 0 || len(r.Stuck()) > 0 {
				t.Fatalf("before %s: again at %s, stuck %v, Events %q", due, again, r.Stuck(), *r.events)
			}
			look(due)
			stuck := r.Stuck()
			if len(stuck) != 1 || len(*r.events) != 1 || stuck[0].Reason != test.reason || stuck[0].Group != "group" {
				t.Fatalf("after %s: stuck %v, Events %q", due, stuck, *r.events)
			}
			for _, text := range []string{stuck[0].Message, (*r.events)[0]} {
				if !strings.Contains(text, test.want) || !strings.Contains(text, "a slice") || len(text) > excerpt.MaxEvent+100 {
					t.Errorf("it says %q, want %q", text, test.want)
				}
			}
			v.GroupStates[0].Nodes[0].Missing = nil
			look(due + time.Second)
			if left := r.Stuck(); len(left) > 0 {
				t.Errorf("an opened node is stuck: %v", left)
			}
		})
	}
}

func TestReportsFitIntoAnEvent(t *testing.T) {
	node := nodeWith("node", startup)
	r := newRig(interceptor.Funcs{}, node)
	if _, err := r.Act(t.Context(), viewOf(node, true, strings.Repeat("ü", 2000)), created.Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	text := strings.TrimPrefix((*r.events)[0], "node Warning GPUNodeIncomplete: ")
	if len(text) > excerpt.MaxEvent || len(text) < excerpt.MaxEvent-10 || !strings.HasSuffix(text, "until it is complete") || !strings.Contains(text, "…: see") {
		t.Errorf("it has %d bytes: %q", len(text), text)
	}
}
