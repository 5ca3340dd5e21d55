package policy

import (
	"fmt"
	"slices"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/mica-gpu/mica/api/v1alpha1"
	"github.com/mica-gpu/mica/pkg/health"
	"github.com/mica-gpu/mica/pkg/slice"
)

// effects are those that a policy may choose.
var effects = []resourceapi.DeviceTaintEffect{resourceapi.DeviceTaintEffectNone, resourceapi.DeviceTaintEffectNoSchedule, resourceapi.DeviceTaintEffectNoExecute}

// Recoveries that a policy may choose.
const (
	recoverNone  = "None"
	recoverReset = "Reset"
)

// faults are a policy's rules for faults.
type faults struct {
	effects slice.FaultEffects
	resets  health.ConditionSet
}

// readHealth reads spec.health. Errors begin with the path below it.
func readHealth(rules []v1alpha1.FaultEffect) (faults, error) {
	read := faults{effects: slice.FaultEffects{}, resets: health.ConditionSet{}}
	for i, rule := range rules {
		condition, effect := health.Condition(rule.Condition), resourceapi.DeviceTaintEffect(rule.Effect)
		if !slices.Contains(health.Conditions, condition) {
			return faults{}, fmt.Errorf("[%d].condition: %q is unknown: choose one of %q", i, rule.Condition, health.Conditions)
		}
		if !slices.Contains(effects, effect) {
			return faults{}, fmt.Errorf("[%d].effect: %q is unknown: choose one of %q", i, rule.Effect, effects)
		}
		read.effects[condition] = effect
		switch {
		case rule.Recovery == "" || rule.Recovery == recoverNone:
		case rule.Recovery != recoverReset:
			return faults{}, fmt.Errorf("[%d].recovery: %q is unknown: choose %s or %s", i, rule.Recovery, recoverNone, recoverReset)
		case condition == health.Lost || condition == health.Unresponsive:
			return faults{}, fmt.Errorf("[%d].recovery: no reset reaches a GPU with the condition %s: leave %s out", i, condition, recoverReset)
		default:
			read.resets[condition] = true
		}
	}
	return read, nil
}

// Faults are the effects of GPU faults.
func (c *Compiled) Faults() slice.FaultEffects { return c.faults.effects }

// Resets are the conditions for which GPUs without claims are reset.
func (c *Compiled) Resets() health.ConditionSet { return c.faults.resets }
