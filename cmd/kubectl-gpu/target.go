package main

import (
	"context"
	"fmt"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/mica-gpu/mica/pkg/elastic/workload"
)

// podOf reads what the pods of a workload are made of.
func podOf(ctx context.Context, reader client.Reader, target workload.Ref) (corev1.PodSpec, error) {
	var (
		object client.Object
		pod    *corev1.PodSpec
	)
	switch target.Kind {
	case workload.KindDeployment:
		o := &appsv1.Deployment{}
		object, pod = o, &o.Spec.Template.Spec
	case workload.KindStatefulSet:
		o := &appsv1.StatefulSet{}
		object, pod = o, &o.Spec.Template.Spec
	default:
		o := &appsv1.ReplicaSet{}
		object, pod = o, &o.Spec.Template.Spec
	}
	err := reader.Get(ctx, client.ObjectKey{Namespace: target.Namespace, Name: target.Name}, object)
	switch {
	case apierrors.IsNotFound(err):
		return corev1.PodSpec{}, fmt.Errorf("there is no %s in namespace %s: create it first, or give another namespace with -n", target, target.Namespace)
	case err != nil:
		return corev1.PodSpec{}, fmt.Errorf("read %s in namespace %s: %w", target, target.Namespace, err)
	}
	return *pod, nil
}

// asksForDevices tells whether a pod gets devices by a claim, its own or one that is made for an
// extended resource.
func asksForDevices(ctx context.Context, reader client.Reader, pod corev1.PodSpec) (bool, error) {
	if len(pod.ResourceClaims) > 0 {
		return true, nil
	}
	var classes resourceapi.DeviceClassList
	if err := reader.List(ctx, &classes); err != nil {
		return false, fmt.Errorf("list the device classes, to see whether one stands for a resource of the pods: %w", err)
	}
	extended := map[corev1.ResourceName]bool{}
	for _, class := range classes.Items {
		if class.Spec.ExtendedResourceName != nil {
			extended[corev1.ResourceName(*class.Spec.ExtendedResourceName)] = true
		}
	}
	for _, container := range slices.Concat(pod.InitContainers, pod.Containers) {
		// An extended resource has to have a limit, and no other request.
		for name := range container.Resources.Limits {
			if extended[name] || strings.HasPrefix(string(name), resourceapi.ResourceDeviceClassPrefix) {
				return true, nil
			}
		}
	}
	return false, nil
}
