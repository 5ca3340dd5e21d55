package keda

import (
	"context"
	"fmt"

	"github.com/mica-gpu/mica/pkg/scaleout/usage"
	"github.com/mica-gpu/mica/pkg/scaleout/workload"
)

// busy tells how busy the target's devices are, in percent of one replica.
type busy struct {
	polled
	name string
	part func(usage.Usage) float64
}

func readUtilization(fields, string, *workload.Ref) (metric, error) {
	return busy{name: "utilization", part: func(u usage.Usage) float64 { return u.Utilization }}, nil
}

func readMemory(fields, string, *workload.Ref) (metric, error) {
	return busy{name: "memory", part: func(u usage.Usage) float64 { return u.Memory }}, nil
}

// value is 0 where the target holds nothing: there is then nothing that is busy.
func (m busy) value(ctx context.Context, from *Sources, target *workload.State) (float64, error) {
	holding := 0
	for _, pod := range target.Pods {
		if len(pod.Devices) > 0 {
			holding++
		}
	}
	if holding == 0 {
		return 0, nil
	}
	u, err := from.Usages.Usage(ctx, *target)
	if err == nil && u.Devices == 0 {
		err = fmt.Errorf("no device was measured, though %d of its pods hold some", holding)
	}
	if err != nil {
		return 0, unavailable(fmt.Errorf("%s of the GPUs of %s is not known: %w", m.name, target.Ref, err))
	}
	return m.part(u) * 100 * float64(holding), nil
}
