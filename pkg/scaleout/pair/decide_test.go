package pair

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/google/go-cmp/cmp"

	"github.com/mica-gpu/mica/api/v1alpha1"
	"github.com/mica-gpu/mica/pkg/scaleout"
	"github.com/mica-gpu/mica/pkg/scaleout/autoscaler"
	"github.com/mica-gpu/mica/pkg/scaleout/view"
)

func eksGroup(name, nodegroup string) *v1alpha1.GPUNodeGroup {
	g := &v1alpha1.GPUNodeGroup{ObjectMeta: metav1.ObjectMeta{Name: name}}
	g.Spec.Provider.EKS = &v1alpha1.EKSNodegroup{Nodegroup: nodegroup}
	return g
}

// onePod has a pod that has waited for a minute for a node of group p5.
func onePod() *Situation {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: "ns", Name: "train", UID: "train-uid", CreationTimestamp: metav1.NewTime(epoch.Add(-time.Minute)),
	}}
	name := types.NamespacedName{Namespace: "ns", Name: "train"}
	object := eksGroup("p5", "p5")
	object.Spec.Pairing = v1alpha1.PairingPlaceholder
	return &Situation{
		Now: epoch,
		View: &view.View{
			Snapshot:    scaleout.Snapshot{Pending: []*corev1.Pod{pod}, Groups: []scaleout.Group{{Name: "p5"}}},
			GroupStates: []view.Group{{Object: object}},
		},
		Decision: scaleout.Decision{
			Growth: []scaleout.Growth{{Group: "p5", Nodes: []scaleout.NewNode{{Pods: []types.NamespacedName{name}, Kinds: []string{"k1"}}}}},
			Kinds:  []scaleout.Kind{{ID: "k1", Pods: []scaleout.PodDecision{{Pod: name, UID: "train-uid", Outcome: scaleout.NeedsNode, Group: "p5"}}}},
		},
		Autoscaler:  autoscaler.Status{Updated: epoch},
		Triggers:    map[types.UID]Trigger{},
		Placeholder: PlaceholderOptions{Namespace: "mica", Grace: DefaultGrace},
	}
}

func (s *Situation) said(triggered bool, ago time.Duration) {
	s.Triggers["train-uid"] = Trigger{Pod: types.NamespacedName{Namespace: "ns", Name: "train"}, Triggered: triggered, At: s.Now.Add(-ago)}
}

// secondPod adds a pod for the same node.
func (s *Situation) secondPod() {
	pod := s.View.Pending[0].DeepCopy()
	pod.Name, pod.UID = "second", "second-uid"
	s.View.Pending = append(s.View.Pending, pod)
	node := &s.Decision.Growth[0].Nodes[0]
	node.Pods = append(node.Pods, types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name})
}

// liveNode adds a node that has been complete for some time.
func (s *Situation) liveNode(ready, slices time.Duration) {
	s.View.GroupStates[0].Nodes = append(s.View.GroupStates[0].Nodes, view.NodeState{
		Object: &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "live", CreationTimestamp: metav1.NewTime(s.Now.Add(-time.Hour))}},
		Ready:  true, ReadySince: s.Now.Add(-ready),
		Slices: []*resourceapi.ResourceSlice{{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: metav1.NewTime(s.Now.Add(-slices))}}},
	})
}

// deleteLive deletes the live node.
func (s *Situation) deleteLive() {
	s.View.GroupStates[0].Nodes[0].Object.DeletionTimestamp = &metav1.Time{Time: s.Now}
}

// placeholder adds a placeholder of that age.
func (s *Situation) placeholder(ago time.Duration) *corev1.Pod {
	pod := placeholderOf("p5", placeholderName("p5", len(s.View.Placeholders)))
	pod.CreationTimestamp = metav1.NewTime(s.Now.Add(-ago))
	pod.Annotations = map[string]string{v1alpha1.AnnotationKinds: "k1"}
	s.View.Placeholders = append(s.View.Placeholders, pod)
	return pod
}

// waits makes the pod wait for a coming node.
func (s *Situation) waits() {
	s.Decision.Growth = nil
	s.Decision.Kinds[0].Pods[0].Outcome = scaleout.FitsStarting
}

func summary(r Result) []string {
	var got []string
	for _, a := range r.Actions {
		got = append(got, strings.ReplaceAll(fmt.Sprint(a), placeholderName("p5", 0), "FIRST"))
	}
	return got
}

const creates = "create placeholder FIRST for a node of p5"

