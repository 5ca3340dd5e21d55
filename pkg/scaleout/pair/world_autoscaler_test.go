package pair

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mica-gpu/mica/api/v1alpha1"

	"github.com/mica-gpu/mica/pkg/scaleout/autoscaler"
)

// scan is what the real Cluster Autoscaler was seen to do: it knows the devices of a group that
// has, or had, a node which was complete for a minute, and those of no other group. Pods that
// are pinned to a group make it grow in any case.
func (w *world) scan() {
	for _, g := range w.groups {
		if g.broken && len(g.asked) > 0 {
			g.asked, g.backoffUntil = nil, w.now.Add(5*time.Minute)
			w.logf("Cluster Autoscaler backs off from %s", g.name)
		}
	}
	var refused []*corev1.Pod
	w.scanPods()
	for _, p := range w.placeholders() {
		if p.Spec.NodeName == "" {
			refused = append(refused, p)
		}
	}
	for _, g := range w.groups {
		w.scanPlaceholders(g, slices.DeleteFunc(slices.Clone(refused), func(p *corev1.Pod) bool {
			return p.Labels[v1alpha1.LabelNodeGroup] != g.name
		}))
	}
	w.autoscaler = autoscaler.Status{Updated: w.now, Groups: map[string]autoscaler.Group{}}
	for _, g := range w.groups {
		w.autoscaler.Groups[g.autoscalerName()] = autoscaler.Group{
			Backoff: w.now.Before(g.backoffUntil), Message: "InsufficientInstanceCapacity: no such machines",
			Target: len(g.nodes) + len(g.asked), Max: g.caMax,
		}
	}
}

// scanPods adds nodes for users' pods to groups of which it has a live template.
func (w *world) scanPods() {
	room := map[*simGroup]int{}
	for _, g := range w.groups {
		for _, n := range g.nodes {
			if !n.complete(w.now) && w.now.Sub(n.created) < 15*time.Minute {
				room[g] += g.real
			}
		}
		room[g] += len(g.asked) * g.real
	}
	for _, p := range w.pending() {
		group := w.knownGroup(p)
		switch {
		case group == nil:
			w.event(p.object, eventNotTriggered, "pod didn't trigger scale-up: 1 cannot allocate all claims")
		case room[group] >= p.needs:
			room[group] -= p.needs
		default:
			w.grow(group, p.object)
			room[group] += group.real - p.needs
		}
	}
}

func (w *world) knownGroup(p *simPod) *simGroup {
	for _, g := range w.groups {
		live := slices.ContainsFunc(g.nodes, func(n *simNode) bool { return n.complete(w.now.Add(-time.Minute)) })
		if live && g.real >= p.needs && w.mayGrow(g) {
			return g
		}
	}
	return nil
}

func (w *world) mayGrow(g *simGroup) bool {
	return !g.frozen && len(g.nodes)+len(g.asked) < g.caMax && !w.now.Before(g.backoffUntil)
}

func (w *world) scanPlaceholders(g *simGroup, waiting []*corev1.Pod) {
	coming := len(g.asked)
	for _, n := range g.nodes {
		if len(waiting) > 0 && w.admits(waiting[0], n) {
			coming++
		}
	}
	for i, p := range waiting {
		switch {
		case i < coming:
		case w.mayGrow(g):
			w.grow(g, p)
		default:
			w.event(p, eventNotTriggered, "pod didn't trigger scale-up: 1 max node group size reached")
		}
	}
}

func (w *world) grow(g *simGroup, p *corev1.Pod) {
	size := len(g.nodes) + len(g.asked)
	g.asked = append(g.asked, w.now.Add(g.boot+time.Duration(len(g.asked))*g.stagger))
	w.logf("Cluster Autoscaler grows %s from %d to %d for %s", g.name, size, size+1, p.Name)
	w.event(p, eventTriggered, fmt.Sprintf("pod triggered scale-up: [{%s %d->%d (max: %d)}]", g.autoscalerName(), size, size+1, g.caMax))
}

func (w *world) event(p *corev1.Pod, reason, message string) {
	w.events = slices.DeleteFunc(w.events, func(e corev1.Event) bool {
		return e.InvolvedObject.UID == p.UID && e.Reason == reason
	})
	w.events = append(w.events, corev1.Event{
		InvolvedObject: corev1.ObjectReference{Kind: "Pod", Namespace: p.Namespace, Name: p.Name, UID: p.UID},
		Reason:         reason, Message: message, Source: corev1.EventSource{Component: "cluster-autoscaler"},
		LastTimestamp: metav1.NewTime(w.now),
	})
}
