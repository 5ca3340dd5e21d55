package nvml

import (
	"errors"
	"fmt"
	"time"

	"github.com/mica-gpu/mica/pkg/gpu"
)

// ErrRetraining means that a GPU's NVLinks are not back yet after MIG was disabled.
var ErrRetraining = errors.New("see that the fabric manager runs on this node (systemctl status nvidia-fabricmanager); kubelet tries again")

// retrainLimit is how long links may take to come back. The kernel driver repeats its fabric probe
// every 5 s (GPU_FABRIC_PROBE_DEFAULT_DELAY in gpu_fabric_probe.h of NVIDIA/open-gpu-kernel-modules).
const retrainLimit = 30 * time.Second

// Linked returns ErrRetraining after SetMIG has disabled MIG, until the GPU's NVLinks and fabric state
// are back: the kernel driver returns earlier, and CUDA does not start until then. Links that are down
// for 30 s count as broken; the fabric state is always required. It makes no call for a GPU on which
// this process did not disable MIG.
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

// retraining reports whether links may be down because MIG was disabled a short time ago.
func (d *device) retraining() bool {
	since := d.disabledAt.Load()
	return since != nil && time.Since(*since) < retrainLimit
}

// keepLinks keeps a GPU's group while MIG is enabled and while its links retrain: they come back, and
// each change of the group would update the node's slices twice.
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
