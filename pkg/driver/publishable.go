package driver

import (
	"context"
	"slices"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/klog/v2"

	"github.com/mica-gpu/mica/pkg/slice"
)

// An API server that does not keep a feature may be replaced by one that does.
const askAgainUnanswered, askAgainRefused = 10 * time.Second, 5 * time.Minute

// feature is a part of slices that an API server drops without a word where its
// feature gate is off.
type feature struct {
	// lost is what cannot be offered without it, and gate the feature gate, in the
	// sentence that says so.
	lost, gate string
	// has tells whether slices have it.
	has func([]resourceapi.Device, []resourceapi.CounterSet) bool
	// without is what can be published where it is not kept.
	without func(resourceslice.Pool) resourceslice.Pool
	// kept tells that the API server keeps it; until it has said so, it is asked again
	// at askAgain.
	kept     bool
	askAgain time.Time
}

// features are those that matter to what is published, in the order in which they
// are given up.
func features() []*feature {
	return []*feature{
		{
			// Its scheduler would give a GPU to one claim and its partitions to others.
			lost: "MIG partitions and shares of GPUs are not offered", gate: "DRAPartitionableDevices, on since Kubernetes 1.36",
			has:     func(_ []resourceapi.Device, counters []resourceapi.CounterSet) bool { return len(counters) > 0 },
			without: slice.WithoutCounters,
		}, {
			// It would give all of a share to one claim.
			lost: "shares of GPUs are not offered", gate: "DRAConsumableCapacity, on since Kubernetes 1.36",
			has: func(devices []resourceapi.Device, _ []resourceapi.CounterSet) bool {
				return slices.ContainsFunc(devices, func(d resourceapi.Device) bool { return d.AllowMultipleAllocations != nil })
			},
			without: slice.WithoutShares,
		}, {
			// Without them a device is better offered too long than not known to be in use.
			lost: "shapes that a GPUPolicy does not offer any more go on being given to claims until nobody has one", gate: "DRADeviceTaints, on since Kubernetes 1.36",
			has: func(devices []resourceapi.Device, _ []resourceapi.CounterSet) bool {
				return slices.ContainsFunc(devices, func(d resourceapi.Device) bool { return len(d.Taints) > 0 })
			},
			without: slice.WithoutTaints,
		},
	}
}

// publishable is what the API server can keep of the resources.
func (p *publisher) publishable(ctx context.Context, node types.UID, resources *resourceslice.DriverResources) *resourceslice.DriverResources {
	kept := resourceslice.DriverResources{Pools: map[string]resourceslice.Pool{}}
	for name, pool := range resources.Pools {
		for _, feature := range p.features {
			index := slices.IndexFunc(pool.Slices, func(s resourceslice.Slice) bool { return feature.has(s.Devices, s.SharedCounters) })
			if index < 0 {
				continue
			}
			if !feature.kept && !time.Now().Before(feature.askAgain) {
				p.ask(ctx, feature, p.firstSlice(node, name, pool, index))
			}
			if !feature.kept {
				pool = feature.without(pool)
			}
		}
		kept.Pools[name] = pool
	}
	return &kept
}

// askAgain is when to ask for what the API server did not keep, zero for never.
func (p *publisher) askAgain() (next time.Time) {
	for _, feature := range p.features {
		if !feature.kept && !feature.askAgain.IsZero() && (next.IsZero() || feature.askAgain.Before(next)) {
			next = feature.askAgain
		}
	}
	return next
}

// ask lets the API server try a slice that has the feature.
func (p *publisher) ask(ctx context.Context, feature *feature, trial *resourceapi.ResourceSlice) {
	log := klog.FromContext(ctx)
	ctx, cancel := context.WithTimeout(ctx, nodeLimit)
	defer cancel()
	answer, err := p.client.ResourceV1().ResourceSlices().Create(ctx, trial, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	switch {
	case err != nil:
		log.Error(err, "The API server does not tell whether it supports a feature", "without", feature.lost, "featureGate", feature.gate, "retryIn", askAgainUnanswered)
		feature.askAgain = time.Now().Add(askAgainUnanswered)
	case !feature.has(answer.Spec.Devices, answer.Spec.SharedCounters):
		log.Info("This cluster lacks a feature: use Kubernetes 1.36 or newer, or enable the feature gate", "without", feature.lost, "featureGate", feature.gate, "lookAgainIn", askAgainRefused)
		feature.askAgain = time.Now().Add(askAgainRefused)
	default:
		feature.kept = true
	}
}
