package pair

import (
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mica-gpu/mica/api/v1alpha1"
	"github.com/mica-gpu/mica/pkg/excerpt"
	"github.com/mica-gpu/mica/pkg/scaleout"
	"github.com/mica-gpu/mica/pkg/scaleout/autoscaler"
	"github.com/mica-gpu/mica/pkg/scaleout/view"
)

// placeholders lets Cluster Autoscaler make a group grow: by pods without claims that only a
// new node has room for.
type placeholders struct{}

func (placeholders) decide(s *Situation, group *view.Group, demand []scaleout.NewNode) outcome {
	d := &placing{
		s:       s,
		group:   group,
		timeout: group.Object.ProvisionTimeout(),
		backoff: remembered(group.Object.Status.Backoff, s.Now, group.Object.ProvisionTimeout()),
	}
	d.autoscaler, d.known = s.Autoscaler.Of(group.Object, s.Now)
	if d.backoff != nil && d.backoff.Reason != v1alpha1.ReasonAutoscalerBackedOff && succeeded(d.group, d.backoff, d.timeout) {
		d.backoff = nil
	}
	d.retire(attempts(s.View.Placeholders, group, s.Now))
	d.followAutoscaler()
	if d.autoscalerPresent() {
		d.create(demand)
	}
	return d.outcome()
}

// refusedAfter is how long Cluster Autoscaler may refuse a placeholder, such as for a limit
// of its own, until that counts as a failure.
const refusedAfter = 2 * time.Minute

// eventsFresh is how long Events show that Cluster Autoscaler lives, where it writes no status. Of
// a pod that waits, the same Event is let through once in five minutes.
const eventsFresh = 10 * time.Minute

// placing is one decision about the placeholders of one group.
type placing struct {
	s       *Situation
	group   *view.Group
	timeout time.Duration
	// autoscaler is what Cluster Autoscaler says of the group, where it knows it.
	autoscaler autoscaler.Group
	known      bool

	backoff *v1alpha1.Backoff
	// failed tells that the backoff is of now.
	failed  bool
	kept    []attempt
	deletes []Action
	creates []Action
	created []v1alpha1.InFlight
	again   time.Time
	// absent is why there is no Cluster Autoscaler to count on.
	absent string
}

// followAutoscaler backs off as long as Cluster Autoscaler does. Its own backoff has no end that it
// tells; while it lasts, ours is prolonged well before it ends. After a failure that was counted here,
// the count is kept.
func (d *placing) followAutoscaler() {
	now := d.s.Now
	switch ours := d.backoff; {
	case d.known && d.autoscaler.Backoff:
		if ours != nil && ours.Until.After(now.Add(time.Minute)) {
			return
		}
		d.backoff = &v1alpha1.Backoff{
			Until:    metav1.NewTime(now.Add(backoffFirst).Truncate(time.Second)),
			Failures: 1,
			Reason:   v1alpha1.ReasonAutoscalerBackedOff,
			Message:  excerpt.Of(d.autoscaler.BackedOff(), maxMessage),
		}
		if ours != nil && ours.Reason != v1alpha1.ReasonAutoscalerBackedOff {
			d.backoff = ours.DeepCopy()
			d.backoff.Until = metav1.NewTime(now.Add(2 * time.Minute).Truncate(time.Second))
		}
	case ours != nil && ours.Reason == v1alpha1.ReasonAutoscalerBackedOff:
		d.backoff = nil
	}
}

// retire deletes the placeholders that have served, failed, or are needed no more.
func (d *placing) retire(all []attempt) {
	limit, limited := d.s.index.nodesWaitedFor(d.group.Object.Name)
	coming := 0
	for _, a := range all {
		needed := !limited || limit > 0 && a.node != nil || coming < limit
		why, failure := d.verdict(a, needed)
		switch {
		case failure != "":
			d.fail(a, failure)
			fallthrough
		case why != "":
			d.deletes = append(d.deletes, a.delete(why))
		default:
			d.kept = append(d.kept, a)
			if a.node == nil {
				coming++
			}
			d.again = sooner(d.again, a.pod.CreationTimestamp.Add(d.timeout+time.Second))
		}
	}
}

// verdict is why a placeholder is to be deleted, and the failure that it is, if it is one.
func (d *placing) verdict(a attempt, needed bool) (why, failure string) {
	now := d.s.Now
	refused, isRefused := d.refused(a)
	switch {
	case a.ended():
		return fmt.Sprintf("it has ended (%s)", a.pod.Status.Phase), ""
	case a.lost:
		return fmt.Sprintf("its node %s is no more", a.pod.Spec.NodeName), ""
	case a.going():
		return fmt.Sprintf("its node %s is being deleted", a.node.Object.Name), ""
	case a.complete():
		return fmt.Sprintf("its node %s offers all that it should", a.node.Object.Name), ""
	case a.node != nil && a.node.Withheld != "":
		return "its node offers none of its GPUs", fmt.Sprintf("node %s, which placeholder %s was for, %s", a.node.Object.Name, a.pod.Name, a.node.Withheld)
	case !needed:
		return d.notNeeded(a), ""
	case age(now, a.pod.CreationTimestamp.Time) > d.timeout:
		return "it has expired", d.expiry(a)
	case d.gaveUp(a) != "":
		return "Cluster Autoscaler would add another node for it", d.gaveUp(a)
	case a.node == nil && d.known && d.autoscaler.Backoff:
		return d.autoscaler.BackedOff(), ""
	case isRefused:
		return "Cluster Autoscaler refuses it", refused
	}
	return "", ""
}

