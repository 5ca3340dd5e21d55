package pair

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mica-gpu/mica/api/v1alpha1"

	"github.com/mica-gpu/mica/pkg/scaleout/autoscaler"
	"github.com/mica-gpu/mica/pkg/scaleout/view"
)

// scan is what the real Cluster Autoscaler was seen to do, or does by its source; the
// functions are named (kubernetes-sigs/cluster-autoscaler 33c3f97, and the AWS provider of
// kubernetes/autoscaler 55c37cd). It knows the devices of a group that has, or had, a node which
// was complete for a minute, and those of no other group. Pods that are pinned to a group make it
// grow in any case.
func (w *world) scan() {
	for _, g := range w.groups {
		w.updateRequest(g)
	}
	taken := w.scanPods()
	var waiting []*corev1.Pod
	for _, p := range w.placeholders() {
		if p.Spec.NodeName == "" {
			waiting = append(waiting, p)
		}
	}
	for _, g := range w.groups {
		w.scanPlaceholders(g, slices.DeleteFunc(slices.Clone(waiting), func(p *corev1.Pod) bool {
			return p.Labels[v1alpha1.LabelNodeGroup] != g.name
		}), taken[g])
	}
	w.autoscaler = autoscaler.Status{Updated: w.now, Groups: map[string]autoscaler.Group{}}
	for _, g := range w.groups {
		starting, failed, ready := w.count(g)
		status := autoscaler.Group{
			Backoff: w.now.Before(g.backoff.until), Target: g.target(), Max: g.caMax,
			Ready: ready, NotStarted: starting, Unready: failed,
		}
		if status.Backoff {
			status.Code, status.Message = g.backoff.code, g.backoff.code+": "+g.backoff.message
		}
		w.autoscaler.Groups[g.autoscalerName()] = status
	}
}

func (g *simGroup) target() int { return len(g.nodes) + len(g.asked) }

// count is updateReadinessStats: a node that is not Ready, has a startup taint, or lacks slices that
// the group's live template has (DraCustomResourcesProcessor), has not started, and failed once it is
// older than --max-node-startup-time.
func (w *world) count(g *simGroup) (starting, failed, ready int) {
	for _, n := range g.nodes {
		switch {
		case n.ready(w.now) && (n.complete(w.now) || !g.startupTaint && !w.hasTemplate(g)):
			ready++
		case w.now.Sub(n.created) < g.startup:
			starting++
		default:
			failed++
		}
	}
	return starting, failed, ready
}

// updateRequest is updateScaleRequests: a scale-up is over when no node is to come any more, or
// when it lasts longer than --max-node-provision-time, after which the group is left alone. That the
// size is lowered then fails at AWS (DecreaseTargetSize), since the machine is there; one that has not
// joined by then is ended (removeOldUnregisteredNodes).
func (w *world) updateRequest(g *simGroup) {
	if g.broken && len(g.asked) > 0 {
		g.asked, g.request = nil, time.Time{}
		w.backOff(g, "InsufficientInstanceCapacity", "no such machines")
		return
	}
	_, failed, ready := w.count(g)
	switch {
	case g.request.IsZero():
	case g.target() == ready+failed:
		g.request = time.Time{}
	case w.now.Sub(g.request) > g.provision:
		w.backOff(g, "timeout", fmt.Sprintf("Scale-up timed out for node group %s after %s", g.autoscalerName(), w.now.Sub(g.request)))
		g.request = time.Time{}
	}
	g.asked = slices.DeleteFunc(g.asked, func(m simMachine) bool {
		late := w.now.Sub(m.since) > g.provision
		if late {
			w.logf("Cluster Autoscaler ends a machine of %s that has not joined", g.name)
		}
		return late
	})
}

// backOff leaves the group alone for five minutes, and twice as long each time up to half an hour
// (exponentialBackoff).
func (w *world) backOff(g *simGroup, code, message string) {
	g.backoff.lasts = min(max(2*g.backoff.lasts, 5*time.Minute), 30*time.Minute)
	g.backoff.until, g.backoff.code, g.backoff.message = w.now.Add(g.backoff.lasts), code, message
	w.logf("Cluster Autoscaler backs off from %s: %s", g.name, code)
}

// upcomingNodes is GetUpcomingNodes: what is to come counts as there only as long as a scale-up is
// waited for and the group is not backed off from.
func (w *world) upcomingNodes(g *simGroup) int {
	if g.request.IsZero() || w.now.Before(g.backoff.until) {
		return 0
	}
	_, failed, ready := w.count(g)
	return g.target() - ready - failed
}

