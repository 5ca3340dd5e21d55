package view

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mica-gpu/mica/api/v1alpha1"
	"github.com/mica-gpu/mica/pkg/scaleout/fit"
)

// podsByUse are the pods that count for the planner.
type podsByUse struct {
	// pending ask for devices and have no node.
	pending []*corev1.Pod
	// bound are the pods that have not ended, by node.
	bound map[string][]*corev1.Pod
	// placeholders take no room from pods, because they are deleted once their node exists.
	placeholders []*corev1.Pod
}

func sortPods(pods []corev1.Pod, extended map[corev1.ResourceName]bool, placeholders string) podsByUse {
	use := podsByUse{bound: map[string][]*corev1.Pod{}}
	for i := range pods {
		pod := &pods[i]
		switch {
		case IsPlaceholder(pod, placeholders):
			use.placeholders = append(use.placeholders, pod)
		case fit.Ended(pod):
		case pod.Spec.NodeName != "":
			use.bound[pod.Spec.NodeName] = append(use.bound[pod.Spec.NodeName], pod)
		case pod.DeletionTimestamp == nil && asksForDevices(pod, extended):
			use.pending = append(use.pending, pod)
		}
	}
	return use
}

// IsPlaceholder reports whether the controller has created the pod, in its namespace of placeholders; an empty
// namespace stands for any. Any user can write the label and the owner, and so stop the growth of a group. Only the
// controller can create pods in the namespace. The chart's policy refuses label and owner elsewhere.
func IsPlaceholder(pod *corev1.Pod, namespace string) bool {
	if pod.Labels[v1alpha1.LabelNodeGroup] == "" || namespace != "" && pod.Namespace != namespace {
		return false
	}
	owner := metav1.GetControllerOf(pod)
	return owner != nil && owner.Kind == "GPUNodeGroup" && owner.APIVersion == v1alpha1.GroupVersion.String()
}

// extendedResources are the extended resources that classes provide.
func extendedResources(classes []resourceapi.DeviceClass) map[corev1.ResourceName]bool {
	names := map[corev1.ResourceName]bool{}
	for i := range classes {
		if name := classes[i].Spec.ExtendedResourceName; name != nil {
			names[corev1.ResourceName(*name)] = true
		}
	}
	return names
}

func asksForDevices(pod *corev1.Pod, extended map[corev1.ResourceName]bool) bool {
	if len(pod.Spec.ResourceClaims) > 0 {
		return true
	}
	for _, containers := range [][]corev1.Container{pod.Spec.Containers, pod.Spec.InitContainers} {
		for i := range containers {
			for name, quantity := range containers[i].Resources.Requests {
				if quantity.Sign() > 0 && (extended[name] || strings.HasPrefix(string(name), resourceapi.ResourceDeviceClassPrefix)) {
					return true
				}
			}
		}
	}
	return false
}
