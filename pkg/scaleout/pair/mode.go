package pair

import (
	"time"

	"github.com/mica-gpu/mica/api/v1alpha1"
	"github.com/mica-gpu/mica/pkg/scaleout"
	"github.com/mica-gpu/mica/pkg/scaleout/view"
)

// mode is who makes a group grow. It changes nothing that it is given, and asks nobody.
type mode interface {
	// decide says what is to be done for one group. demand are the nodes that the plan asks
	// for beyond those that exist or are coming, and is empty where it asks for none.
	decide(s *Situation, group *view.Group, demand []scaleout.NewNode) outcome
}

// outcome is what a mode decides for one group.
type outcome struct {
	// actions are in the order in which they are to be done: whoever is killed after any of
	// them, the next one to decide must come to the rest by itself.
	actions []Action
	status  GroupStatus
	// again is when to decide again though nothing has changed; zero: never.
	again time.Time
}

// modeOf is the mode of a group. A pairing that this version does not know grows nothing.
func modeOf(pairing v1alpha1.Pairing) mode {
	switch pairing {
	case v1alpha1.PairingPlaceholder, "":
		return placeholders{}
	case v1alpha1.PairingDirect:
		return direct{}
	default:
		return observe{}
	}
}

// observe leaves the group alone.
type observe struct{}

func (observe) decide(*Situation, *view.Group, []scaleout.NewNode) outcome { return outcome{} }

// sooner is the earlier of two times of which zero means never.
func sooner(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// age is how long ago something was. What is from the future, because a clock was set, is
// no time ago: nothing is too old by a clock that nobody can trust.
func age(now, then time.Time) time.Duration { return max(now.Sub(then), 0) }