// scanPods adds nodes for users' pods to groups with a live template (ScaleUp). Where
// none does, they are told so (EventingScaleUpStatusProcessor). Pods that are younger than their
// annotation says get none, but take room on what is to come, as all do (filterOutYoungPods comes after
// the PodListProcessor): it gives how many coming nodes of a group have pods.
func (w *world) scanPods() (taken map[*simGroup]int) {
	room := map[*simGroup]int{}
	before := map[*simGroup]int{}
	for _, g := range w.groups {
		room[g] = w.upcomingNodes(g) * g.real
		before[g] = room[g]
	}
	for _, p := range w.pending() {
		group := w.knownGroup(p)
		switch {
		case group == nil && !view.Delayed(p.object, w.now):
			w.event(p.object, eventNotTriggered, "pod didn't trigger scale-up: 1 cannot allocate all claims")
		case room[group] >= p.needs:
			room[group] -= p.needs
		case view.Delayed(p.object, w.now):
		default:
			w.grow(group, p.object)
			room[group] += group.real - p.needs
			before[group] += group.real
		}
	}
	taken = map[*simGroup]int{}
	for _, g := range w.groups {
		taken[g] = (before[g] - room[g] + g.real - 1) / g.real
	}
	return taken
}

// hasTemplate tells that the group has a node that was complete for a minute
// (isNodeGoodTemplateCandidate).
func (w *world) hasTemplate(g *simGroup) bool {
	return slices.ContainsFunc(g.nodes, func(n *simNode) bool { return n.complete(w.now.Add(-time.Minute)) })
}

func (w *world) knownGroup(p *simPod) *simGroup {
	for _, g := range w.groups {
		if w.hasTemplate(g) && g.real >= p.needs && w.mayGrow(g) {
			return g
		}
	}
	return nil
}

// mayGrow is IsNodeGroupReadyToScaleUp and filterValidScaleUpNodeGroups.
func (w *world) mayGrow(g *simGroup) bool {
	return !g.frozen && g.target() < g.caMax && !w.now.Before(g.backoff.until)
}

// scanPlaceholders leaves out those that what is to come, or a node that has started, has room for.
// They need no devices: what the AWS provider says of a new node will do (buildNodeFromTemplate). One
// with requests has no room on a coming node that pods have taken, which are more important.
func (w *world) scanPlaceholders(g *simGroup, waiting []*corev1.Pod, taken int) {
	coming := w.upcomingNodes(g)
	if len(waiting) > 0 && len(waiting[0].Spec.Containers[0].Resources.Requests) > 0 {
		coming -= min(coming, taken)
	}
	for _, n := range g.nodes {
		if len(waiting) > 0 && tolerates(waiting[0], n.taints(w.now)) && w.admits(waiting[0], n) {
			coming++
		}
	}
	for i, p := range waiting {
		switch {
		case i < coming:
		case w.now.Before(g.backoff.until):
			w.event(p, eventNotTriggered, "pod didn't trigger scale-up: 1 in backoff after failed scale-up")
		case w.mayGrow(g):
			w.grow(g, p)
		default:
			w.event(p, eventNotTriggered, "pod didn't trigger scale-up: 1 max node group size reached")
		}
	}
}

// total counts the devices that there are, or are to come.
func (w *world) total() int {
	total := 0
	for _, g := range w.groups {
		total += g.target() * g.real
	}
	return total
}

func (w *world) grow(g *simGroup, p *corev1.Pod) {
	size := g.target()
	g.asked = append(g.asked, simMachine{since: w.now, comes: w.now.Add(g.boot + time.Duration(len(g.asked))*g.stagger)})
	g.request = w.now
	if total := w.total(); w.budget > 0 && total > w.budget {
		w.t.Fatalf("%s: Cluster Autoscaler grows %s to %d devices, over the budget of %d\n%s", w.now.Sub(epoch), g.name, total, w.budget, w.log.String())
	}
	w.logf("Cluster Autoscaler grows %s from %d to %d for %s", g.name, size, size+1, p.Name)
	w.event(p, eventTriggered, fmt.Sprintf("pod triggered scale-up: [{%s %d->%d (max: %d)}]", g.autoscalerName(), size, size+1, g.caMax))
}

// event replaces the last of its reason, which is all that is to be seen of Events that are
// counted. The real one records one in five minutes (getCorrelationOptions).
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
