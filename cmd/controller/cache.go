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
			&corev1.Pod{}:  {Transform: strip(stripPod)},
			&corev1.Node{}: {Transform: strip(stripNode)},
			// Thousands of nodes have the same devices, which would take most of the memory.
			&resourceapi.ResourceSlice{}: {Transform: strip(compactSlices(devices.NewCompactor()))},
			&appsv1.DaemonSet{}:          {Transform: strip(stripDaemonSet)},
			&appsv1.Deployment{}:         {Transform: strip(stripDeployment)},
			&appsv1.StatefulSet{}:        {Transform: strip(stripStatefulSet)},
			&appsv1.ReplicaSet{}:         {Transform: strip(stripReplicaSet)},
			&batchv1.Job{}:               {Transform: strip(stripJob)},
			// Only Cluster Autoscaler's Events about pods.
			&corev1.Event{}: {Field: fields.Set{"source": "cluster-autoscaler", "involvedObject.kind": "Pod"}.AsSelector()},
			&corev1.ConfigMap{}: {Namespaces: map[string]cache.Config{
				f.autoscalerNamespace: {FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, f.autoscalerName)},
			}},
		},
	}
}

// strip makes a transformation of a function that drops parts of an object. Markers of missed deletions pass unchanged.
func strip[T metav1.Object](drop func(T)) toolscache.TransformFunc {
	return func(object any) (any, error) {
		if known, is := object.(T); is {
			known.SetManagedFields(nil)
			drop(known)
		}
		return object, nil
	}
}

func stripPod(pod *corev1.Pod) {
	stripPodSpec(&pod.Spec)
	if pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
		pod.Spec = corev1.PodSpec{NodeName: pod.Spec.NodeName, Containers: []corev1.Container{}}
	}
	pod.Status.ContainerStatuses = nil
	pod.Status.InitContainerStatuses = nil
	pod.Status.EphemeralContainerStatuses = nil
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

func stripNode(node *corev1.Node) {
	node.Status.Images = nil
	node.Status.VolumesInUse, node.Status.VolumesAttached = nil, nil
}

func compactSlices(c *devices.Compactor) func(*resourceapi.ResourceSlice) {
	return func(slice *resourceapi.ResourceSlice) {
		slice.OwnerReferences = nil
		c.Compact(slice)
	}
}

func stripDaemonSet(set *appsv1.DaemonSet) { stripPodSpec(&set.Spec.Template.Spec) }

func stripDeployment(deployment *appsv1.Deployment) {
	stripWorkload(deployment, &deployment.Spec.Template)
	deployment.Status = appsv1.DeploymentStatus{}
}

func stripStatefulSet(set *appsv1.StatefulSet) {
	stripWorkload(set, &set.Spec.Template)
	set.Spec.VolumeClaimTemplates = nil
	set.Status = appsv1.StatefulSetStatus{}
}

// stripReplicaSet drops the spec of ReplicaSets that a Deployment owns: each Deployment has ten.
func stripReplicaSet(set *appsv1.ReplicaSet) {
	stripWorkload(set, &set.Spec.Template)
	if metav1.GetControllerOfNoCopy(set) != nil {
		set.Spec = appsv1.ReplicaSetSpec{}
	}
	set.Status = appsv1.ReplicaSetStatus{}
}

func stripJob(job *batchv1.Job) {
	stripWorkload(job, &job.Spec.Template)
	job.Status = batchv1.JobStatus{}
}

// stripWorkload keeps the pod template and the selector. It drops annotations: kubectl keeps a copy of the object there.
func stripWorkload(object metav1.Object, template *corev1.PodTemplateSpec) {
	object.SetAnnotations(nil)
	stripPodSpec(&template.Spec)
}