func TestWhenAPlaceholderIsCreated(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*Situation)
		want   []string
	}{
		"autoscaler cannot help": {func(s *Situation) { s.said(false, 0) }, []string{creates}},
		"autoscaler has acted":   {func(s *Situation) { s.said(true, 50*time.Second) }, nil},
		"autoscaler has acted for the second of two": {func(s *Situation) {
			s.said(false, 0)
			s.secondPod()
			s.Triggers["second-uid"] = Trigger{Pod: types.NamespacedName{Namespace: "ns", Name: "second"}, Triggered: true, At: s.Now}
		}, nil},
		"autoscaler has acted for the first of two": {func(s *Situation) {
			s.said(true, time.Second)
			s.secondPod()
			s.Triggers["second-uid"] = Trigger{Pod: types.NamespacedName{Namespace: "ns", Name: "second"}, At: s.Now}
		}, nil},
		"autoscaler cannot help one of two": {func(s *Situation) { s.said(false, 0); s.secondPod() }, []string{creates}},
		"of another pod's name": {func(s *Situation) {
			s.said(true, time.Second)
			trigger := s.Triggers["train-uid"]
			trigger.Pod.Namespace = "elsewhere"
			s.Triggers["train-uid"] = trigger
		}, []string{creates}},
		"silent for long":        {func(*Situation) {}, []string{creates}},
		"silent for a moment":    {func(s *Situation) { s.Placeholder.Grace = 2 * time.Minute }, nil},
		"pod is of the future":   {func(s *Situation) { s.View.Pending[0].CreationTimestamp = metav1.NewTime(s.Now.Add(time.Hour)) }, nil},
		"pod is unknown":         {func(s *Situation) { s.View.Pending = nil }, nil},
		"verdict of before":      {func(s *Situation) { s.said(false, 2*time.Minute); s.Placeholder.Grace = 2 * time.Minute }, nil},
		"a live template":        {func(s *Situation) { s.said(false, 2*time.Minute); s.liveNode(time.Hour, 5*time.Minute) }, nil},
		"and silence":            {func(s *Situation) { s.liveNode(time.Hour, 5*time.Minute) }, nil},
		"soon a live template":   {func(s *Situation) { s.said(false, 0); s.liveNode(time.Hour, 30*time.Second) }, nil},
		"template does not help": {func(s *Situation) { s.said(false, 0); s.liveNode(time.Hour, 5*time.Minute) }, []string{creates}},
		"group backs off": {func(s *Situation) {
			s.View.GroupStates[0].Object.Status.Backoff = &v1alpha1.Backoff{Until: metav1.NewTime(s.Now.Add(time.Minute)), Failures: 1, Reason: v1alpha1.ReasonScaleUpFailed}
		}, nil},
		"autoscaler backs off": {func(s *Situation) { s.Autoscaler.Groups = map[string]autoscaler.Group{"p5": {Backoff: true}} }, nil},
		"autoscaler is ahead": {func(s *Situation) {
			s.Autoscaler.Groups = map[string]autoscaler.Group{"p5": {Target: 2}}
			s.View.GroupStates[0].Max = ptr.To(2)
		}, nil},
		"at maximum":          {func(s *Situation) { s.View.GroupStates[0].Max = new(int) }, nil},
		"autoscaler is gone":  {func(s *Situation) { s.Autoscaler.Updated = s.Now.Add(-4 * time.Minute) }, nil},
		"it writes no status": {func(s *Situation) { s.Autoscaler = autoscaler.Status{}; s.said(false, time.Second) }, []string{creates}},
		"observed only":       {func(s *Situation) { s.View.GroupStates[0].Object.Spec.Pairing = v1alpha1.PairingObserve }, nil},
		"labels of another":   {func(s *Situation) { s.View.GroupStates[0].Refused = "it has the labels of p6" }, nil},
		"headroom": {func(s *Situation) {
			s.Decision.Growth[0].Nodes[0] = scaleout.NewNode{Kinds: []string{"headroom/night"}}
			s.liveNode(time.Hour, time.Hour)
		}, []string{creates}},
	} {
		t.Run(name, func(t *testing.T) {
			s := onePod()
			test.change(s)
			if diff := cmp.Diff(test.want, summary(Decide(*s))); diff != "" {
				t.Errorf("- is expected:\n%s", diff)
			}
		})
	}
}

