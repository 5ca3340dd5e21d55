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

// An API server that does not keep a feature may be replaced by one that does.
const askAgainUnanswered, askAgainRefused = 5 * time.Second, 5 * time.Minute

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
	// kept and dropped are what the API server said, and both false until it has said
	// anything; unless it keeps the feature, it is asked again at askAgain.
	kept, dropped bool
	askAgain      time.Time
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
			// A device is better offered too long than not known to be in use.
			lost: "devices with a taint, such as those that a GPUPolicy does not offer any more, go on being given to claims", gate: "DRADeviceTaints, on since Kubernetes 1.36",
			has: func(devices []resourceapi.Device, _ []resourceapi.CounterSet) bool {
				return slices.ContainsFunc(devices, func(d resourceapi.Device) bool { return len(d.Taints) > 0 })
			},
			without: slice.WithoutTaints,
		},
	}
}

// publishable is what the API server can keep of the resources, and when to ask it
// again for the rest, zero for never. It is nil as long as the API server does not
// tell: without counters, a GPU would seem free of which claims have parts.
func (p *Publisher) publishable(ctx context.Context, node types.UID, resources *resourceslice.DriverResources) (kept *resourceslice.DriverResources, askAgain time.Time) {
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
			if !time.Now().Before(feature.askAgain) {
				p.ask(ctx, feature, p.firstSlice(node, name, pool, index))
			}
			if feature.kept {
				continue
			}
			if !feature.dropped {
				return nil, feature.askAgain
			}
			if askAgain.IsZero() || feature.askAgain.Before(askAgain) {
				askAgain = feature.askAgain
			}
			pool = feature.without(pool)
		}
		kept.Pools[name] = pool
	}
	return kept, askAgain
}

// ask lets the API server try a slice that has the feature. One that refuses the
// trial would refuse the slice.
func (p *Publisher) ask(ctx context.Context, feature *feature, trial *resourceapi.ResourceSlice) {
	log := klog.FromContext(ctx)
	ctx, cancel := context.WithTimeout(ctx, nodeLimit)
	defer cancel()
	answer, err := p.client.ResourceV1().ResourceSlices().Create(ctx, trial, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	refused := apierrors.IsInvalid(err) || apierrors.IsBadRequest(err)
	switch {
	case err != nil && !refused:
		log.Error(err, "The API server does not tell whether it supports a feature; what it has of this node stays so until it does", "featureGate", feature.gate, "retryIn", askAgainUnanswered)
		feature.askAgain = time.Now().Add(askAgainUnanswered)
	case refused, !feature.has(answer.Spec.Devices, answer.Spec.SharedCounters):
		log.Info("This cluster lacks a feature: use Kubernetes 1.36 or newer, or enable the feature gate", "without", feature.lost, "featureGate", feature.gate, "lookAgainIn", askAgainRefused, "err", err)
		feature.dropped, feature.askAgain = true, time.Now().Add(askAgainRefused)
	default:
		feature.kept, feature.dropped = true, false
	}
}
