package driver

import (
	"context"
	"slices"
	"time"

	"k8s.io/klog/v2"

	"github.com/mica-gpu/mica/pkg/catalog"
	"github.com/mica-gpu/mica/pkg/gpu"
)

// lookInterval is how long what somebody else does to MIG may go unseen. A claim
// that meets it in between is told by NVML.
const lookInterval = 10 * time.Second

// watchInstances keeps the offer right while somebody else switches MIG or
// makes and destroys instances, which NVML announces to nobody.
func (d *Driver) watchInstances(ctx context.Context) error {
	if !slices.ContainsFunc(d.seen.GPUs, func(g gpu.GPU) bool { return g.MIG != gpu.MIGUnsupported }) {
		return nil
	}
	log := klog.FromContext(ctx)
	said := ""
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(lookInterval):
		}
		err := d.offer(ctx, d.hardware, d.lookAgain)
		switch {
		case err == nil:
			said = ""
		case err.Error() != said && ctx.Err() == nil:
			said = err.Error()
			log.Error(err, "The MIG instances cannot be read; what was seen last stays offered")
		}
	}
}

// lookAgain is Discover of a driver that has been read, less what cannot change.
func (d *Driver) lookAgain() (gpu.Node, []error, error) {
	node := d.seen
	gpus, err := d.hardware.Refresh(node.GPUs)
	node.GPUs = gpus
	return node, nil, err
}

// identities are what a change of the shapes changes: their names, and which
// instances those are that somebody else has made.
func identities(shapes []gpu.Shape) []string {
	all := make([]string, 0, len(shapes))
	for _, shape := range shapes {
		identity := shape.Name()
		if static, ok := shape.(gpu.Static); ok {
			identity += " " + static.Device.UUID
		}
		all = append(all, identity)
	}
	return all
}

// sayPredictions tells once a product in what its GPUs are not as predicted.
func sayPredictions(ctx context.Context, gpus []gpu.GPU) {
	log := klog.FromContext(ctx)
	said := map[string]bool{}
	for _, g := range gpus {
		if said[g.ProductName] || g.MIG == gpu.MIGUnsupported {
			continue
		}
		said[g.ProductName] = true
		if len(g.Profiles) == 0 {
			log.Info("The NVIDIA driver does not list MIG profiles while MIG is disabled; the GPU is only offered whole until it is enabled", "product", g.ProductName, "gpu", g.UUID)
			continue
		}
		if differences := catalog.Differences(g.ProductName, g.Profiles); len(differences) > 0 {
			log.Info("The MIG profiles of this board are not those in the catalogue; what NVML lists is offered", "product", g.ProductName, "gpu", g.UUID, "differences", differences)
		}
	}
}

// sayObstacles tells of instances that are in the way and not for claims.
func sayObstacles(ctx context.Context, gpus []gpu.GPU) {
	for _, g := range gpus {
		if _, obstacles := g.Statics(); len(obstacles) > 0 {
			klog.FromContext(ctx).Info("MIG instances that do not have exactly one compute instance of full size, or whose profile NVML does not list, are not offered; nor is their part of the GPU",
				"gpu", g.UUID, "instances", obstacles)
		}
	}
}
