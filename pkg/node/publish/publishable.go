package publish

import (
	"context"
	"slices"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/klog/v2"

	"github.com/mica-gpu/mica/pkg/slice"
)

// An API server without a feature may be replaced by one with it.
const retryUnanswered, retryRefused = 5 * time.Second, 5 * time.Minute

// feature is a part of slices that an API server drops silently if its feature gate is off.
type feature struct {
	// lost is the consequence of its absence, and gate its feature gate, for the log.
	lost, gate string
	// has reports whether a slice uses it.
	has func([]resourceapi.Device, []resourceapi.CounterSet) bool
	// without returns the pool without the devices or fields that need it.
	without func(resourceslice.Pool) resourceslice.Pool
	// kept and dropped are the result of the last trial, and both false before the first.
	// Unless kept, the next trial is at retryAt.
	kept, dropped bool
	retryAt       time.Time
}

// features are in the order in which they are given up.
func features() []*feature {
	return []*feature{
		{
			// The scheduler would give a GPU to one claim and its partitions to others.
			lost: "MIG partitions and shares of GPUs are not offered", gate: "DRAPartitionableDevices, on since Kubernetes 1.36",
			has:     func(_ []resourceapi.Device, counters []resourceapi.CounterSet) bool { return len(counters) > 0 },
			without: slice.WithoutCounters,
		}, {
			// One claim would get all shares.
			lost: "shares of GPUs are not offered", gate: "DRAConsumableCapacity, on since Kubernetes 1.36",
			has: func(devices []resourceapi.Device, _ []resourceapi.CounterSet) bool {
				return slices.ContainsFunc(devices, func(d resourceapi.Device) bool { return d.AllowMultipleAllocations != nil })
			},
			without: slice.WithoutShares,
		}, {
			// To leave out the device would hide that a claim uses it.
			lost: "devices with a taint, such as those that a GPUPolicy does not offer any more, go on being given to claims", gate: "DRADeviceTaints, on since Kubernetes 1.36",
			has: func(devices []resourceapi.Device, _ []resourceapi.CounterSet) bool {
				return slices.ContainsFunc(devices, func(d resourceapi.Device) bool { return len(d.Taints) > 0 })
			},
			without: slice.WithoutTaints,
		},
	}
}

// publishable returns the resources without the features that the API server would drop, and
// when to try these again, zero for never. It returns nil until all trials are answered: without
// counters, a GPU with partitions in use would seem free.
func (p *Publisher) publishable(ctx context.Context, node types.UID, resources *resourceslice.DriverResources) (kept *resourceslice.DriverResources, retryAt time.Time) {
	if p.doubted.Swap(false) {
		for _, feature := range p.features {
			feature.kept = false
		}
	}
	kept = &resourceslice.DriverResources{Pools: map[string]resourceslice.Pool{}}
	for name, pool := range resources.Pools {
		for _, feature := range p.features {
			index := slices.IndexFunc(pool.Slices, func(s resourceslice.Slice) bool { return feature.has(s.Devices, s.SharedCounters) })
			if index < 0 || feature.kept {
				continue
			}
			if !time.Now().Before(feature.retryAt) {
				p.try(ctx, feature, p.firstSlice(node, name, pool, index))
			}
			if feature.kept {
				continue
			}
			if !feature.dropped {
				return nil, feature.retryAt
			}
			if retryAt.IsZero() || feature.retryAt.Before(retryAt) {
				retryAt = feature.retryAt
			}
			pool = feature.without(pool)
		}
		kept.Pools[name] = pool
	}
	return kept, retryAt
}

// try sends a slice with the feature as a dry run. An API server that refuses it would refuse the
// slice, too.
func (p *Publisher) try(ctx context.Context, feature *feature, trial *resourceapi.ResourceSlice) {
	log := klog.FromContext(ctx)
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	answer, err := p.client.ResourceV1().ResourceSlices().Create(ctx, trial, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	refused := apierrors.IsInvalid(err) || apierrors.IsBadRequest(err)
	switch {
	case err != nil && !refused:
		log.Error(err, "Cannot find out whether the API server supports a feature; keeping the published slices", "featureGate", feature.gate, "retryIn", retryUnanswered)
		feature.retryAt = time.Now().Add(retryUnanswered)
	case refused, !feature.has(answer.Spec.Devices, answer.Spec.SharedCounters):
		log.Info("This cluster lacks a feature: use Kubernetes 1.36 or newer, or enable the feature gate", "without", feature.lost, "featureGate", feature.gate, "retryIn", retryRefused, "err", err)
		feature.dropped, feature.retryAt = true, time.Now().Add(retryRefused)
	default:
		feature.kept, feature.dropped = true, false
	}
}
