package view

import (
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func testPod(name string, change ...func(*corev1.Pod)) corev1.Pod {
	pod := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"}}
	pod.Spec.Containers = []corev1.Container{{Name: "c"}}
	for _, c := range change {
		c(&pod)
	}
	return pod
}

func withClaim(pod *corev1.Pod) {
	pod.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu"}}
}

func asking(name corev1.ResourceName) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		pod.Spec.Containers[0].Resources.Requests = corev1.ResourceList{name: resource.MustParse("1")}
	}
}

func on(node string) func(*corev1.Pod) { return func(pod *corev1.Pod) { pod.Spec.NodeName = node } }

func in(phase corev1.PodPhase) func(*corev1.Pod) {
	return func(pod *corev1.Pod) { pod.Status.Phase = phase }
}

func TestPodsAreSortedByUse(t *testing.T) {
	deleting := func(pod *corev1.Pod) { pod.DeletionTimestamp = &metav1.Time{Time: t0} }
	claimed := func(pod *corev1.Pod) { pod.Labels = map[string]string{"mica.gpu/node-group": "g"} }
	forged := testPlaceholder("g", "forged", time.Minute, "")
	forged.Namespace = "default"
	withClaim(forged)
	pods := []corev1.Pod{
		testPod("claim", withClaim),
		testPod("named", asking("nvidia.com/gpu")),
		testPod("implicit", asking("deviceclass.resource.kubernetes.io/gpu.nvidia.com")),
		testPod("label-only", withClaim, claimed),
		*forged,
		testPod("plain", asking("cpu")),
		testPod("foreign", asking("amd.com/gpu")),
		testPod("deleting", withClaim, deleting),
		testPod("done", withClaim, in(corev1.PodSucceeded)),
		testPod("bound", withClaim, on("n")),
		testPod("bound-plain", on("n")),
		testPod("leaving", on("n"), deleting),
		testPod("ended", on("n"), in(corev1.PodFailed)),
		*testPlaceholder("g", "waiting", time.Minute, ""),
		*testPlaceholder("g", "landed", time.Minute, "n"),
	}
	extended := "nvidia.com/gpu"
	use := sortPods(pods, extendedResources([]resourceapi.DeviceClass{{Spec: resourceapi.DeviceClassSpec{ExtendedResourceName: &extended}}}), testPlaceholder("", "", 0, "").Namespace)
	expectPods(t, "pending", use.pending, "claim named implicit label-only forged")
	expectPods(t, "bound", use.bound["n"], "bound bound-plain leaving")
	expectPods(t, "placeholders", use.placeholders, "waiting landed")
}

func expectPods(t *testing.T, what string, got []*corev1.Pod, want string) {
	t.Helper()
	if got := names(got); got != want {
		t.Errorf("%s are %q, want %q", what, got, want)
	}
}

func TestNewNodesGetTheirDaemonSetsPods(t *testing.T) {
	set := func(name string, change func(*corev1.PodSpec)) appsv1.DaemonSet {
		s := appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "kube-system"}}
		change(&s.Spec.Template.Spec)
		return s
	}
	gone := set("gone", func(*corev1.PodSpec) {})
	gone.DeletionTimestamp = &metav1.Time{Time: t0}
	terms := func(key string) func(*corev1.PodSpec) {
		return func(spec *corev1.PodSpec) {
			spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
			spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
				RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
					MatchExpressions: []corev1.NodeSelectorRequirement{{Key: key, Operator: corev1.NodeSelectorOpExists}},
				}}},
			}}
		}
	}
	sets := []appsv1.DaemonSet{
		set("everywhere", func(spec *corev1.PodSpec) {
			spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
		}),
		set("not-tolerating", func(*corev1.PodSpec) {}),
		set("elsewhere", func(spec *corev1.PodSpec) { spec.NodeSelector = pool("other") }),
		set("affine", terms("pool")),
		set("not-affine", terms("rack")),
		gone,
	}
	node := testNode("n", 0, pool("g"))
	node.Spec.Taints = []corev1.Taint{
		{Key: "nvidia.com/gpu", Value: "present", Effect: corev1.TaintEffectNoSchedule},
		{Key: "soft", Effect: corev1.TaintEffectPreferNoSchedule},
	}
	expectPods(t, "pods", daemonPods(DaemonsOf(sets), node), "everywhere affine")
	node.Spec.Taints = []corev1.Taint{{Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule}}
	expectPods(t, "pods of a node that is cordoned", daemonPods(DaemonsOf(sets), node), "everywhere not-tolerating affine")
}
