package workload

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Fields of the cache's indexes. Pods that have ended or are being deleted have none.
const (
	// fieldController is the UID of the controller of a pod or ReplicaSet.
	fieldController = "mica.gpu/controller"
	// fieldClaim is the name of a claim in a pod's spec.
	fieldClaim = "mica.gpu/claim"
	// fieldTemplate is the name of a claim template, while the pod has no node.
	fieldTemplate = "mica.gpu/template"
	// fieldResource is an extended resource of a pod without a node, or of a DeviceClass.
	fieldResource = "mica.gpu/resource"
)

// addFields must be called before the cache starts.
func addFields(ctx context.Context, indexer client.FieldIndexer) error {
	for _, field := range []struct {
		object client.Object
		name   string
		values client.IndexerFunc
	}{
		{&corev1.Pod{}, fieldController, ofPod(func(pod *corev1.Pod) []string { return controllers(pod) })},
		{&corev1.Pod{}, fieldClaim, ofPod(claimNames)},
		{&corev1.Pod{}, fieldTemplate, ofPod(templateNames)},
		{&corev1.Pod{}, fieldResource, ofPod(extendedResources)},
		{&appsv1.ReplicaSet{}, fieldController, controllers},
		{&resourceapi.DeviceClass{}, fieldResource, classResources},
	} {
		if err := indexer.IndexField(ctx, field.object, field.name, field.values); err != nil {
			return fmt.Errorf("index %T by %s: %w", field.object, field.name, err)
		}
	}
	return nil
}

func ofPod(values func(*corev1.Pod) []string) client.IndexerFunc {
	return func(object client.Object) []string {
		if pod, is := object.(*corev1.Pod); is && !gone(pod) {
			return values(pod)
		}
		return nil
	}
}

func controllers(object client.Object) []string {
	if owner := metav1.GetControllerOfNoCopy(object); owner != nil {
		return []string{string(owner.UID)}
	}
	return nil
}

func claimNames(pod *corev1.Pod) []string {
	var names []string
	for i := range pod.Spec.ResourceClaims {
		if name := pod.Spec.ResourceClaims[i].ResourceClaimName; name != nil {
			names = append(names, *name)
		}
	}
	for _, status := range pod.Status.ResourceClaimStatuses {
		if status.ResourceClaimName != nil {
			names = append(names, *status.ResourceClaimName)
		}
	}
	return names
}

func templateNames(pod *corev1.Pod) []string {
	if pod.Spec.NodeName != "" {
		return nil
	}
	var names []string
	for i := range pod.Spec.ResourceClaims {
		if name := pod.Spec.ResourceClaims[i].ResourceClaimTemplateName; name != nil {
			names = append(names, *name)
		}
	}
	return names
}

// extendedResources lists requested resources with a domain; a DeviceClass may stand for them.
func extendedResources(pod *corev1.Pod) []string {
	if pod.Spec.NodeName != "" {
		return nil
	}
	names := map[string]bool{}
	for _, containers := range [][]corev1.Container{pod.Spec.Containers, pod.Spec.InitContainers} {
		for i := range containers {
			for name, quantity := range containers[i].Resources.Requests {
				if strings.Contains(string(name), "/") && quantity.Sign() > 0 {
					names[string(name)] = true
				}
			}
		}
	}
	return slices.Sorted(maps.Keys(names))
}

func classResources(object client.Object) []string {
	if class, is := object.(*resourceapi.DeviceClass); is && class.Spec.ExtendedResourceName != nil {
		return []string{*class.Spec.ExtendedResourceName}
	}
	return nil
}

// gone reports whether a pod has ended or is being deleted.
func gone(pod *corev1.Pod) bool {
	return pod.DeletionTimestamp != nil || pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}
