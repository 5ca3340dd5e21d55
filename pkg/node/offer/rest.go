package offer

import (
	"context"
	"slices"

	"k8s.io/klog/v2"

	"github.com/mica-gpu/mica/pkg/gpu"
)

// restInterval is between two looks that have to open NVML: to learn all handles anew takes some
// five calls per GPU, where a look at an unchanged node takes two.
const restInterval = 3 * lookInterval

// rest lets go of the NVIDIA driver until the next look or claim, and tells whether it did. While
// NVML is open, nobody can unload the driver, reset a GPU or change its MIG mode where that takes
// a reset.
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

// mayRest decides it anew each time, because nvidia-persistenced may start after the plugin, and
// end before it. Where partitions are made on demand, claims would wait for NVML to open. Where
// the driver does not keep GPUs that nobody uses, every look would initialise them, which takes
// seconds, and a time-slice that is set would be lost.
func (o *Offer) mayRest(ctx context.Context) bool {
	if slices.ContainsFunc(o.seen.GPUs, func(g gpu.GPU) bool { return g.MIGSwitchable || g.MIG == gpu.MIGEnabled }) {
		return false
	}
	persistent, err := o.hardware.GPUs.Persistent()
	if err != nil {
		klog.FromContext(ctx).V(4).Info("The NVIDIA driver does not say whether it keeps idle GPUs", "reason", err.Error())
	}
	return persistent && err == nil
}
