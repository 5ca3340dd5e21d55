package nvml

import (
	"errors"
	"fmt"
	"time"

	"github.com/mica-gpu/mica/pkg/gpu"
)

// ErrRetraining means that a GPU is not linked yet as it was before MIG was enabled on it.
var ErrRetraining = errors.New("see that the fabric manager runs on this node (systemctl status nvidia-fabricmanager); kubelet tries again")

// retrainLimit is how long links may take to come back. The kernel driver repeats its probe of the
// fabric every 5 s (GPU_FABRIC_PROBE_DEFAULT_DELAY in gpu_fabric_probe.h of
// NVIDIA/open-gpu-kernel-modules); what is away for longer is not coming back by itself.
const retrainLimit = 30 * time.Second

// Linked is ErrRetraining after SetMIG has disabled MIG, until the GPU's NVLinks and its state
// in the fabric are back: the kernel driver returns before, and CUDA does not start on the GPU until then. Links
// that stay away for 30 s count as broken; a fabric that does not come back is never passed over. Of a GPU
// on which MIG was not disabled here nothing is asked.
func (l *Library) Linked(uuid string) error {
	return l.on(uuid, func(d *device) error {
		since := d.disabledAt.Load()
		if since == nil {
			return nil
		}
		fabric, err := d.readFabric()
		if err != nil {
			return err
		}
		now, err := d.readLinks()
		if err != nil {
			return err
		}
		switch {
		case fabric != gpu.FabricReady:
			return fmt.Errorf("the state of %s in the NVLink fabric is %s, %s after MIG was disabled: %w", uuid, fabric, time.Since(*since).Round(time.Second), ErrRetraining)
		case d.wasLinked.Load() && !now.link.Any() && time.Since(*since) < retrainLimit:
			return fmt.Errorf("the NVLinks of %s are down, %s after MIG was disabled: %w", uuid, time.Since(*since).Round(time.Second), ErrRetraining)
		}
		d.disabledAt.CompareAndSwap(since, nil)
		return nil
	})
}

// retraining reports whether links that are down may be so because MIG was disabled a short time ago.
func (d *device) retraining() bool {
	since := d.disabledAt.Load()
	return since != nil && time.Since(*since) < retrainLimit
}

// keepLinks has a GPU keep its group while MIG is enabled, and while its links are trained after that: they
// come back, and each change of the group would be two updates of the node's slices.
func (d *device) keepLinks(now, before *sight) {
	if len(now.links.states) == 0 {
		return
	}
	retraining := d.retraining()
	if linked := now.links.link.Any(); linked || now.mode == gpu.MIGDisabled && !retraining {
		d.wasLinked.Store(linked)
	}
	if now.links.link.Any() && now.fabric == gpu.FabricReady {
		return
	}
	if before != nil && (retraining || now.mode == gpu.MIGEnabled) {
		now.links.link = before.links.link
	}
	if before != nil && retraining {
		now.fabric = before.fabric
	}
	now.settled = now.settled && !retraining // so that the next look sees what has come back
}
