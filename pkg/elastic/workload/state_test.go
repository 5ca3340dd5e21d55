package workload

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

func minutes(n int) time.Time { return noon.Add(time.Duration(n) * time.Minute) }

func TestReadsAPod(t *testing.T) {
	share := device("node-1", "gpu-0-mps")
	share.ShareID = ptr.To(types.UID("share"))
	share.ConsumedCapacity = map[resourceapi.QualifiedName]resource.Quantity{"memory": resource.MustParse("10Gi")}
	admin, foreign := device("node-1", "gpu-1"), device("node-1", "eth0")
	admin.AdminAccess = ptr.To(true)
	foreign.Driver = "net.example.com"
	extended := generated("a", "extended", "gpu")
	held := []Device{{Holding: holding(device("node-1", "gpu-0")), Claim: "uid-a-g", Class: "gpu"}}
	either, second := generated("a", "g"), device("node-1", "gpu-0")
	second.Request = "any/second"
	either.Spec.Devices.Requests = []resourceapi.DeviceRequest{{Name: "any", FirstAvailable: []resourceapi.DeviceSubRequest{
		{Name: "first", DeviceClassName: "large"}, {Name: "second", DeviceClassName: "small"},
	}}}
	undated := allocated(generated("a", "g", "gpu"), noon, device("node-1", "gpu-0"))
	undated.Status.Allocation.AllocationTimestamp = nil
	of := func(changes ...func(*corev1.Pod)) *corev1.Pod {
		return newPod("a", "vllm-1", append([]func(*corev1.Pod){namesTemplate("g", "gpu"), hasGenerated("g")}, changes...)...)
	}
	claim := allocated(generated("a", "g", "gpu"), minutes(1), device("node-1", "gpu-0"))
	for name, test := range map[string]struct {
		objects []client.Object
		want    Pod
	}{
		"waiting": {
			[]client.Object{of(), generated("a", "g", "gpu")},
			Pod{Pending: 1},
		},
		"allocated, without a node yet": {
			[]client.Object{of(), claim},
			Pod{Devices: held},
		},
		"loading since it was scheduled": {
			[]client.Object{of(on("node-1"), since(corev1.PodScheduled, minutes(2))), claim},
			Pod{Node: "node-1", Devices: held, LoadingSince: minutes(2)},
		},
		"loading since it was allocated": {
			[]client.Object{of(on("node-1"), since(corev1.PodScheduled, minutes(0))), claim},
			Pod{Node: "node-1", Devices: held, LoadingSince: minutes(1)},
		},
		"loading since kubelet had it": {
			[]client.Object{of(on("node-1"), func(p *corev1.Pod) { p.Status.StartTime = ptr.To(metav1.NewTime(minutes(3))) }), undated},
			Pod{Node: "node-1", Devices: held, LoadingSince: minutes(3)},
		},
		"loading since it was created": {
			[]client.Object{of(on("node-1"), func(p *corev1.Pod) { p.CreationTimestamp = metav1.NewTime(minutes(4)) }), undated},
			Pod{Node: "node-1", Devices: held, LoadingSince: minutes(4)},
		},
		"its volumes are being attached": {
			[]client.Object{of(on("node-1"), since(corev1.PodScheduled, minutes(2)), inPhase(corev1.PodPending)), claim},
			Pod{Node: "node-1", Devices: held, LoadingSince: minutes(2), Unstarted: true},
		},
		"its images are being pulled": {
			[]client.Object{of(on("node-1"), since(corev1.PodScheduled, minutes(2)), inPhase(corev1.PodPending), since(corev1.PodReadyToStartContainers, minutes(3))), claim},
			Pod{Node: "node-1", Devices: held, LoadingSince: minutes(2)},
		},
		"ready": {
			[]client.Object{of(on("node-1"), since(corev1.PodScheduled, minutes(2)), since(corev1.PodReady, minutes(5))), claim},
			Pod{Node: "node-1", Devices: held, Ready: true},
		},
		"a standby, which is not loading": {
			[]client.Object{of(on("node-1"), gated, since(corev1.ContainersReady, minutes(5))), claim},
			Pod{Node: "node-1", Devices: held, Gate: Standby},
		},
		"loading behind its gate": {
			[]client.Object{of(on("node-1"), since(corev1.PodScheduled, minutes(2)), gated), claim},
			Pod{Node: "node-1", Devices: held, Gate: Closed, LoadingSince: minutes(2)},
		},
		"behind another gate as well": {
			[]client.Object{of(on("node-1"), since(corev1.PodScheduled, minutes(2)), gated, since(corev1.ContainersReady, minutes(5)), func(p *corev1.Pod) {
				p.Spec.ReadinessGates = append(p.Spec.ReadinessGates, corev1.PodReadinessGate{ConditionType: "x/y"})
			}), claim},
			Pod{Node: "node-1", Devices: held, Gate: Closed, LoadingSince: minutes(2)},
		},
		"serving behind its gate": {
			[]client.Object{of(on("node-1"), gated, since("mica.gpu/serving", minutes(6)), since(corev1.PodReady, minutes(6))), claim},
			Pod{Node: "node-1", Devices: held, Gate: Open, Ready: true},
		},
		"waiting for a second claim": {
			[]client.Object{of(on("node-1"), namesClaim("more", "more")), claim, newClaim("more", "gpu")},
			Pod{Node: "node-1", Devices: held, Pending: 1},
		},
		"a share of a device": {
			[]client.Object{of(on("node-1")), allocated(generated("a", "g", "gpu"), minutes(1), share)},
			Pod{Node: "node-1", LoadingSince: minutes(1), Devices: []Device{{
				Holding: holding(share), Claim: "uid-a-g", Class: "gpu",
			}}},
		},
		"admin access and another driver's device": {
			[]client.Object{of(on("node-1")), allocated(generated("a", "g", "gpu"), minutes(1), admin, foreign)},
			Pod{Node: "node-1"},
		},
		"extended resources, waiting": {
			[]client.Object{newPod("a", "vllm-1", requests("nvidia.com/gpu"))},
			Pod{Pending: 1},
		},
		"extended resources": {
			[]client.Object{
				newPod("a", "vllm-1", requests("nvidia.com/gpu"), on("node-1"), func(p *corev1.Pod) {
					p.Status.ExtendedResourceClaimStatus = &corev1.PodExtendedResourceClaimStatus{ResourceClaimName: extended.Name}
				}),
				allocated(extended, minutes(1), device("node-1", "gpu-0")),
			},
			Pod{Node: "node-1", LoadingSince: minutes(1), Devices: []Device{{Holding: holding(device("node-1", "gpu-0")), Claim: "uid-a-extended", Class: "gpu"}}},
		},
		"an alternative": {
			[]client.Object{of(on("node-1")), allocated(either, minutes(1), second)},
			Pod{Node: "node-1", LoadingSince: minutes(1), Devices: []Device{{Holding: holding(second), Claim: "uid-a-g", Class: "small"}}},
		},
		"no devices": {
			[]client.Object{newPod("a", "vllm-1", on("node-1"), since(corev1.PodScheduled, minutes(1)))},
			Pod{Node: "node-1"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, append(test.objects, basis...)...)
			state, err := w.index.Workload(t.Context(), *vllm.Workload)
			if err != nil {
				t.Fatal(err)
			}
			test.want.UID, test.want.Name = "uid-a", "a"
			if diff := cmp.Diff([]Pod{test.want}, state.Pods, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("pods (-want +got):\n%s", diff)
			}
		})
	}
}

