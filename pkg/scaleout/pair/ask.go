package pair

import (
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	corev1 "k8s.io/api/core/v1"

	"github.com/mica-gpu/mica/api/v1alpha1"
	"github.com/mica-gpu/mica/pkg/scaleout"
)

// create creates a placeholder for each node of the demand that Cluster Autoscaler will not
// bring by itself.
func (d *placing) create(demand []scaleout.NewNode) {
	if backedOff(d.backoff, d.s.Now) {
		return
	}
	size, coming := d.size(), d.coming()
	free := d.ordinals()
	for i := range demand {
		if d.group.Max != nil && size >= *d.group.Max || coming >= v1alpha1.MaxInFlight {
			return
		}
		if d.unfinished(demand[i].Kinds) || !d.leftToUs(demand[i]) {
			continue
		}
		pod := d.pod(demand[i], free())
		d.creates = append(d.creates, createPlaceholder{Pod: pod})
		d.created = append(d.created, v1alpha1.InFlight{
			ID: pod.Name, Kind: firstKind(demand[i].Kinds), Nodes: 1, Since: metav1.NewTime(d.s.Now.Truncate(time.Second)),
		})
		size++
		coming++
	}
}

// unfinished tells that a node has come for one of the kinds and does not show yet whether
// pods of it fit. Until then another one could be as wrong.
func (d *placing) unfinished(kinds []string) bool {
	for _, a := range d.kept {
		if a.node != nil && slices.ContainsFunc(a.kinds(), func(kind string) bool { return slices.Contains(kinds, kind) }) {
			return true
		}
	}
	return false
}

// leftToUs tells that Cluster Autoscaler will add no node for these pods: it has said so of
// one of them, or has been silent for too long, and has not added one for any of them. Of
// headroom it knows nothing.
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
		said, triggered := d.reactionTo(pod)
		if triggered {
			return false
		}
		left = left || said
	}
	return left
}

// reactionTo tells whether Cluster Autoscaler has left a pod to us, or has acted for it. Once it has a
// live node of the group as its template, it sees what we see, and only what it has said
// since counts. A pod under a budget is ours alone.
func (d *placing) reactionTo(pod *corev1.Pod) (left, triggered bool) {
	if d.s.ours(pod) {
		return true, false
	}
	t, said := d.s.trigger(pod)
	live, hasLive := liveTemplate(d.group)
	switch {
	case said && t.Triggered:
		return false, true
	case hasLive:
		d.waitUntil(live.Add(time.Second))
		return said && t.At.After(live), false
	case said:
		return true, false
	}
	end := pod.CreationTimestamp.Add(d.s.grace())
	d.waitUntil(end)
	return !d.s.Now.Before(end), false
}

// waitUntil has it decided again at a time that is to come.
func (d *placing) waitUntil(t time.Time) {
	if t.After(d.s.Now) {
		d.again = sooner(d.again, t)
	}
}

func (s *Situation) grace() time.Duration {
	if s.Placeholder.Grace > 0 {
		return s.Placeholder.Grace
	}
	return DefaultGrace
}

func firstKind(kinds []string) string {
	if len(kinds) == 0 {
		return ""
	}
	return kinds[0]
}
