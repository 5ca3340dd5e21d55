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

// readHealth reads spec.health. Errors name what comes below it.
func readHealth(rules []v1alpha1.FaultEffect) (slice.FaultEffects, error) {
	read := slice.FaultEffects{}
	for i, rule := range rules {
		condition, effect := health.Condition(rule.Condition), resourceapi.DeviceTaintEffect(rule.Effect)
		if !slices.Contains(health.Conditions, condition) {
			return nil, fmt.Errorf("[%d].condition: %q is unknown: choose one of %q", i, rule.Condition, health.Conditions)
		}
		if !slices.Contains(effects, effect) {
			return nil, fmt.Errorf("[%d].effect: %q is unknown: choose one of %q", i, rule.Effect, effects)
		}
		read[condition] = effect
	}
	return read, nil
}

// Faults are the effects of faults of the node's GPUs.
func (c *Compiled) Faults() slice.FaultEffects { return c.faults }
