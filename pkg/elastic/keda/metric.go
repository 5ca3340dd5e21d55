package keda

import (
	"context"
	"fmt"
	"strings"

	"github.com/mica-gpu/mica/pkg/elastic/workload"
)

// metric is what a trigger counts.
type metric interface {
	// value is a total over the replicas of the target, which is nil where the trigger has none.
	value(ctx context.Context, from *Sources, target *workload.State) (float64, error)
	// changes tells when the value may be another, until ctx ends. It is nil where only asking
	// again tells.
	changes(ctx context.Context, from *Sources) (<-chan int, error)
}

// polled is a metric of which only asking again tells that it has changed.
type polled struct{}

func (polled) changes(context.Context, *Sources) (<-chan int, error) { return nil, nil }

// definition is a metric's name in triggers, and what belongs to it.
type definition struct {
	name string
	// spec is its name for KEDA and the HPA.
	spec string
	// keys are those that only some metrics have.
	keys []string
	// load tells that the value is of work that waits for replicas, and not of devices.
	load bool
	// targeted tells that there is no value without a target.
	targeted bool
	// threshold is that of a trigger that gives none; 0: it has to give one, or its profile.
	threshold float64
	// guards tells that a replica that waits or loads counts for one, in the value itself: with a
	// formula, KEDA does not ask what is active.
	guards bool
	// passive is true for a value of a formula, which decides on activation.
	passive bool
	read    func(f fields, namespace string, target *workload.Ref) (metric, error)
}

var definitions = []definition{
	{name: "pendingClaims", spec: "mica-pending-claims", keys: []string{keyWorkload, keyDeviceClass}, read: readPending},
	{name: "freeDevices", spec: "mica-free-devices", keys: []string{keyDeviceClass, keySelector}, read: readFree},
	{name: "warmDevices", spec: "mica-warm-devices", keys: []string{keyDeviceClass, keySelector}, read: readWarm},
	{name: "gpuUtilization", spec: "mica-gpu-utilization", targeted: true, read: readUtilization},
	{name: "gpuMemory", spec: "mica-gpu-memory", targeted: true, read: readMemory},
	{name: "prometheus", spec: "mica-prometheus", keys: []string{keyQuery, keyValueType, keyNotReady}, load: true, targeted: true, read: readQuery},
	{name: "heldReplicas", spec: "mica-held-replicas", targeted: true, threshold: 1, guards: true, passive: true, read: readHeld},
	{name: "possibleReplicas", spec: "mica-possible-replicas", targeted: true, threshold: 1, passive: true, read: readPossible},
}

func definitionOf(name string) (*definition, error) {
	names := make([]string, len(definitions))
	for i := range definitions {
		if definitions[i].name == name {
			return &definitions[i], nil
		}
		names[i] = definitions[i].name
	}
	known := strings.Join(names, ", ")
	if name == "" {
		return nil, fmt.Errorf("%s is missing: a trigger has one of %s", keyMetric, known)
	}
	return nil, fmt.Errorf("%s %s is unknown: a trigger has one of %s", keyMetric, quoted(name), known)
}
