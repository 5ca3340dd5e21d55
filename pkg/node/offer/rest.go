package offer

import (
	"context"
	"slices"

	"k8s.io/klog/v2"

	"github.com/mica-gpu/mica/pkg/gpu"
)

// rest lets go of the NVIDIA driver until the next look or claim. While NVML is open, nobody can
// unload the driver, reset a GPU or change its MIG mode where that takes a reset.
func (o *Offer) rest(ctx context.Context) {
	if o.occupied || !o.restful.Load() {
		return
	}
	if _, err := o.hardware.GPUs.Rest(); err != nil {
		klog.FromContext(ctx).Error(err, "The NVIDIA driver stays in use while no claim has a GPU")
	}
}

// learnWhetherToRest decides it once for GPUs that were read. Where partitions are made on
// demand, claims would wait for NVML to open. Where the driver does not keep GPUs that nobody
// uses, every look would have to wake them up, and a time-slice that is set would be lost.
func (o *Offer) learnWhetherToRest(ctx context.Context) {
	if slices.ContainsFunc(o.seen.GPUs, func(g gpu.GPU) bool { return g.MIGSwitchable || g.MIG == gpu.MIGEnabled }) {
		o.restful.Store(false)
		return
	}
	persistent, err := o.hardware.GPUs.Persistent()
	if err != nil {
		klog.FromContext(ctx).V(2).Info("The NVIDIA driver does not say whether it keeps idle GPUs", "reason", err.Error())
	}
	o.restful.Store(persistent && err == nil)
}
