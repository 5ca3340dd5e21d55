package main

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

func podTemplate(containers ...corev1.Container) corev1.PodTemplateSpec {
	return corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "vllm"}},
		Spec: corev1.PodSpec{
			Containers:     containers,
			NodeSelector:   map[string]string{"pool": "h100"},
			Tolerations:    []corev1.Toleration{{Key: "nvidia.com/gpu"}},
			ResourceClaims: []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimTemplateName: ptr.To("gpu")}},
		},
	}
}

// The cache keeps only the fields of workloads that a plan for their next pod reads.
func TestTheCacheKeepsOfAWorkloadItsNextPod(t *testing.T) {
	resources := corev1.ResourceRequirements{Requests: corev1.ResourceList{"cpu": resource.MustParse("4")}}
	full := podTemplate(corev1.Container{Name: "c", Image: "vllm", Resources: resources, Env: []corev1.EnvVar{{Name: "A", Value: "b"}}})
	full.Spec.Volumes = []corev1.Volume{{Name: "models"}}
	kept := podTemplate(corev1.Container{Name: "c", Resources: resources})
	meta := func(kept bool) metav1.ObjectMeta {
		m := metav1.ObjectMeta{Namespace: "llm", Name: "vllm", UID: "u", Labels: map[string]string{"team": "a"}}
		if !kept {
			m.Annotations = map[string]string{corev1.LastAppliedConfigAnnotation: "{}"}
			m.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "kubectl"}}
		}
		return m
	}
	owned := func(m metav1.ObjectMeta) metav1.ObjectMeta {
		m.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "Deployment", Name: "vllm", Controller: ptr.To(true)}}
		return m
	}
	for name, test := range map[string]struct {
		object, want client.Object
		strip        toolscache.TransformFunc
	}{
		"Deployment": {
			&appsv1.Deployment{ObjectMeta: meta(false), Spec: appsv1.DeploymentSpec{Template: full}, Status: appsv1.DeploymentStatus{Replicas: 1}},
			&appsv1.Deployment{ObjectMeta: meta(true), Spec: appsv1.DeploymentSpec{Template: kept}},
			strip(stripDeployment),
		},
		"StatefulSet": {
			&appsv1.StatefulSet{ObjectMeta: meta(false), Spec: appsv1.StatefulSetSpec{Template: full, VolumeClaimTemplates: make([]corev1.PersistentVolumeClaim, 1)}, Status: appsv1.StatefulSetStatus{Replicas: 1}},
			&appsv1.StatefulSet{ObjectMeta: meta(true), Spec: appsv1.StatefulSetSpec{Template: kept}},
			strip(stripStatefulSet),
		},
		"ReplicaSet": {
			&appsv1.ReplicaSet{ObjectMeta: meta(false), Spec: appsv1.ReplicaSetSpec{Template: full}, Status: appsv1.ReplicaSetStatus{Replicas: 1}},
			&appsv1.ReplicaSet{ObjectMeta: meta(true), Spec: appsv1.ReplicaSetSpec{Template: kept}},
			strip(stripReplicaSet),
		},
		"ReplicaSet of a Deployment": {
			&appsv1.ReplicaSet{ObjectMeta: owned(meta(false)), Spec: appsv1.ReplicaSetSpec{Template: full}, Status: appsv1.ReplicaSetStatus{Replicas: 1}},
			&appsv1.ReplicaSet{ObjectMeta: owned(meta(true))},
			strip(stripReplicaSet),
		},
		"Job": {
			&batchv1.Job{ObjectMeta: meta(false), Spec: batchv1.JobSpec{Template: full}, Status: batchv1.JobStatus{Active: 1}},
			&batchv1.Job{ObjectMeta: meta(true), Spec: batchv1.JobSpec{Template: kept}},
			strip(stripJob),
		},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := test.strip(test.object.DeepCopyObject())
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("kept (-want +got):\n%s", diff)
			}
		})
	}
}
