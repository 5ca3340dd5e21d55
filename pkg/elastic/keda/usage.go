package keda

import (
	"context"
	"fmt"
	"slices"

	"github.com/mica-gpu/mica/pkg/elastic/usage"
	"github.com/mica-gpu/mica/pkg/elastic/workload"
)

// deviceUsage is the usage of the target's devices, in percent of one replica.
type deviceUsage struct {
	polled
	name   string
	figure func(usage.Usage) usage.Mean
}

var (
	utilization = deviceUsage{name: "utilization", figure: func(u usage.Usage) usage.Mean { return u.Utilization }}
	memory      = deviceUsage{name: "memory", figure: func(u usage.Usage) usage.Mean { return u.Memory }}
)

func readUtilization(fields, string, *workload.Ref) (metric, error) { return utilization, nil }

func readMemory(fields, string, *workload.Ref) (metric, error) { return memory, nil }

// value is 0 if no pod with devices has a node. Pods without a node are left out: they may share a
// claim with others, and would raise the total by each replica that it asks for.
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
		err = fmt.Errorf("no device reported usage, though %d replicas hold devices", holding)
	}
	mean := m.figure(u)
	if err == nil {
		err = mean.Err
	}
	if err != nil {
		return 0, unavailable(fmt.Errorf("%s of the GPUs of %s is unknown: %w", m.name, target.Ref, err))
	}
	return mean.Value * 100 * float64(holding), nil
}