// notNeeded tells that nobody waits for the node: since the pods have another place, are
// gone, or do not fit on a node as they have turned out to be.
func (d *placing) notNeeded(a attempt) string {
	for _, kind := range a.kinds() {
		if miss := d.s.index.misses[d.group.Object.Name][kind]; miss != "" {
			return "its pods do not fit on a node of the group: " + excerpt.Of(miss, maxMessage)
		}
	}
	return "no pod waits for its node any more"
}

// expiry is a sentence about a node that did not come, or did not become complete, in time.
func (d *placing) expiry(a attempt) string {
	if a.node == nil {
		text := fmt.Sprintf("placeholder %s got no node within %s", a.pod.Name, d.timeout)
		if t, ok := d.s.trigger(a.pod); ok {
			text += "; Cluster Autoscaler last said: " + t.Message
		}
		return text
	}
	lacks := "readiness"
	if len(a.node.Missing) > 0 {
		lacks = strings.Join(a.node.Missing[:min(len(a.node.Missing), 3)], "; ")
	}
	return fmt.Sprintf("node %s, which placeholder %s was for, is not complete after %s: it lacks %s",
		a.node.Object.Name, a.pod.Name, d.timeout, lacks)
}

// refused tells that Cluster Autoscaler will not add a node for the placeholder.
func (d *placing) refused(a attempt) (string, bool) {
	t, ok := d.s.trigger(a.pod)
	if a.node != nil || !ok || t.Triggered {
		return "", false
	}
	since := a.pod.CreationTimestamp.Add(refusedAfter)
	if d.s.Now.Before(since) {
		d.again = sooner(d.again, since)
		return "", false
	}
	return fmt.Sprintf("Cluster Autoscaler adds no node for placeholder %s, which is pinned to the group: %s", a.pod.Name, t.Message), true
}

func (d *placing) fail(a attempt, message string) {
	before, reason := d.backoff, v1alpha1.ReasonScaleUpFailed
	if a.node != nil {
		reason = v1alpha1.ReasonNodeIncomplete
	}
	d.backoff = fail(d.backoff, d.s.Now, reason, message)
	d.failed = d.failed || d.backoff != before
}

// autoscalerPresent tells whether there is a Cluster Autoscaler that a placeholder could move.
func (d *placing) autoscalerPresent() bool {
	a, now := d.s.Autoscaler, d.s.Now
	last := d.s.index.lastEvent
	switch {
	case a.Counts(now):
		d.again = sooner(d.again, a.Updated.Add(autoscaler.Fresh+time.Second))
		return true
	case !last.IsZero() && age(now, last) <= eventsFresh:
		d.again = sooner(d.again, last.Add(eventsFresh+time.Second))
		return true
	case a.Problem != "":
		d.absent = "the status of Cluster Autoscaler cannot be read: " + a.Problem
	case a.Updated.IsZero():
		d.absent = "Cluster Autoscaler has written no status, and no Event about a pod"
	default:
		d.absent = "Cluster Autoscaler wrote its last status at " + a.Updated.UTC().Format(time.RFC3339)
	}
	d.absent += ": placeholders would move nobody, and none is created; start it, tell the controller where its status is, or choose pairing direct or observe for the group"
	return false
}

// coming counts the nodes that were asked for and have not come.
func (d *placing) coming() int {
	n := 0
	for _, a := range d.kept {
		if a.node == nil {
			n++
		}
	}
	return n
}

// size is how many nodes the group has or will have: Cluster Autoscaler may have asked for
// some by itself.
func (d *placing) size() int {
	return max(len(d.group.Nodes)+d.coming(), d.autoscaler.Target)
}

func (d *placing) outcome() outcome {
	out := outcome{again: d.again}
	if backedOff(d.backoff, d.s.Now) {
		out.again = sooner(out.again, d.backoff.Until.Time)
	}
	if d.failed {
		out.actions = append(out.actions, setBackoff{Group: d.group.Object, Backoff: *d.backoff})
	}
	out.actions = append(out.actions, d.deletes...)
	out.actions = append(out.actions, d.creates...)
	out.status.Backoff = d.backoff
	if d.absent != "" {
		out.status.NotReady, out.status.Message = v1alpha1.ReasonAutoscalerAbsent, d.absent
	}
	for _, a := range d.kept {
		if a.node == nil {
			out.status.InFlight = append(out.status.InFlight, v1alpha1.InFlight{
				ID: a.pod.Name, Kind: a.kinds()[0], Nodes: 1, Since: a.pod.CreationTimestamp,
			})
		}
	}
	out.status.InFlight = append(out.status.InFlight, d.created...)
	if len(out.status.InFlight) > v1alpha1.MaxInFlight {
		out.status.InFlight = slices.Clip(out.status.InFlight[:v1alpha1.MaxInFlight])
	}
	return out
}