func gated(pod *corev1.Pod) {
	pod.Spec.ReadinessGates = []corev1.PodReadinessGate{{ConditionType: "mica.gpu/serving"}}
}

func TestReadsThePodsOfAllRevisionsByName(t *testing.T) {
	w := newWorld(t, append(basis,
		newReplicaSet("vllm-2", "vllm"), newReplicaSet("other-1", "other"),
		newPod("c", "vllm-1"), newPod("b", "vllm-2"), newPod("a", "vllm-2"),
		newPod("ended", "vllm-1", inPhase(corev1.PodFailed)),
		newPod("deleting", "vllm-1", func(p *corev1.Pod) { deleting(p) }),
		newPod("other", "other-1"), newPod("unowned", ""))...)
	state, err := w.index.Workload(t.Context(), *vllm.Workload)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, pod := range state.Pods {
		names = append(names, pod.Name)
	}
	if diff := cmp.Diff([]string{"a", "b", "c"}, names); diff != "" || state.UID != "uid-vllm" || state.Ref != *vllm.Workload {
		t.Errorf("%s %s: pods (-want +got):\n%s", state.Ref, state.UID, diff)
	}
}

func TestPodsThatShareAClaimHaveTheSameDevices(t *testing.T) {
	w := newWorld(t, append(basis, allocated(newClaim("c", "gpu"), noon, device("node-1", "gpu-0")),
		newPod("a", "vllm-1", namesClaim("g", "c")), newPod("b", "vllm-1", namesClaim("g", "c")))...)
	state, err := w.index.Workload(t.Context(), *vllm.Workload)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(state.Pods[0].Devices, state.Pods[1].Devices); diff != "" || len(state.Pods[0].Devices) != 1 {
		t.Errorf("devices (-a +b):\n%s", diff)
	}
}

