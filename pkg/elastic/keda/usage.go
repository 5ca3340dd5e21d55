package keda

import (
	"context"
	"fmt"
	"slices"

	"github.com/mica-gpu/mica/pkg/elastic/usage"
	"github.com/mica-gpu/mica/pkg/elastic/workload"
)

// deviceUsage tells how busy the target's devices are, in percent of one replica.
type deviceUsage struct {
	polled
	name   string
	figure func(usage.Usage) usage.Mean
}

func readUtilization(fields, string, *workload.Ref) (metric, error) {
	return deviceUsage{name: "utilization", figure: func(u usage.Usage) usage.Mean { return u.Utilization }}, nil
}

func readMemory(fields, string, *workload.Ref) (metric, error) {
	return deviceUsage{name: "memory", figure: func(u usage.Usage) usage.Mean { return u.Memory }}, nil
}

// value is 0 where no pod on a node holds anything: there is then nothing that is busy. Pods that
// wait for a node, as they may while they share a claim that others use, are not in the mean, and
// would raise the total by each replica that it asks for.
func (m deviceUsage) value(ctx context.Context, from *Sources, target *workload.State) (float64, error) {
	holding, working := 0, *target
	working.Pods = nil
	for _, replica := range target.Replicated() {
		if slices.ContainsFunc(replica, func(pod workload.Pod) bool { return pod.Gate == workload.Standby }) {
			continue // it holds devices, and the memory of its model, for others to come
		}
		working.Pods = append(working.Pods, replica...)
		if slices.ContainsFunc(replica, func(pod workload.Pod) bool { return pod.Node != "" && len(pod.Devices) > 0 }) {
			holding++
		}
	}
	if holding == 0 {
		return 0, nil
	}
	u, err := from.Usages.Usage(ctx, working)
	if err == nil && u.Devices == 0 {
		err = fmt.Errorf("no device was measured, though %d of its replicas hold some", holding)
	}
	mean := m.figure(u)
	if err == nil {
		err = mean.Err
	}
	if err != nil {
		return 0, unavailable(fmt.Errorf("%s of the GPUs of %s is not known: %w", m.name, target.Ref, err))
	}
	return mean.Value * 100 * float64(holding), nil
}
