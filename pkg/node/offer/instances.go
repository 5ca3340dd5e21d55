package offer

import (
	"context"
	"fmt"
	"strings"

	"k8s.io/klog/v2"

	"github.com/mica-gpu/mica/pkg/catalog"
	"github.com/mica-gpu/mica/pkg/gpu"
	"github.com/mica-gpu/mica/pkg/slice"
)

// logDifferences logs, once per product, how its GPUs differ from the catalogue.
func logDifferences(ctx context.Context, gpus []gpu.GPU) {
	log := klog.FromContext(ctx)
	logged := map[string]bool{}
	for _, g := range gpus {
		if logged[g.ProductName] || g.MIG == gpu.MIGUnsupported {
			continue
		}
		logged[g.ProductName] = true
		if len(g.Profiles) == 0 {
			log.Info("The NVIDIA driver does not list MIG profiles while MIG is disabled; the GPU is only offered whole until it is enabled", "product", g.ProductName, "gpu", g.UUID)
			continue
		}
		if differences := catalog.Differences(g.ProductName, g.Profiles); len(differences) > 0 {
			log.Info("The MIG profiles of this board are not those in the catalogue; what NVML lists is offered", "product", g.ProductName, "gpu", g.UUID, "differences", differences)
		}
	}
}

// Reasons of Events on the node.
const (
	// ReasonUnreadable: a GPU cannot be read, or cannot be offered as it is.
	ReasonUnreadable = "GPUUnreadable"
	// ReasonFabricPending: a GPU waits for the fabric manager.
	ReasonFabricPending = "NVLinkFabricPending"
)

// reportFabric reports changes in which GPUs get no claims until the fabric manager has finished.
func (o *Offer) reportFabric(ctx context.Context, gpus []gpu.GPU) {
	var waiting []string
	for _, g := range gpus {
		if g.Fabric != gpu.FabricReady {
			waiting = append(waiting, fmt.Sprintf("gpu-%d (%s)", g.Minor, g.Fabric))
		}
	}
	text := strings.Join(waiting, ", ")
	if text == o.fabric {
		return
	}
	o.fabric = text
	if text == "" {
		klog.FromContext(ctx).Info("The fabric manager has finished with all GPUs")
		return
	}
	klog.FromContext(ctx).Info("GPUs are tainted until the fabric manager has finished", "taint", slice.TaintFabric, "gpus", text)
	o.Events.WarnNode(ReasonFabricPending, "CUDA does not start on "+text+" yet, which get no claims until the NVLink fabric is complete: see that the fabric manager runs on this node (systemctl status nvidia-fabricmanager)")
}

// logObstacles logs foreign instances that cannot be offered.
func logObstacles(ctx context.Context, gpus []gpu.GPU) {
	for _, g := range gpus {
		if _, obstacles := g.Statics(); len(obstacles) > 0 {
			klog.FromContext(ctx).Info("MIG instances that do not have exactly one compute instance of full size, or whose profile NVML does not list, are not offered; nor is their part of the GPU",
				"gpu", g.UUID, "instances", obstacles)
		}
	}
}
