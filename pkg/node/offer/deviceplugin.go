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

// ReasonDevicePlugin is the reason of the Event on a node whose GPUs a device plugin allocates.
const ReasonDevicePlugin = "DevicePluginOwnsGPUs"

// isDevicePlugins reports whether a resource in a node's status, or of a container, stands for GPUs of
// NVIDIA's device plugin. DRA devices with such a name, by extendedResourceName of a DeviceClass,
// appear in no node's status (KEP-5004) and not among a container's devices in kubelet.
func isDevicePlugins(name string) bool {
	return name == "nvidia.com/gpu" || name == "nvidia.com/gpu.shared" || strings.HasPrefix(name, "nvidia.com/mig-")
}

// devicePluginHas returns what a device plugin allocates on a node. A device plugin that does not
// answer leaves capacity without allocatable, and pods that hold devices.
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

// withheld returns why the node may offer none of its GPUs now, or nil.
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
	return fmt.Errorf("a device plugin allocates this node's GPUs (its status has %s), so Mica does not: remove the device plugin from the node, or set kubeletPlugin.ignoreDevicePlugin=true if none is there", strings.Join(resources, ", "))
}

// reportWithheld logs and sends an Event once when the node's GPUs become withheld, or no longer are.
func (o *Offer) reportWithheld(ctx context.Context, reason error) {
	text := ""
	if reason != nil {
		text = reason.Error()
	}
	if text == o.reportedWithheld {
		return
	}
	o.reportedWithheld = text
	switch {
	case reason == nil:
		klog.FromContext(ctx).Info("This node offers its GPUs again")
	case errors.Is(reason, errNoneReadable), text == o.reportedTaken: // the node has another Event of that
		klog.FromContext(ctx).Error(reason, "This node offers no GPU; checking again every minute")
	default:
		klog.FromContext(ctx).Error(reason, "This node offers no GPU; checking again when its status changes")
		o.Events.WarnNode(ReasonDevicePlugin, text)
	}
}
