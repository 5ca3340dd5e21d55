package main

import (
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// cacheOptions keep of each object what a decision depends on: a cluster has ten thousand
// pods, whose environment and volumes matter to nobody here.
func cacheOptions(f *flags) cache.Options {
	return cache.Options{
		DefaultTransform: cache.TransformStripManagedFields(),
		ByObject: map[client.Object]cache.ByObject{
			&corev1.Pod{}:       {Transform: stripPod},
			&corev1.Node{}:      {Transform: stripNode},
			&appsv1.DaemonSet{}: {Transform: stripDaemonSet},
			// Only what Cluster Autoscaler says of pods: a cluster has very many Events.
			&corev1.Event{}: {Field: fields.Set{"source": "cluster-autoscaler", "involvedObject.kind": "Pod"}.AsSelector()},
			&corev1.ConfigMap{}: {Namespaces: map[string]cache.Config{
				f.autoscalerNamespace: {FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, f.autoscalerName)},
			}},
		},
	}
}

func stripPod(object any) (any, error) {
	pod, is := object.(*corev1.Pod)
	if !is {
		return object, nil
	}
	pod.ManagedFields = nil
	stripPodSpec(&pod.Spec)
	if pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
		pod.Spec = corev1.PodSpec{NodeName: pod.Spec.NodeName, Containers: []corev1.Container{}}
	}
	pod.Status.ContainerStatuses = nil
	pod.Status.InitContainerStatuses = nil
	pod.Status.EphemeralContainerStatuses = nil
	return pod, nil
}

// stripPodSpec keeps what the scheduler looks at.
func stripPodSpec(spec *corev1.PodSpec) {
	for _, containers := range [][]corev1.Container{spec.InitContainers, spec.Containers} {
		for i := range containers {
			c := &containers[i]
			containers[i] = corev1.Container{
				Name:          c.Name,
				Ports:         c.Ports,
				Resources:     c.Resources,
				RestartPolicy: c.RestartPolicy,
			}
		}
	}
	spec.EphemeralContainers = nil
	spec.Volumes = nil
	spec.HostAliases = nil
	spec.ImagePullSecrets = nil
	spec.DNSConfig = nil
	spec.SecurityContext = nil
}

func stripNode(object any) (any, error) {
	if node, is := object.(*corev1.Node); is {
		node.ManagedFields = nil
		node.Status.Images = nil
		node.Status.VolumesInUse, node.Status.VolumesAttached = nil, nil
	}
	return object, nil
}

func stripDaemonSet(object any) (any, error) {
	if set, is := object.(*appsv1.DaemonSet); is {
		set.ManagedFields = nil
		stripPodSpec(&set.Spec.Template.Spec)
	}
	return object, nil
}
