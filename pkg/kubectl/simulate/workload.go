package simulate

import (
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

// annotationOwner is on simulated pods, with what they are of.
const annotationOwner = "mica.gpu/simulated-for"

// addWorkload adds the pods that a controller would make of an object.
func (m *Manifest) addWorkload(object runtime.Object) error {
	switch o := object.(type) {
	case *corev1.Pod:
		return m.addPod(o)
	case *appsv1.Deployment:
		return m.addPods("Deployment", o, o.Spec.Template, ptr.Deref(o.Spec.Replicas, 1))
	case *appsv1.ReplicaSet:
		return m.addPods("ReplicaSet", o, o.Spec.Template, ptr.Deref(o.Spec.Replicas, 1))
	case *appsv1.StatefulSet:
		return m.addPods("StatefulSet", o, o.Spec.Template, ptr.Deref(o.Spec.Replicas, 1))
	case *batchv1.Job:
		return m.addPods("Job", o, o.Spec.Template, atOnce(o.Spec))
	case *batchv1.CronJob:
		return m.addPods("CronJob", o, o.Spec.JobTemplate.Spec.Template, atOnce(o.Spec.JobTemplate.Spec))
	}
	return fmt.Errorf("objects of type %T are not read", object)
}

// atOnce is how many pods of a Job run at the same time.
func atOnce(job batchv1.JobSpec) int32 {
	parallel := ptr.Deref(job.Parallelism, 1)
	if job.Completions != nil {
		parallel = min(parallel, *job.Completions)
	}
	return parallel
}

// addPods adds pods with the names that a StatefulSet's have, whatever they are of.
func (m *Manifest) addPods(kind string, owner metav1.Object, template corev1.PodTemplateSpec, count int32) error {
	if count < 0 {
		return fmt.Errorf("%s %s wants %d pods: give none or more", kind, owner.GetName(), count)
	}
	for i := range count {
		pod := &corev1.Pod{ObjectMeta: *template.ObjectMeta.DeepCopy(), Spec: *template.Spec.DeepCopy()}
		pod.Namespace, pod.Name = owner.GetNamespace(), fmt.Sprintf("%s-%d", owner.GetName(), i)
		metav1.SetMetaDataAnnotation(&pod.ObjectMeta, annotationOwner, kind+"/"+owner.GetName())
		if err := m.addPod(pod); err != nil {
			return fmt.Errorf("%s %s: %w", kind, owner.GetName(), err)
		}
	}
	return nil
}

func (m *Manifest) addPod(pod *corev1.Pod) error {
	if len(m.pods) == maxPods {
		return fmt.Errorf("there are more than %d pods: simulate fewer at once", maxPods)
	}
	if pod.Spec.NodeName != "" {
		return fmt.Errorf("pod %s names its node %s, so no scheduler places it: leave out spec.nodeName", pod.Name, pod.Spec.NodeName)
	}
	pod.UID = types.UID("simulated-" + pod.Namespace + "/" + pod.Name)
	if m.podNames[pod.UID] {
		return fmt.Errorf("there are two pods %s/%s: give one of them another name", pod.Namespace, pod.Name)
	}
	if m.podNames == nil {
		m.podNames = map[types.UID]bool{}
	}
	m.podNames[pod.UID] = true
	pod.Status = corev1.PodStatus{Phase: corev1.PodPending}
	setRequests(pod)
	m.pods = append(m.pods, pod)
	return nil
}

// setRequests does what the API server does where a pod has limits alone: see SetDefaults_Pod in
// k8s.io/kubernetes/pkg/apis/core/v1/defaults.go.
func setRequests(pod *corev1.Pod) {
	for _, containers := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range containers {
			setRequestsOf(&containers[i].Resources)
		}
	}
	if pod.Spec.Resources != nil {
		setRequestsOf(pod.Spec.Resources)
	}
}

func setRequestsOf(r *corev1.ResourceRequirements) {
	for name, limit := range r.Limits {
		if _, requested := r.Requests[name]; requested {
			continue
		}
		if r.Requests == nil {
			r.Requests = corev1.ResourceList{}
		}
		r.Requests[name] = limit.DeepCopy()
	}
}

// Prioritize gives the pods the priorities of their classes. It asks find for classes that are not in
// the files.
func (m *Manifest) Prioritize(find func(name string) (int32, error)) error {
	for _, pod := range m.pods {
		name := pod.Spec.PriorityClassName
		if name == "" || pod.Spec.Priority != nil {
			continue
		}
		value, err := m.priority(name, find)
		if err != nil {
			return fmt.Errorf("pod %s/%s: %w", pod.Namespace, pod.Name, err)
		}
		pod.Spec.Priority = &value
	}
	return nil
}

// systemPriorities are those of the classes that every cluster has: see
// k8s.io/kubernetes/pkg/apis/scheduling/types.go.
var systemPriorities = map[string]int32{"system-cluster-critical": 2_000_000_000, "system-node-critical": 2_000_001_000}

func (m *Manifest) priority(name string, find func(string) (int32, error)) (int32, error) {
	for _, class := range m.priorities {
		if class.Name == name {
			return class.Value, nil
		}
	}
	if value, known := systemPriorities[name]; known {
		return value, nil
	}
	return find(name)
}
