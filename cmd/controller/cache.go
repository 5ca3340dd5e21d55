package main

import (
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/mica-gpu/mica/pkg/devices"
)

// cacheOptions drop the parts of objects that no decision depends on, such as pods' environment and volumes.
func cacheOptions(f *flags) cache.Options {
	return cache.Options{
		DefaultTransform: cache.TransformStripManagedFields(),
		ByObject: map[client.Object]cache.ByObject{
			&corev1.Pod{}:  {Transform: stripPod},
			&corev1.Node{}: {Transform: stripNode},
			// Thousands of nodes have the same devices, which would take most of the memory.
			&resourceapi.ResourceSlice{}: {Transform: compactSlices(devices.NewCompactor())},
			&appsv1.DaemonSet{}:          {Transform: stripDaemonSet},
			&appsv1.Deployment{}:         {Transform: stripDeployment},
			&appsv1.StatefulSet{}:        {Transform: stripStatefulSet},
			&appsv1.ReplicaSet{}:         {Transform: stripReplicaSet},
			&batchv1.Job{}:               {Transform: stripJob},
			// Only Cluster Autoscaler's Events about pods.
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

// stripPodSpec keeps the fields that the scheduler reads.
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

func compactSlices(c *devices.Compactor) toolscache.TransformFunc {
	return func(object any) (any, error) {
		if slice, is := object.(*resourceapi.ResourceSlice); is {
			slice.ManagedFields, slice.OwnerReferences = nil, nil
			c.Compact(slice)
		}
		return object, nil
	}
}

func stripDaemonSet(object any) (any, error) {
	if set, is := object.(*appsv1.DaemonSet); is {
		set.ManagedFields = nil
		stripPodSpec(&set.Spec.Template.Spec)
	}
	return object, nil
}

func stripDeployment(object any) (any, error) {
	if deployment, is := object.(*appsv1.Deployment); is {
		stripWorkload(deployment, &deployment.Spec.Template)
		deployment.Status = appsv1.DeploymentStatus{}
	}
	return object, nil
}

func stripStatefulSet(object any) (any, error) {
	if set, is := object.(*appsv1.StatefulSet); is {
		stripWorkload(set, &set.Spec.Template)
		set.Spec.VolumeClaimTemplates = nil
		set.Status = appsv1.StatefulSetStatus{}
	}
	return object, nil
}

// stripReplicaSet drops the spec of ReplicaSets that a Deployment owns: each Deployment has ten.
func stripReplicaSet(object any) (any, error) {
	if set, is := object.(*appsv1.ReplicaSet); is {
		stripWorkload(set, &set.Spec.Template)
		if metav1.GetControllerOfNoCopy(set) != nil {
			set.Spec = appsv1.ReplicaSetSpec{}
		}
		set.Status = appsv1.ReplicaSetStatus{}
	}
	return object, nil
}

func stripJob(object any) (any, error) {
	if job, is := object.(*batchv1.Job); is {
		stripWorkload(job, &job.Spec.Template)
		job.Status = batchv1.JobStatus{}
	}
	return object, nil
}

// stripWorkload keeps the pod template and the selector. It drops annotations: kubectl keeps a copy of the object there.
func stripWorkload(object metav1.Object, template *corev1.PodTemplateSpec) {
	object.SetManagedFields(nil)
	object.SetAnnotations(nil)
	stripPodSpec(&template.Spec)
}
