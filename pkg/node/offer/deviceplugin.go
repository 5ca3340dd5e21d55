package offer

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
)

// ReasonDevicePlugin is that of the event on a node whose GPUs a device plugin gives out.
const ReasonDevicePlugin = "DevicePluginOwnsGPUs"

// isDevicePlugins reports whether a resource in a node's status, or of a container, stands for
// GPUs that NVIDIA's device plugin gives out. What DRA offers under such a name, with
// extendedResourceName of a DeviceClass, is in no node's status (KEP-5004), and no device of a
// container's in kubelet's eyes.
func isDevicePlugins(name string) bool {
	return name == "nvidia.com/gpu" || name == "nvidia.com/gpu.shared" || strings.HasPrefix(name, "nvidia.com/mig-")
}

// devicePluginHas is what a device plugin gives out on a node. A device plugin that does
// not answer leaves a capacity without anything allocatable, and pods that still have it.
func devicePluginHas(node *corev1.Node) corev1.ResourceList {
	has := corev1.ResourceList{}
	for _, resources := range []corev1.ResourceList{node.Status.Allocatable, node.Status.Capacity} {
		for name, quantity := range resources {
			if isDevicePlugins(string(name)) && quantity.Sign() > 0 {
				has[name] = quantity
			}
		}
	}
	return has
}

// withheld says why the node may offer none of its GPUs now; nil if it may.
func (o *Offer) withheld(node *corev1.Node) error {
	if node == nil || o.IgnoreDevicePlugin {
		return nil
	}
	has := devicePluginHas(node)
	if len(has) == 0 {
		return nil
	}
	var resources []string
	for _, name := range slices.Sorted(maps.Keys(has)) {
		quantity := has[name]
		resources = append(resources, fmt.Sprintf("%s: %s", name, quantity.String()))
	}
	return fmt.Errorf("a device plugin gives out this node's GPUs (its status has %s), so Mica does not: remove the device plugin from the node, or set kubeletPlugin.ignoreDevicePlugin=true if none is there", strings.Join(resources, ", "))
}

// sayWithheld makes known once that the node's GPUs are withheld, or are not any more.
func (o *Offer) sayWithheld(ctx context.Context, reason error) {
	said := ""
	if reason != nil {
		said = reason.Error()
	}
	if said == o.saidWithheld {
		return
	}
	o.saidWithheld = said
	switch {
	case reason == nil:
		klog.FromContext(ctx).Info("Nothing keeps this node from offering its GPUs any more")
	case errors.Is(reason, errNoneReadable), said == o.saidTaken: // the node has another Event of that
		klog.FromContext(ctx).Error(reason, "This node offers no GPU, and looks again every minute")
	default:
		klog.FromContext(ctx).Error(reason, "This node offers no GPU, and looks again when its status changes")
		o.Events.WarnNode(ReasonDevicePlugin, said)
	}
}
