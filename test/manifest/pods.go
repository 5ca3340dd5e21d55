package manifest

import (
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
)

// Pods are the pods that a workload's controller makes alike.
type Pods struct {
	// Name is what their names begin with; that of a Pod is its whole name.
	Name string
	// Count is how many there are at the same time. Without a number of replicas, it is one.
	Count    int
	Template corev1.PodTemplateSpec
	// Forever is set if they are replaced until the workload is deleted.
	Forever bool
}

// PodsOf is what an object makes pods of: none if it is no workload.
func PodsOf(object runtime.Object) ([]Pods, error) {
	switch object := object.(type) {
	case *corev1.Pod:
		template := corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: object.Labels}, Spec: object.Spec}
		return []Pods{{Name: object.Name, Count: 1, Template: template}}, nil
	case *appsv1.Deployment:
		return []Pods{{Name: object.Name, Count: count(object.Spec.Replicas), Template: object.Spec.Template, Forever: true}}, nil
	case *batchv1.Job:
		return []Pods{{Name: object.Name, Count: count(object.Spec.Parallelism), Template: object.Spec.Template}}, nil
	case *unstructured.Unstructured:
		return podsOfOthers(object)
	}
	return nil, nil
}

func podsOfOthers(object *unstructured.Unstructured) ([]Pods, error) {
	switch object.GetKind() {
	case "LeaderWorkerSet":
		group, err := LeaderWorkerSet(object)
		if err != nil {
			return nil, err
		}
		workers := Pods{Name: object.GetName() + "-worker", Count: group.Groups * (group.Size - 1), Template: group.Worker, Forever: true}
		leaders := Pods{Name: object.GetName(), Count: group.Groups, Template: group.Leader, Forever: true}
		return []Pods{leaders, workers}, nil
	case "JobSet":
		jobs, err := JobSet(object)
		if err != nil {
			return nil, err
		}
		var all []Pods
		for _, job := range jobs {
			pods, err := PodsOf(job)
			if err != nil {
				return nil, err
			}
			all = append(all, pods...)
		}
		return all, nil
	}
	return nil, nil
}

// Group is what a LeaderWorkerSet makes: groups of so many pods, one of them the leader.
type Group struct {
	Groups, Size   int
	Leader, Worker corev1.PodTemplateSpec
}

// LeaderWorkerSet reads a leaderworkerset.x-k8s.io/v1 of sigs.k8s.io/lws.
func LeaderWorkerSet(object *unstructured.Unstructured) (Group, error) {
	var spec struct {
		Replicas             *int32 `json:"replicas"`
		LeaderWorkerTemplate struct {
			Size           *int32         `json:"size"`
			LeaderTemplate map[string]any `json:"leaderTemplate"`
			WorkerTemplate map[string]any `json:"workerTemplate"`
		} `json:"leaderWorkerTemplate"`
	}
	if err := specOf(object, &spec); err != nil {
		return Group{}, err
	}
	template := spec.LeaderWorkerTemplate
	group := Group{Groups: count(spec.Replicas), Size: count(template.Size)}
	if err := strictly(template.WorkerTemplate, &group.Worker); err != nil {
		return Group{}, fmt.Errorf("decode the worker of LeaderWorkerSet %s: %w", object.GetName(), err)
	}
	if template.LeaderTemplate == nil {
		group.Leader = group.Worker
		return group, nil
	}
	if err := strictly(template.LeaderTemplate, &group.Leader); err != nil {
		return Group{}, fmt.Errorf("decode the leader of LeaderWorkerSet %s: %w", object.GetName(), err)
	}
	return group, nil
}

// JobSet gives the Jobs that are made of a jobset.x-k8s.io/v1alpha2 of sigs.k8s.io/jobset: of each
// replicated job so many, called as JobSet calls them.
func JobSet(object *unstructured.Unstructured) ([]*batchv1.Job, error) {
	var spec struct {
		ReplicatedJobs []struct {
			Name     string         `json:"name"`
			Replicas *int32         `json:"replicas"`
			Template map[string]any `json:"template"`
		} `json:"replicatedJobs"`
	}
	if err := specOf(object, &spec); err != nil {
		return nil, err
	}
	var jobs []*batchv1.Job
	for _, replicated := range spec.ReplicatedJobs {
		var template batchv1.JobTemplateSpec
		if err := strictly(replicated.Template, &template); err != nil {
			return nil, fmt.Errorf("decode job %s of JobSet %s: %w", replicated.Name, object.GetName(), err)
		}
		for i := range count(replicated.Replicas) {
			job := &batchv1.Job{ObjectMeta: *template.ObjectMeta.DeepCopy(), Spec: *template.Spec.DeepCopy()}
			job.Name = fmt.Sprintf("%s-%s-%d", object.GetName(), replicated.Name, i)
			jobs = append(jobs, job)
		}
	}
	return jobs, nil
}

// count is a number whose default is one.
func count(number *int32) int { return int(ptr.Deref(number, 1)) }

// specOf reads what the tests need of a spec. The rest is the API server's to check, which has the schema.
func specOf(object *unstructured.Unstructured, into any) error {
	spec, _, err := unstructured.NestedMap(object.Object, "spec")
	if err == nil {
		err = runtime.DefaultUnstructuredConverter.FromUnstructured(spec, into)
	}
	if err != nil {
		return fmt.Errorf("decode %s %s: %w", object.GetKind(), object.GetName(), err)
	}
	return nil
}

func strictly(content map[string]any, into any) error {
	return runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(content, into, true)
}
