package keda

import (
	"context"
	"fmt"
	"strings"

	"github.com/mica-gpu/mica/pkg/elastic/workload"
)

// metric is the value that a trigger scales by.
type metric interface {
	// value is a total over the replicas of the target. target is nil if the trigger has none.
	value(ctx context.Context, from *Sources, target *workload.State) (float64, error)
	// changes signals that the value may have changed, until ctx ends. A nil channel means that callers
	// have to poll.
	changes(ctx context.Context, from *Sources) (<-chan int, error)
}

// polled is embedded in metrics without change signals.
type polled struct{}

func (polled) changes(context.Context, *Sources) (<-chan int, error) { return nil, nil }

// definition describes a metric of triggers.
type definition struct {
	name string
	// spec is the metric's name for KEDA and the HPA.
	spec string
	// keys are those that not all metrics have.
	keys []string
	// load: the value measures waiting work, not devices.
	load bool
	// targeted: the metric needs a target.
	targeted bool
	// threshold is the default; 0 if the trigger or its profile must set one.
	threshold float64
	// guards: a pending or loading replica counts as one in the value itself, because KEDA does not ask
	// for activity of a trigger in a formula.
	guards bool
	// passive: the metric is part of a formula, which decides on activation.
	passive bool
	read    func(f fields, namespace string, target *workload.Ref) (metric, error)
}

var definitions = []definition{
	{name: "pendingClaims", spec: "mica-pending-claims", keys: []string{keyWorkload, keyDeviceClass}, read: readPending},
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
