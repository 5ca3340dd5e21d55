package offer

import (
	"context"

	"k8s.io/klog/v2"

	"github.com/mica-gpu/mica/pkg/catalog"
	"github.com/mica-gpu/mica/pkg/gpu"
)

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