func TestWhenAPlaceholderIsDeleted(t *testing.T) {
	gone := func(why string) []string { return []string{"delete placeholder FIRST: " + why} }
	for name, test := range map[string]struct {
		change func(*Situation)
		want   []string
	}{
		"not while its node comes": {func(s *Situation) { s.placeholder(time.Minute) }, nil},
		"not by a clock set back":  {func(s *Situation) { s.placeholder(-48 * time.Hour) }, nil},
		"not for an older node":    {func(s *Situation) { s.placeholder(time.Minute); s.liveNode(time.Hour, time.Hour) }, nil},
		"not twice": {func(s *Situation) {
			now := metav1.NewTime(s.Now)
			s.placeholder(time.Hour).DeletionTimestamp = &now
		}, nil},
		"it was evicted": {func(s *Situation) { s.placeholder(time.Minute).Status.Phase = corev1.PodFailed }, gone("it has ended (Failed)")},
		"node is complete": {func(s *Situation) { s.placeholder(time.Minute).Spec.NodeName = "live"; s.liveNode(time.Minute, 0) },
			gone("its node live is complete")},
		"node is going": {func(s *Situation) {
			s.placeholder(time.Minute).Spec.NodeName = "live"
			s.liveNode(time.Minute, 0)
			s.deleteLive()
		},
			gone("its node live is being deleted")},
		"node is no more": {func(s *Situation) { s.placeholder(2 * time.Minute).Spec.NodeName = "was" }, gone("its node was is gone")},
		"node is not seen yet": {func(s *Situation) {
			pod := s.placeholder(10 * time.Minute)
			pod.Spec.NodeName = "new"
			pod.Status.Conditions = []corev1.PodCondition{{
				Type: corev1.PodScheduled, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(s.Now.Add(-time.Second)),
			}}
		}, nil},
		"no pod waits":        {func(s *Situation) { s.placeholder(time.Minute); s.Decision.Kinds = nil }, gone("no pod waits for its node any more")},
		"headroom still does": {func(s *Situation) { s.placeholder(time.Minute); s.headroomComes("p5") }, nil},
		"headroom of others":  {func(s *Situation) { s.placeholder(time.Minute); s.headroomComes("p6") }, gone("no pod waits for its node any more")},
		"observed from now on": {func(s *Situation) {
			s.placeholder(time.Minute)
			s.View.GroupStates[0].Object.Spec.Pairing = v1alpha1.PairingObserve
		}, gone("group p5 does not grow by placeholders")},
		"group is gone": {func(s *Situation) { s.placeholder(time.Minute); s.View.GroupStates = nil }, gone("group p5 does not grow by placeholders")},
		"autoscaler backs off": {func(s *Situation) {
			s.placeholder(time.Minute)
			s.Autoscaler.Groups = map[string]autoscaler.Group{"p5": {Backoff: true, Message: "ICE"}}
		}, gone("Cluster Autoscaler has backed off from the group: ICE")},
		"expired": {func(s *Situation) { s.placeholder(31 * time.Minute) },
			append([]string{"leave p5 alone until 12:05:00: ScaleUpFailed"}, gone("it has expired")...)},
		"refused, at first": {func(s *Situation) { s.refuse(s.placeholder(time.Minute)) }, nil},
		"refused for long": {func(s *Situation) { s.refuse(s.placeholder(3 * time.Minute)) },
			append([]string{"leave p5 alone until 12:05:00: ScaleUpFailed"}, gone("Cluster Autoscaler refuses it")...)},
	} {
		t.Run(name, func(t *testing.T) {
			s := onePod()
			s.waits()
			test.change(s)
			if diff := cmp.Diff(test.want, summary(Decide(*s))); diff != "" {
				t.Errorf("- is expected:\n%s", diff)
			}
		})
	}
}

// headroomComes makes a headroom, and no pod, wait for devices of a group.
func (s *Situation) headroomComes(group string) {
	s.Decision.Kinds = nil
	s.View.Headroom = []scaleout.Headroom{{Name: "night", Groups: []string{group}}}
	s.Decision.Headroom = []scaleout.HeadroomDecision{{Name: "night", Coming: 1}}
}

func (s *Situation) refuse(pod *corev1.Pod) {
	s.Triggers[pod.UID] = Trigger{Pod: types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}, At: s.Now, Message: "max limit reached"}
}

func TestDecideDoesNotDependOnOrder(t *testing.T) {
	s := onePod()
	s.waits()
	for range 3 {
		s.placeholder(time.Minute)
	}
	want := summary(Decide(*s))
	slices.Reverse(s.View.Placeholders)
	if diff := cmp.Diff(want, summary(Decide(*s))); diff != "" || len(want) != 2 {
		t.Errorf("of three placeholders for one node two are to go, the same ones: %v\n%s", want, diff)
	}
}

