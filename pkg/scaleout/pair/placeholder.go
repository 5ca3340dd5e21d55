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

// placeholders makes Cluster Autoscaler grow a group, by pods without claims that fit on new nodes only.
type placeholders struct{}

func (placeholders) decide(s *Situation, group *view.Group, demand []scaleout.NewNode) outcome {
	d := &placing{turn: newTurn(s, group)}
	d.autoscaler, d.known = s.Autoscaler.Of(group.Object, s.Now)
	d.retire(attempts(s.View.Placeholders, group, s.Now))
	d.followAutoscaler()
	if d.autoscalerPresent() {
		d.create(demand)
	}
	return d.outcome()
}

const (
	// refusedAfter is how long Cluster Autoscaler may refuse a placeholder before that is a failure.
	refusedAfter = 2 * time.Minute
	// eventsFresh is how long an Event shows that Cluster Autoscaler runs, if it writes no status. It repeats an Event about
	// a pod after five minutes.
	eventsFresh = 10 * time.Minute
	// startupTime is a minute less than the default of Cluster Autoscaler's --max-node-startup-time: later it does not count a
	// node as upcoming, and adds another one for a pod that waits.
	startupTime = 14 * time.Minute
)

// placing is a decision about the placeholders of a group.
type placing struct {
	turn
	// autoscaler is Cluster Autoscaler's status of the group, if known.
	autoscaler autoscaler.Group
	known      bool

	kept    []attempt
	deletes []Action
	creates []Action
	created []v1alpha1.InFlight
	// absent is why no Cluster Autoscaler can be counted on.
	absent string
}

// followAutoscaler backs off while Cluster Autoscaler does. Its status names no end, so ours is renewed before it ends. A
// count of failures is kept.
func (d *placing) followAutoscaler() {
	until := func(lasts time.Duration) metav1.Time { return metav1.NewTime(d.s.Now.Add(lasts).Truncate(time.Second)) }
	switch ours := d.backoff; {
	case d.known && d.autoscaler.Backoff:
		if ours != nil && ours.Until.After(d.s.Now.Add(time.Minute)) {
			return
		}
		d.backoff = &v1alpha1.Backoff{
			Until:    until(backoffFirst),
			Failures: 1,
			Reason:   v1alpha1.ReasonAutoscalerBackedOff,
			Message:  excerpt.Of(d.autoscaler.BackedOff(), maxMessage),
		}
		if ours != nil && ours.Reason != v1alpha1.ReasonAutoscalerBackedOff {
			d.backoff = ours.DeepCopy()
			d.backoff.Until = until(2 * time.Minute)
		}
	case ours != nil && ours.Reason == v1alpha1.ReasonAutoscalerBackedOff:
		d.backoff = nil
	}
}

// retire deletes the placeholders that are done, failed or not needed.
func (d *placing) retire(all []attempt) {
	limit, limited := d.s.index.nodesWaitedFor(d.group.Object.Name)
	coming := 0
	for _, a := range all {
		needed := !limited || limit > 0 && a.node != nil || coming < limit
		why, failure := d.verdict(a, needed)
		if failure != "" {
			reason := v1alpha1.ReasonScaleUpFailed
			if a.node != nil {
				reason = v1alpha1.ReasonNodeIncomplete
			}
			d.fail(reason, failure)
		}
		if why != "" {
			d.deletes = append(d.deletes, deletePlaceholder{Pod: a.pod, Why: why})
			continue
		}
		d.kept = append(d.kept, a)
		if a.node == nil {
			coming++
		}
		d.again = sooner(d.again, a.pod.CreationTimestamp.Add(d.timeout+time.Second))
	}
}

// verdict is why a placeholder is deleted, and the failure if it is one.
func (d *placing) verdict(a attempt, needed bool) (why, failure string) {
	switch {
	case a.ended():
		return fmt.Sprintf("it has ended (%s)", a.pod.Status.Phase), ""
	case a.lost:
		return fmt.Sprintf("its node %s is gone", a.pod.Spec.NodeName), ""
	case a.node != nil && a.node.Object.DeletionTimestamp != nil:
		return fmt.Sprintf("its node %s is being deleted", a.node.Object.Name), ""
	case a.node != nil && a.node.Complete():
		return fmt.Sprintf("its node %s is complete", a.node.Object.Name), ""
	case a.node != nil && a.node.Withheld != "":
		return "its node offers none of its GPUs", fmt.Sprintf("node %s, which placeholder %s was for, %s", a.node.Object.Name, a.pod.Name, a.node.Withheld)
	case !needed:
		return d.notNeeded(a), ""
	case age(d.s.Now, a.pod.CreationTimestamp.Time) > d.timeout:
		return "it has expired", d.expiry(a)
	case d.gaveUp(a) != "":
		return "Cluster Autoscaler would add another node for it", d.gaveUp(a)
	case a.node == nil && d.known && d.autoscaler.Backoff:
		return d.autoscaler.BackedOff(), ""
	case d.refused(a) != "":
		return "Cluster Autoscaler refuses it", d.refused(a)
	}
	return "", ""
}

