package view

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/mica-gpu/mica/api/v1alpha1"
)

// madeBy is a pod as the owner's controller makes it.
func madeBy(kind, owner, generateName, name string) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "team", GenerateName: generateName, Name: name}}
	if kind != "" {
		pod.OwnerReferences = []metav1.OwnerReference{{Kind: kind, Name: owner, Controller: ptr.To(true)}}
	}
	return pod
}

func TestAWorkloadHasOneNameForAllItsPods(t *testing.T) {
	deployed := madeBy("ReplicaSet", "llm-7d9f8b6c5", "llm-7d9f8b6c5-", "llm-7d9f8b6c5-x2x4z")
	deployed.Labels = map[string]string{"pod-template-hash": "7d9f8b6c5"}
	for want, pod := range map[string]*corev1.Pod{
		"Pod/train":               madeBy("", "", "", "train"),
		"Pod/train-x2x4z":         madeBy("", "", "train-", "train-x2x4z"),
		"Deployment/llm":          deployed,
		"ReplicaSet/llm":          madeBy("ReplicaSet", "llm", "llm-", "llm-x2x4z"),
		"Job/train":               madeBy("Job", "train", "train-", "train-x2x4z"),
		"Job/train-2026":          madeBy("Job", "train-2026", "train-2026-", "train-2026-x2x4z"),
		"CronJob/train":           madeBy("Job", "train-29399040", "train-29399040-", "train-29399040-x2x4z"),
		"CronJob/train-3":         madeBy("Job", "train-29399040", "train-29399040-3-", "train-29399040-3-x2x4z"),
		"StatefulSet/web-0":       madeBy("StatefulSet", "web", "web-", "web-0"),
		"RayCluster/ray-gpu":      madeBy("RayCluster", "ray", "ray-gpu-", "ray-gpu-x2x4z"),
		"PyTorchJob/ddp-worker-0": madeBy("PyTorchJob", "ddp", "", "ddp-worker-0"),
	} {
		if got := WorkloadOf(pod); got.Name != want || got.Namespace != "team" {
			t.Errorf("pod %s is of %+v, want %s in team", pod.Name, got, want)
		}
	}
}

func TestAWorkloadThatAsksForSomethingElseIsAnother(t *testing.T) {
	pod := func() *corev1.Pod {
		pod := madeBy("Job", "train", "train-", "train-a")
		pod.Spec.Containers = []corev1.Container{{Name: "c", Image: "one", Resources: corev1.ResourceRequirements{
			Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1"), corev1.ResourceMemory: resource.MustParse("1Gi")},
		}}}
		pod.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimTemplateName: ptr.To("one")}}
		return pod
	}
	for name, test := range map[string]struct {
		change func(*corev1.Pod)
		same   bool
	}{
		"another pod of it": {func(pod *corev1.Pod) {
			pod.Name, pod.UID, pod.Labels = "train-b", "b", map[string]string{"controller-uid": "b"}
		}, true},
		"on a node":            {func(pod *corev1.Pod) { pod.Spec.NodeName = "n1" }, true},
		"as a cache has it":    {func(pod *corev1.Pod) { pod.Spec.Containers[0].Image = "" }, true},
		"its token is another": {func(pod *corev1.Pod) { pod.Spec.Volumes = []corev1.Volume{{Name: "kube-api-access-x2x4z"}} }, true},
		"more memory": {func(pod *corev1.Pod) {
			pod.Spec.Containers[0].Resources.Requests[corev1.ResourceMemory] = resource.MustParse("2Gi")
		}, false},
		"another claim":  {func(pod *corev1.Pod) { pod.Spec.ResourceClaims[0].ResourceClaimTemplateName = ptr.To("two") }, false},
		"another zone":   {func(pod *corev1.Pod) { pod.Spec.NodeSelector = map[string]string{corev1.LabelTopologyZone: "b"} }, false},
		"another series": {func(pod *corev1.Pod) { pod.Namespace = "other" }, false},
	} {
		changed := pod()
		test.change(changed)
		if same := WorkloadOf(changed) == WorkloadOf(pod()); same != test.same {
			t.Errorf("%s: is of the same workload: %v, want %v", name, same, test.same)
		}
	}
}

func TestAPodMadeAnewIsHeldForItsWorkload(t *testing.T) {
	before := madeBy("Job", "train", "train-", "train-a")
	before.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Message: "unbound volume"}}
	for name, test := range map[string]struct {
		nodes int32
		// after is how long after the last node; made is when the pod was made, after it.
		after, made time.Duration
		pod         *corev1.Pod
		want        bool
	}{
		"made anew":                    {0, 30 * time.Minute, 20 * time.Minute, nil, true},
		"made in the same second":      {0, 30 * time.Minute, 0, nil, true},
		"it was there before":          {0, 30 * time.Minute, -time.Second, nil, false},
		"an hour later":                {0, time.Hour, 20 * time.Minute, nil, false},
		"the second node":              {1, 2*time.Hour - time.Second, time.Hour, nil, true},
		"the second node, later":       {1, 2 * time.Hour, time.Hour, nil, false},
		"the tenth node":               {9, 24*time.Hour - time.Second, time.Hour, nil, true},
		"a day later":                  {9, 24 * time.Hour, time.Hour, nil, false},
		"a count that is none":         {-5, 30 * time.Minute, 20 * time.Minute, nil, true},
		"a pod of another workload":    {0, 30 * time.Minute, 20 * time.Minute, madeBy("Job", "other", "other-", "other-a"), false},
		"a clock that ran ahead a day": {9, -time.Second, 0, nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			var last *v1alpha1.UnusedBy
			if test.nodes != 0 {
				last = &v1alpha1.UnusedBy{Nodes: test.nodes}
			}
			entry := UnusedAgain(last, before, t0)
			pod := test.pod
			if pod == nil {
				pod = madeBy("Job", "train", "train-", "train-b")
			}
			pod.CreationTimestamp = metav1.NewTime(entry.Since.Add(test.made))
			group := v1alpha1.GPUNodeGroup{Status: v1alpha1.GPUNodeGroupStatus{UnusedBy: []v1alpha1.UnusedBy{entry}}}
			why := unusedBy([]v1alpha1.GPUNodeGroup{group}).hold(pod, entry.Since.Add(test.after))
			if (why != "") != test.want || test.want && (!strings.Contains(why, "unbound volume") || !strings.Contains(why, "Job/train")) {
				t.Errorf("held by %q, want that it is held: %v", why, test.want)
			}
		})
	}
}
