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

// index is the Situation's lists as maps.
type index struct {
	pending map[types.NamespacedName]*corev1.Pod
	// daemons are the pods of DaemonSets on a new node, by group.
	daemons map[string][]*corev1.Pod
	// waiting counts the pods for nodes that start or were asked for, by group and kind.
	waiting map[string]map[string]waiting
	// misses are why kinds do not fit on a new node, by group and kind.
	misses map[string]map[string]string
	// kept are the pods to keep from Cluster Autoscaler.
	kept map[types.UID]bool
	// coming are the groups on whose coming nodes a headroom counts. comingAll: a headroom counts on any.
	coming    map[string]bool
	comingAll bool
	taken     Taken
	// podsOn are the bound pods by node. used are the nodes that pods are planned or nominated for, or that hold headroom.
	podsOn map[string][]*corev1.Pod
	used   map[string]bool
	// lastEvent is the time of Cluster Autoscaler's last Event about a pod.
	lastEvent time.Time
}

// waiting counts the pods of a kind, and how many of them fit on a new node.
type waiting struct{ pods, perNode int }

func newIndex(s *Situation) *index {
	x := &index{
		pending: make(map[types.NamespacedName]*corev1.Pod, len(s.View.Pending)),
		daemons: map[string][]*corev1.Pod{},
		waiting: map[string]map[string]waiting{},
		misses:  map[string]map[string]string{},
		kept:    keptFromAutoscaler(s),
		coming:  map[string]bool{},
		taken:   TakenBy(s.View.Claims),
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

// nodesWaitedFor bounds how many coming nodes the pods and headrooms need. False: no limit.
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

// trigger is Cluster Autoscaler's last Event about a pod, not about a former one of its name.
func (s *Situation) trigger(pod *corev1.Pod) (Trigger, bool) {
	t, ok := s.Triggers[pod.UID]
	if !ok || t.Pod != (types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}) {
		return Trigger{}, false
	}
	return t, !t.At.Before(pod.CreationTimestamp.Time)
}

// ours reports whether a pod is kept from Cluster Autoscaler, so that only the controller adds nodes for it.
func (s *Situation) ours(pod *corev1.Pod) bool {
	return s.index.kept[pod.UID] && view.Delayed(pod, s.Now)
}
