package driver

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"k8s.io/klog/v2"

	"github.com/mica-gpu/mica/pkg/catalog"
	"github.com/mica-gpu/mica/pkg/gpu"
)

// lookInterval is how long what somebody else does to MIG may go unseen. A claim
// that meets it in between is told by NVML.
const lookInterval = 10 * time.Second

// partitionable tells whether somebody may do something to MIG here.
func (d *Driver) partitionable() bool {
	return slices.ContainsFunc(d.seen.GPUs, func(g gpu.GPU) bool { return g.MIG != gpu.MIGUnsupported })
}

// offerChanges reads what can change of GPUs that have been read: the modes and
// instances of MIG, of which NVML tells nobody.
func (d *Driver) offerChanges(ctx context.Context, hardware Hardware) error {
	var failed error
	err := d.offer(ctx, hardware, func() (gpu.Node, error) {
		node := d.seen
		node.GPUs, failed = hardware.Refresh(d.seen.GPUs)
		d.seen.GPUs = slices.Clone(node.GPUs)
		return node, nil
	})
	return errors.Join(err, failed)
}

// identities are what a change of the offer changes: the names of its shapes, how
// they are shared, which instances those are that somebody else has made, and which
// are withdrawn.
func identities(offer nodeOffer) []string {
	all := make([]string, 0, len(offer.shapes))
	for _, shape := range offer.shapes {
		all = append(all, fmt.Sprintf("%s %s %t %+v %s", shape.Name(), shape.Physical().UUID, offer.withdrawn[shape.Name()], shape.Form(), shape.UUID()))
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