func TestAnAbsentAutoscalerIsReported(t *testing.T) {
	for name, test := range map[string]struct {
		autoscaler autoscaler.Status
		want       string
	}{
		"never there":    {autoscaler.Status{}, "Cluster Autoscaler has written no status, and no Event about a pod: "},
		"gone":           {autoscaler.Status{Updated: epoch.Add(-10 * time.Minute)}, "Cluster Autoscaler wrote its last status at 2026-03-01T11:50:00Z: "},
		"not understood": {autoscaler.Status{Problem: "it is a poem"}, "the status of Cluster Autoscaler cannot be read: it is a poem: "},
	} {
		t.Run(name, func(t *testing.T) {
			s := onePod()
			s.Autoscaler = test.autoscaler
			got := Decide(*s).Status["p5"]
			if got.NotReady != v1alpha1.ReasonAutoscalerAbsent || !strings.HasPrefix(got.Message, test.want) ||
				!strings.Contains(got.Message, "choose pairing direct or observe") {
				t.Errorf("%s: %s", got.NotReady, got.Message)
			}
			s.Now = s.Now.Add(time.Second)
			if later := Decide(*s).Status["p5"]; later.Message != got.Message {
				t.Errorf("a second later, the status is written anew: %s", later.Message)
			}
		})
	}
}

func TestAgain(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*Situation)
		want   time.Duration
	}{
		"silence ends":  {func(s *Situation) { s.Placeholder.Grace = 90 * time.Second }, 30 * time.Second},
		"template ages": {func(s *Situation) { s.said(false, 0); s.liveNode(time.Hour, 20*time.Second) }, 41 * time.Second},
		"it expires":    {func(s *Situation) { s.waits(); s.placeholder(29 * time.Minute) }, 61 * time.Second},
		"backoff ends": {func(s *Situation) {
			s.View.GroupStates[0].Object.Status.Backoff = &v1alpha1.Backoff{Until: metav1.NewTime(s.Now.Add(time.Minute)), Failures: 1, Reason: v1alpha1.ReasonScaleUpFailed}
		}, time.Minute},
		"status is old": {func(s *Situation) { s.waits() }, autoscaler.Fresh + time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			s := onePod()
			test.change(s)
			if got := Decide(*s).Again.Sub(s.Now); got != test.want {
				t.Errorf("again in %s, want %s", got, test.want)
			}
		})
	}
}

func TestACompleteNodeEndsABackoff(t *testing.T) {
	for name, test := range map[string]struct {
		complete, created time.Duration
		going, ends       bool
	}{
		"of since it began":                        {time.Minute, 3 * time.Minute, false, true},
		"of before it began, late":                 {time.Minute, 20 * time.Minute, false, true},
		"of before it began":                       {time.Hour, time.Hour, false, false},
		"that is old, and was not Ready meanwhile": {time.Minute, 24 * time.Hour, false, false},
		"of since it began that is being deleted":  {time.Minute, 3 * time.Minute, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			s := onePod()
			s.View.GroupStates[0].Object.Status.Backoff = &v1alpha1.Backoff{
				Until: metav1.NewTime(s.Now.Add(3 * time.Minute)), Failures: 1, Reason: v1alpha1.ReasonScaleUpFailed,
			}
			s.liveNode(test.complete, test.complete)
			s.View.GroupStates[0].Nodes[0].Object.CreationTimestamp = metav1.NewTime(s.Now.Add(-test.created))
			if test.going {
				s.deleteLive()
			}
			if got := Decide(*s).Status["p5"].Backoff; (got == nil) != test.ends {
				t.Errorf("backoff %v, want it to end: %v", got, test.ends)
			}
		})
	}
}

func TestTheAutoscalersBackoffIsItsOwn(t *testing.T) {
	s := onePod()
	s.Autoscaler.Groups = map[string]autoscaler.Group{"p5": {Backoff: true, Message: "ICE"}}
	first := Decide(*s).Status["p5"].Backoff
	if first == nil || first.Reason != v1alpha1.ReasonAutoscalerBackedOff {
		t.Fatalf("backoff %v", first)
	}
	s.View.GroupStates[0].Object.Status.Backoff = first
	s.Now = s.Now.Add(time.Minute)
	s.Autoscaler.Updated = s.Now
	if again := Decide(*s).Status["p5"].Backoff; again == nil || *again != *first {
		t.Errorf("it is written anew, from %v to %v, though nothing has changed", first, again)
	}
	s.Autoscaler.Groups = nil
	if after := Decide(*s).Status["p5"].Backoff; after != nil {
		t.Errorf("it outlives the autoscaler's: %v", after)
	}
}