// notNeeded is why no pod waits for the node.
func (d *placing) notNeeded(a attempt) string {
	for _, kind := range a.kinds() {
		if miss := d.s.index.misses[d.group.Object.Name][kind]; miss != "" {
			return "its pods do not fit on a node of the group: " + excerpt.Of(miss, maxMessage)
		}
	}
	return "no pod waits for its node any more"
}

// expiry describes a node that did not come, or did not become complete, in time.
func (d *placing) expiry(a attempt) string {
	if a.node == nil {
		text := fmt.Sprintf("placeholder %s got no node within %s", a.pod.Name, d.timeout)
		if event, ok := d.s.trigger(a.pod); ok {
			text += "; Cluster Autoscaler's last Event: " + event.Message
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

// refused is a sentence if Cluster Autoscaler will not add a node for the placeholder.
func (d *placing) refused(a attempt) string {
	event, ok := d.s.trigger(a.pod)
	if a.node != nil || !ok || event.Triggered {
		return ""
	}
	since := a.pod.CreationTimestamp.Add(refusedAfter)
	if d.s.Now.Before(since) {
		d.again = sooner(d.again, since)
		return ""
	}
	return fmt.Sprintf("Cluster Autoscaler adds no node for placeholder %s, which is pinned to the group: %s", a.pod.Name, event.Message)
}

// gaveUp is a sentence if Cluster Autoscaler has given up on a placeholder's node, or is about to. A placeholder that is on
// its node asks for nothing, however long the node takes.
func (d *placing) gaveUp(a attempt) string {
	switch {
	case a.pod.Spec.NodeName != "":
		return ""
	case d.known && d.autoscaler.TimedOut():
		return fmt.Sprintf("%s; if new nodes of the group take that long, raise the flag", d.autoscaler.BackedOff())
	case a.node == nil:
		return ""
	}
	joined := a.node.Object.CreationTimestamp.Time
	if age(d.s.Now, joined) < startupTime {
		d.again = sooner(d.again, joined.Add(startupTime))
		return ""
	}
	var keys []string
	for _, taint := range d.group.StartupTaints.Without(a.node.Object.Spec.Taints) {
		keys = append(keys, taint.Key)
	}
	return fmt.Sprintf("node %s has kept its placeholder off for %s by its taints (%s), and Cluster Autoscaler would soon add another node (%s): find out why these taints are not removed",
		a.node.Object.Name, startupTime, strings.Join(keys, ", "), autoscaler.FlagStartup)
}

// autoscalerPresent reports whether a Cluster Autoscaler runs.
func (d *placing) autoscalerPresent() bool {
	a, last := d.s.Autoscaler, d.s.index.lastEvent
	switch {
	case a.Counts(d.s.Now):
		d.again = sooner(d.again, a.Updated.Add(autoscaler.Fresh+time.Second))
		return true
	case !last.IsZero() && age(d.s.Now, last) <= eventsFresh:
		d.again = sooner(d.again, last.Add(eventsFresh+time.Second))
		return true
	case a.Problem != "":
		d.absent = "the status of Cluster Autoscaler cannot be read: " + a.Problem
	case a.Updated.IsZero():
		d.absent = "Cluster Autoscaler has written no status, and no Event about a pod"
	default:
		d.absent = "Cluster Autoscaler wrote its last status at " + a.Updated.UTC().Format(time.RFC3339)
	}
	d.absent += ": no placeholder is created, since it would have no effect; start it, tell the controller where its status is, or choose pairing direct or observe for the group"
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

// size is how many nodes the group will have. Cluster Autoscaler may have asked for some by itself.
func (d *placing) size() int { return max(len(d.group.Nodes)+d.coming(), d.autoscaler.Target) }

func (d *placing) outcome() outcome {
	out := d.turn.outcome(append(d.deletes, d.creates...)...)
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
