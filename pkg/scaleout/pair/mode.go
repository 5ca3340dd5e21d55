package pair

import (
	"time"

	"github.com/mica-gpu/mica/api/v1alpha1"
	"github.com/mica-gpu/mica/pkg/scaleout"
	"github.com/mica-gpu/mica/pkg/scaleout/view"
)

// mode is a pairing: how a group grows. It has no side effects.
type mode interface {
	// decide decides for one group. demand are the nodes that the plan asks for beyond those that exist or are coming.
	decide(s *Situation, group *view.Group, demand []scaleout.NewNode) outcome
}

// outcome is a mode's decision for one group.
type outcome struct {
	// actions are in order. After a crash between two, the next Decide must return the rest.
	actions []Action
	status  GroupStatus
	// again is when to decide again without a change. Zero: never.
	again time.Time
}

// modeFor is the group's mode. Refused and deleted groups, and those of an unknown pairing, are only observed.
func modeFor(group *view.Group) mode {
	if group.Refused != "" || group.Object.DeletionTimestamp != nil {
		return observe{}
	}
	switch group.Object.Spec.Pairing {
	case v1alpha1.PairingPlaceholder, "":
		return placeholders{}
	case v1alpha1.PairingDirect:
		return direct{}
	}
	return observe{}
}

// observe leaves the group alone.
type observe struct{}

func (observe) decide(*Situation, *view.Group, []scaleout.NewNode) outcome { return outcome{} }

// turn is one decision about one group that grows.
type turn struct {
	s       *Situation
	group   *view.Group
	timeout time.Duration
	backoff *v1alpha1.Backoff
	// failed reports whether the backoff is new.
	failed bool
	again  time.Time
}

// newTurn ends the group's backoff if a node has become complete since.
func newTurn(s *Situation, group *view.Group) turn {
	t := turn{s: s, group: group, timeout: group.Object.ProvisionTimeout()}
	t.backoff = remembered(group.Object.Status.Backoff, s.Now, t.timeout)
	if t.backoff != nil && t.backoff.Reason != v1alpha1.ReasonAutoscalerBackedOff && succeeded(group, t.backoff, t.timeout) {
		t.backoff = nil
	}
	return t
}

func (t *turn) fail(reason, message string) {
	before := t.backoff
	t.backoff = fail(before, t.s.Now, reason, message)
	t.failed = t.failed || t.backoff != before
}

// waitUntil repeats the decision at a time, if it is in the future.
func (t *turn) waitUntil(at time.Time) {
	if at.After(t.s.Now) {
		t.again = sooner(t.again, at)
	}
}

// outcome records a failure before all other actions.
func (t *turn) outcome(actions ...Action) outcome {
	out := outcome{again: t.again, status: GroupStatus{Backoff: t.backoff}}
	if backedOff(t.backoff, t.s.Now) {
		out.again = sooner(out.again, t.backoff.Until.Time)
	}
	if t.failed {
		out.actions = append(out.actions, setBackoff{Group: t.group.Object, Backoff: *t.backoff})
	}
	out.actions = append(out.actions, actions...)
	return out
}

// sooner is the earlier of two times. Zero means never.
func sooner(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// age is the time since then. It is zero for the future, in case a clock was set.
func age(now, then time.Time) time.Duration { return max(now.Sub(then), 0) }
