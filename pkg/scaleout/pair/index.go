package pair

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/mica-gpu/mica/pkg/scaleout"
	"github.com/mica-gpu/mica/pkg/scaleout/headroom"
	"github.com/mica-gpu/mica/pkg/scaleout/view"
)

// index finds what a Situation has in lists. All modes of one Decide share it.
type index struct {
	pending map[types.NamespacedName]*corev1.Pod
	// daemons are pods that every new node of a group will have.
	daemons map[string][]*corev1.Pod
	// waiting counts, by group, the pods that a node which is starting or was asked for will take.
	waiting map[string]map[string]waiting
	// misses are, by group, the kinds of which no pod fits on a new node.
	misses map[string]map[string]string
	// kept are the pods that are to be kept from Cluster Autoscaler.
	kept map[types.UID]bool
	// coming are the groups on whose nodes to come a headroom counts; all tells that one
	// counts on any.
	coming    map[string]bool
	comingAll bool
	taken     taken
	// podsOn are the pods that nodes have, by the node's name, and used the nodes for which pods
	// are planned or nominated, or on which headroom is kept.
	podsOn map[string][]*corev1.Pod
	used   map[string]bool
	// lastEvent is when Cluster Autoscaler last said anything of a pod.
	lastEvent time.Time
}

// waiting pods of a kind, and how many of them a new node has room for.
type waiting struct{ pods, perNode int }

func newIndex(s *Situation) *index {
	x := &index{
		pending: make(map[types.NamespacedName]*corev1.Pod, len(s.View.Pending)),
		daemons: map[string][]*corev1.Pod{},
		waiting: map[string]map[string]waiting{},
		misses:  map[string]map[string]string{},
		kept:    keptFromAutoscaler(s),
		coming:  map[string]bool{},
		taken:   takenBy(s.View.Claims),
		podsOn:  make(map[string][]*corev1.Pod, len(s.View.Nodes)),
		used:    headroom.Nodes(s.Decision.Headroom),
	}
	for _, pod := range s.View.Pending {
		x.pending[types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}] = pod
	}
	for _, node := range s.View.Nominated.Nodes {
		x.used[node] = true
	}
	for _, node := range s.View.Nodes {
		x.podsOn[node.Object.Name] = node.Pods
	}
	for _, pod := range s.View.Placeholders {
		x.podsOn[pod.Spec.NodeName] = append(slices.Clip(x.podsOn[pod.Spec.NodeName]), pod)
	}
	for i := range s.View.Groups {
		x.daemons[s.View.Groups[i].Name] = s.View.Groups[i].Pods
	}
	for i := range s.Decision.Kinds {
		x.addKind(&s.Decision.Kinds[i])
	}
	x.addHeadroom(s)
	for _, t := range s.Triggers {
		if t.At.After(x.lastEvent) {
			x.lastEvent = t.At
		}
	}
	return x
}

func (x *index) addKind(kind *scaleout.Kind) {
	perNode := map[string]int{}
	for _, fit := range kind.Groups {
		perNode[fit.Group] = fit.PerNode
		if fit.Miss != nil {
			entry(x.misses, fit.Group)[kind.ID] = fit.Miss.Text
		}
	}
	for _, pod := range kind.Pods {
		if pod.Node != "" {
			x.used[pod.Node] = true
		}
		if pod.Outcome == scaleout.FitsStarting && pod.Group != "" {
			byKind := entry(x.waiting, pod.Group)
			byKind[kind.ID] = waiting{pods: byKind[kind.ID].pods + 1, perNode: perNode[pod.Group]}
		}
	}
}

func (x *index) addHeadroom(s *Situation) {
	groups := map[string][]string{}
	for _, headroom := range s.View.Headroom {
		groups[headroom.Name] = headroom.Groups
	}
	for _, headroom := range s.Decision.Headroom {
		if headroom.Coming == 0 {
			continue
		}
		for _, group := range groups[headroom.Name] {
			x.coming[group] = true
		}
		x.comingAll = x.comingAll || len(groups[headroom.Name]) == 0
	}
}

func entry[V any](m map[string]map[string]V, key string) map[string]V {
	if m[key] == nil {
		m[key] = map[string]V{}
	}
	return m[key]
}

// nodesWaitedFor is how many nodes to come the pods and headrooms need at most; false is no
// limit. Kinds that share nodes need fewer, never more.
func (x *index) nodesWaitedFor(group string) (int, bool) {
	if x.comingAll || x.coming[group] {
		return 0, false
	}
	nodes := 0
	for _, w := range x.waiting[group] {
		perNode := max(w.perNode, 1)
		nodes += (w.pods + perNode - 1) / perNode
	}
	return nodes, true
}

// trigger is what Cluster Autoscaler last said of a pod, and not of another in its name.
func (s *Situation) trigger(pod *corev1.Pod) (Trigger, bool) {
	t, ok := s.Triggers[pod.UID]
	if !ok || t.Pod != (types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}) {
		return Trigger{}, false
	}
	return t, !t.At.Before(pod.CreationTimestamp.Time)
}

// ours reports whether a pod is kept from Cluster Autoscaler, and gets nodes from here alone.
func (s *Situation) ours(pod *corev1.Pod) bool {
	return s.index.kept[pod.UID] && view.Delayed(pod, s.Now)
}