func TestTheTemplateIsTheNextPod(t *testing.T) {
	set := &appsv1.StatefulSet{ObjectMeta: named("vllm")}
	set.Spec.Template.Labels = map[string]string{"app": "vllm"}
	set.Spec.Template.Annotations = map[string]string{"note": "x"}
	set.Spec.Template.Spec.NodeSelector = map[string]string{"pool": "h100"}
	w := newWorld(t, set)
	state, err := w.index.Workload(t.Context(), Ref{Kind: KindStatefulSet, Namespace: namespace, Name: "vllm"})
	if err != nil {
		t.Fatal(err)
	}
	want := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: "vllm-sample",
			Labels: map[string]string{"app": "vllm"}, Annotations: map[string]string{"note": "x"},
		},
		Spec: corev1.PodSpec{NodeSelector: map[string]string{"pool": "h100"}},
	}
	if diff := cmp.Diff(want, state.Template); diff != "" {
		t.Errorf("the next pod (-want +got):\n%s", diff)
	}
}

func TestClaimsOfTheNextPod(t *testing.T) {
	for name, test := range map[string]struct {
		pod  func(*corev1.Pod)
		want bool
	}{
		"a template of a claim":                   {namesTemplate("g", "gpu"), true},
		"a claim":                                 {namesClaim("g", "mine"), true},
		"an extended resource of a class":         {requests("nvidia.com/gpu"), true},
		"an extended resource of a device plugin": {requests("example.com/fpga"), false},
		"CPU": {requests("cpu"), false},
	} {
		t.Run(name, func(t *testing.T) {
			set := &appsv1.StatefulSet{ObjectMeta: named("vllm")}
			set.Spec.Template.Spec = newPod("a", "", test.pod).Spec
			w := newWorld(t, set, newClass("gpu", "nvidia.com/gpu"))
			state, err := w.index.Workload(t.Context(), Ref{Kind: KindStatefulSet, Namespace: namespace, Name: "vllm"})
			if err != nil || state.Claims != test.want {
				t.Errorf("got %v, %v", state.Claims, err)
			}
		})
	}
}

// A rollout has more pods than replicas, so the spec has the number.
func TestReplicasAreThoseOfTheSpec(t *testing.T) {
	three := newDeployment("three")
	three.Spec.Replicas = ptr.To(int32(3))
	w := newWorld(t, three, newDeployment("unset"))
	for name, want := range map[string]int32{"three": 3, "unset": 1} {
		if state, err := w.index.Workload(t.Context(), Ref{Kind: KindDeployment, Namespace: namespace, Name: name}); err != nil || state.Replicas != want {
			t.Errorf("%s has %d replicas, %v, want %d", name, state.Replicas, err, want)
		}
	}
}
