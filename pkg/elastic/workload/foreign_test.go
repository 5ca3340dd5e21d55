package workload

import (
	"errors"
	"fmt"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/mica-gpu/mica/pkg/elastic/scaletarget"
	"github.com/mica-gpu/mica/test/fixture"
)

var (
	lws     = Ref{Kind: "LeaderWorkerSet", Group: "leaderworkerset.x-k8s.io", Namespace: namespace, Name: "vllm"}
	rollout = Ref{Kind: "Rollout", Group: "argoproj.io", Namespace: namespace, Name: "vllm"}
)

func template(claims string, change ...func(*corev1.Pod)) corev1.PodTemplateSpec {
	pod := newPod("template", "", change...)
	if claims != "" {
		pod = with(pod, namesTemplate("gpu", claims))
	}
	return corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "vllm"}}, Spec: pod.Spec}
}

// newGang has two workers to a leader.
func newGang(leader, worker corev1.PodTemplateSpec) *scaletarget.Target {
	return &scaletarget.Target{
		Kind: schema.GroupVersionKind{Group: lws.Group, Version: "v1", Kind: lws.Kind}, UID: "uid-lws", Replicas: 2,
		Selector: labels.SelectorFromSet(labels.Set{"set": "vllm", "worker": "0"}),
		Members:  []scaletarget.Member{{Template: leader, Count: 1}, {Template: worker, Count: 2}},
		Gang:     &scaletarget.Gang{Pods: labels.SelectorFromSet(labels.Set{"set": "vllm"}), Label: "group"},
	}
}

func member(group, index int) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		pod.Labels = map[string]string{"set": "vllm", "group": fmt.Sprint(group), "worker": fmt.Sprint(index)}
	}
}

func TestAGangIsItsReplicas(t *testing.T) {
	objects := []client.Object{newTemplate("one", "gpu.nvidia.com"), newTemplate("two", "gpu.nvidia.com", "mig.nvidia.com")}
	for group := range 2 {
		for index := range 3 {
			objects = append(objects, newPod(fmt.Sprintf("vllm-%d-%d", group, index), "", member(group, index), namesTemplate("gpu", "one")))
		}
	}
	objects = append(objects, newPod("other", "", func(pod *corev1.Pod) { pod.Labels = map[string]string{"set": "other", "worker": "0"} }),
		newPod("ended", "", member(7, 0), func(pod *corev1.Pod) { pod.Status.Phase = corev1.PodFailed }))
	w := newWorld(t, objects...)
	w.targets[lws.String()] = newGang(template("one"), template("two"))
	state, err := w.index.Workload(t.Context(), lws)
	if err != nil {
		t.Fatal(err)
	}
	if state.Size() != 3 || state.Replicas != 2 || state.APIVersion != "leaderworkerset.x-k8s.io/v1" || !state.Claims || state.ByCost || state.Gated {
		t.Errorf("the gang is read as %+v", state)
	}
	replicas := state.Replicated()
	if len(replicas) != 2 || len(replicas[0]) != 3 || len(replicas[1]) != 3 {
		t.Fatalf("the replicas are %v", replicas)
	}
	for _, replica := range replicas {
		if replica[0].Follows || !replica[1].Follows || !replica[2].Follows {
			t.Errorf("who leads in %v?", replica)
		}
	}
	// Three claims wait in each of two groups.
	if n, err := w.index.Pending(t.Context(), Pending{Namespace: namespace, Workload: &lws}); err != nil || n != 2 {
		t.Errorf("%d wait, %v, want 2 groups", n, err)
	}
	if changes, err := w.index.Watch(t.Context(), Pending{Namespace: namespace, Workload: &lws}); changes != nil || err != nil {
		t.Errorf("changes are told of, %v", err)
	}
}

// ReplicaSets create a Rollout's pods. An adapter has no template, so its newest pod is the sample.
func TestWithoutATemplateTheNextPodIsLikeTheNewest(t *testing.T) {
	at := func(minute int) func(*corev1.Pod) {
		return func(pod *corev1.Pod) {
			pod.CreationTimestamp = metav1.NewTime(time.Unix(0, 0).Add(time.Duration(minute) * time.Minute))
			pod.Labels = map[string]string{"app": "vllm", appsv1.PodIndexLabel: fmt.Sprint(minute), appsv1.StatefulSetPodNameLabel: pod.Name}
			pod.Spec.Hostname = pod.Name
		}
	}
	w := newWorld(t, newTemplate("one", "gpu.nvidia.com"), newClass("gpu.nvidia.com", ""), newReplicaSet("old", ""), newReplicaSet("new", ""),
		newPod("b", "old", at(1), on("node")), newPod("a", "new", at(2), on("node"), namesTemplate("gpu", "one")))
	target := &scaletarget.Target{Kind: schema.GroupVersionKind{Group: rollout.Group, Version: "v1alpha1", Kind: rollout.Kind}, Replicas: 2,
		Selector: labels.SelectorFromSet(labels.Set{"app": "vllm"})}
	w.targets[rollout.String()] = target
	state, err := w.index.Workload(t.Context(), rollout)
	if err != nil {
		t.Fatal(err)
	}
	if pod := state.Template; pod.Spec.NodeName != "" || pod.Spec.Hostname != "" || len(pod.Labels) != 1 || len(pod.Spec.ResourceClaims) != 1 || !state.Claims {
		t.Errorf("the next pod is %+v", pod)
	}
	if !state.ByCost || state.Size() != 1 || len(state.Replicated()) != 2 || state.Gang != nil {
		t.Errorf("the Rollout is read as %+v", state)
	}
	target.Selector = labels.SelectorFromSet(labels.Set{"app": "none"})
	_, err = w.index.Workload(t.Context(), rollout)
	fixture.Sentence(t, err, "the claims of Rollout.argoproj.io/vllm are unknown", "keep one replica")
	target.Members = []scaletarget.Member{{Template: template("one"), Count: 1}}
	if state, err = w.index.Workload(t.Context(), rollout); err != nil || !state.Claims || state.Template.Namespace != namespace || state.ByCost {
		t.Errorf("without pods it is read as %+v, %v", state, err)
	}
}

func TestATargetThatIsNotThereIsAnError(t *testing.T) {
	w := newWorld(t)
	if _, err := w.index.Workload(t.Context(), lws); !errors.Is(err, ErrNotFound) {
		t.Errorf("it is read with %v", err)
	}
	if _, err := w.index.Pending(t.Context(), Pending{Namespace: namespace, Workload: &lws}); !errors.Is(err, ErrNotFound) {
		t.Errorf("it is counted with %v", err)
	}
}

// Events and conditions name the kind as the cluster does, however a trigger spells it.
func TestAKindIsNamedAsTheClusterDoes(t *testing.T) {
	w := newWorld(t)
	spelt := lws
	spelt.Kind = "leaderworkersets"
	w.targets[spelt.String()] = newGang(template(""), template(""))
	state, err := w.index.Workload(t.Context(), spelt)
	if err != nil || state.Ref != lws {
		t.Errorf("%s is read as %s, %v", spelt, state.Ref, err)
	}
}
