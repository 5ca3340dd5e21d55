package pair

import (
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	corev1 "k8s.io/api/core/v1"

	"github.com/mica-gpu/mica/api/v1alpha1"
	"github.com/mica-gpu/mica/pkg/scaleout"
)

// create creates a placeholder for each demanded node that Cluster Autoscaler will not add by itself.
func (d *placing) create(demand []scaleout.NewNode) {
	if backedOff(d.backoff, d.s.Now) {
		return
	}
	size, coming := d.size(), d.coming()
	name := d.names()
	for i := range demand {
		if d.group.Max != nil && size >= *d.group.Max || coming >= v1alpha1.MaxInFlight {
			return
		}
		if d.unproven(demand[i].Kinds) || !d.leftToUs(demand[i]) {
			continue
		}
		pod := d.pod(demand[i], name())
		d.creates = append(d.creates, createPlaceholder{Pod: pod})
		d.created = append(d.created, v1alpha1.InFlight{
			ID: pod.Name, Kind: firstKind(demand[i].Kinds), Nodes: 1, Since: metav1.NewTime(d.s.Now.Truncate(time.Second)),
		})
		size++
		coming++
	}
}

// unproven reports whether a node for one of the kinds is still incomplete: it may turn out that the pods do not fit.
func (d *placing) unproven(kinds []string) bool {
	return slices.ContainsFunc(d.kept, func(a attempt) bool {
		return a.node != nil && slices.ContainsFunc(a.kinds(), func(kind string) bool { return slices.Contains(kinds, kind) })
	})
}

// leftToUs reports whether Cluster Autoscaler will add no node for these pods. It knows nothing of headroom, which has no
// pods.
func (d *placing) leftToUs(node scaleout.NewNode) bool {
	if len(node.Pods) == 0 {
		return true
	}
	left := false
	for _, name := range node.Pods {
		pod := d.s.index.pending[name]
		if pod == nil {
			continue
		}
		refused, triggered := d.reactionTo(pod)
		if triggered {
			return false
		}
		left = left || refused
	}
	return left
}

// reactionTo reports whether Cluster Autoscaler refuses to add a node for a pod, or has added one. After it has got a live
// node of the group as its template, only newer Events count. A pod under a budget is ours alone.
func (d *placing) reactionTo(pod *corev1.Pod) (refused, triggered bool) {
	if d.s.ours(pod) {
		return true, false
	}
	event, known := d.s.trigger(pod)
	live, hasLive := liveTemplate(d.group)
	switch {
	case known && event.Triggered:
		return false, true
	case hasLive:
		d.waitUntil(live.Add(time.Second))
		return known && event.At.After(live), false
	case known:
		return true, false
	}
	end := pod.CreationTimestamp.Add(d.s.Placeholder.Grace)
	d.waitUntil(end)
	return !d.s.Now.Before(end), false
}

func firstKind(kinds []string) string {
	if len(kinds) == 0 {
		return ""
	}
	return kinds[0]
}
