package offer

import (
	"context"
	"slices"

	"k8s.io/klog/v2"

	"github.com/mica-gpu/mica/pkg/gpu"
)

// restInterval is the time between looks that open NVML: to read all handles takes some five calls per
// GPU, a look at an unchanged node two.
const restInterval = 3 * lookInterval

// rest closes the NVIDIA driver until the next look or claim, and reports whether it did. While NVML
// is open, no administrator can unload the driver, reset a GPU, or change a MIG mode that needs a
// reset.
func (o *Offer) rest(ctx context.Context) bool {
	if o.occupied {
		return false
	}
	o.restful.Store(o.mayRest(ctx))
	if !o.restful.Load() {
		return false
	}
	resting, err := o.hardware.GPUs.Rest()
	if err != nil {
		klog.FromContext(ctx).Error(err, "The NVIDIA driver stays in use while no claim has a GPU")
	}
	return resting
}

// mayRest decides each time, because nvidia-persistenced may start after the plugin and end before it.
// The driver stays open if partitions are made on demand, because claims would wait for NVML to open.
// It also stays open if the driver does not keep idle GPUs initialized: every look would take seconds
// to initialize them, and lose a configured time-slice.
func (o *Offer) mayRest(ctx context.Context) bool {
	if slices.ContainsFunc(o.seen.GPUs, func(g gpu.GPU) bool { return g.MIGSwitchable || g.MIG == gpu.MIGEnabled }) {
		return false
	}
	persistent, err := o.hardware.GPUs.Persistent()
	if err != nil {
		klog.FromContext(ctx).V(4).Info("Cannot read whether the NVIDIA driver keeps idle GPUs initialized", "reason", err.Error())
	}
	return persistent && err == nil
}
