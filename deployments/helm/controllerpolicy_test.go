package helm_test

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/utils/ptr"

	"github.com/mica-gpu/mica/test/admission"
)

var theController = user.DefaultInfo{Name: "system:serviceaccount:mica:mica-controller"}

const startupTaint = "startup-taint.cluster-autoscaler.kubernetes.io/mica"

// newNode is a node as kubelet registers it in a group with the startup taint.
func newNode() *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name: "n", Labels: map[string]string{"a": "b"},
			Annotations: map[string]string{"cluster-autoscaler.kubernetes.io/scale-down-disabled": "true", "other": "1"},
		},
		Spec: corev1.NodeSpec{
			ProviderID: "aws:///1",
			Taints: []corev1.Taint{
				{Key: "nvidia.com/gpu", Value: "true", Effect: corev1.TaintEffectNoSchedule},
				{Key: startupTaint, Value: "starting", Effect: corev1.TaintEffectNoSchedule},
			},
		},
	}
}

func TestNodePolicyDecides(t *testing.T) {
	policy := renderedPolicy(t, "nodes-")
	for name, test := range map[string]struct {
		change func(*corev1.Node)
		want   string // part of the message; "" is accepted
	}{
		"nothing":                   {func(*corev1.Node) {}, ""},
		"the startup taint removed": {func(n *corev1.Node) { n.Spec.Taints = n.Spec.Taints[:1] }, ""},
		"another taint removed":     {func(n *corev1.Node) { n.Spec.Taints = n.Spec.Taints[1:] }, "and no other"},
		"a taint added": {func(n *corev1.Node) {
			n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: "x", Effect: "NoExecute"})
		}, "may add none"},
		"the startup taint made stronger": {func(n *corev1.Node) { n.Spec.Taints[1].Effect = corev1.TaintEffectNoExecute }, "may add none"},
		"its annotations set": {func(n *corev1.Node) {
			n.Annotations["mica.gpu/protected-for"] = "claim"
			n.Annotations["mica.gpu/held-until"] = "2026-01-01T02:00:00Z"
			n.Annotations["cluster-autoscaler.kubernetes.io/scale-down-disabled"] = "false"
		}, ""},
		"its annotation removed":     {func(n *corev1.Node) { delete(n.Annotations, "cluster-autoscaler.kubernetes.io/scale-down-disabled") }, ""},
		"all annotations removed":    {func(n *corev1.Node) { n.Annotations = nil }, "and no other"},
		"another annotation set":     {func(n *corev1.Node) { n.Annotations["new"] = "2" }, "and no other"},
		"another annotation changed": {func(n *corev1.Node) { n.Annotations["other"] = "2" }, "and no other"},
		"another annotation removed": {func(n *corev1.Node) { delete(n.Annotations, "other") }, "and no other"},
		"cordoned without a word":    {func(n *corev1.Node) { n.Spec.Unschedulable = true }, "may cordon a node only while"},
		"cordoned as empty": {func(n *corev1.Node) {
			n.Spec.Unschedulable = true
			n.Annotations["mica.gpu/scale-in"] = "empty 2026-01-01T00:00:00Z"
		}, "may cordon a node only while"},
		"cordoned to end": {func(n *corev1.Node) {
			n.Spec.Unschedulable = true
			n.Annotations["mica.gpu/scale-in"] = "cordoned 2026-01-01T00:00:00Z"
		}, ""},
		"a label":                        {func(n *corev1.Node) { n.Labels["a"] = "c" }, "nothing else"},
		"all labels":                     {func(n *corev1.Node) { n.Labels = nil }, "nothing else"},
		"the machine behind it":          {func(n *corev1.Node) { n.Spec.ProviderID = "aws:///2" }, "nothing else"},
		"a finalizer, to keep it for us": {func(n *corev1.Node) { n.Finalizers = []string{"mica.gpu/x"} }, "nothing else"},
	} {
		t.Run(name, func(t *testing.T) {
			after := newNode()
			test.change(after)
			expectDecision(t, policy, admission.Review{Kind: "Node", Object: after, Old: newNode(), User: theController}, test.want)
		})
	}
	for mark, want := range map[string]string{"": "may uncordon no other", "cordoned 2026-01-01T00:00:00Z": ""} {
		before, after := newNode(), newNode()
		before.Spec.Unschedulable, before.Annotations["mica.gpu/scale-in"] = true, mark
		_, messages := policy.Review(t, admission.Review{Kind: "Node", Object: after, Old: before, User: theController})
		if refused := strings.Join(messages, "\n"); (refused == "") != (want == "") || !strings.Contains(refused, want) {
			t.Errorf("uncordoning a node with the mark %q is refused: %q", mark, refused)
		}
	}
	if matched, _ := policy.Review(t, admission.Review{Kind: "Node", Object: newNode(), Old: newNode(), User: user.DefaultInfo{Name: "kubelet"}}); matched {
		t.Error("others than the controller are looked at")
	}
}

// What the controller writes to nodes it writes to those with GPUs only.
func TestNodePolicyKeepsNodesWithoutGPUs(t *testing.T) {
	policy := renderedPolicy(t, "nodes-")
	writes := map[string]func(*corev1.Node){
		"cordoned": func(n *corev1.Node) {
			n.Spec.Unschedulable, n.Annotations = true, map[string]string{"mica.gpu/scale-in": "cordoned 2026-01-01T00:00:00Z"}
		},
		"protected": func(n *corev1.Node) {
			n.Annotations = map[string]string{"mica.gpu/protected-for": "use", "cluster-autoscaler.kubernetes.io/scale-down-disabled": "true"}
		},
	}
	review := func(before, after *corev1.Node) string {
		_, messages := policy.Review(t, admission.Review{Kind: "Node", Object: after, Old: before, User: theController})
		return strings.Join(messages, "\n")
	}
	for name, test := range map[string]struct {
		sign    func(*corev1.Node)
		refused bool
	}{
		"a node of CPUs": {func(n *corev1.Node) { n.Labels["node.kubernetes.io/instance-type"] = "m7i.large" }, true},
		"no labels":      {func(n *corev1.Node) { n.Labels = nil }, true},
		"an AMD GPU":     {func(n *corev1.Node) { n.Labels["feature.node.kubernetes.io/pci-1002.present"] = "true" }, true},
		"the startup taint": {func(n *corev1.Node) {
			n.Spec.Taints = []corev1.Taint{{Key: startupTaint, Value: "starting", Effect: corev1.TaintEffectNoSchedule}}
		}, false},
		"the usual taint": {func(n *corev1.Node) {
			n.Spec.Taints = []corev1.Taint{{Key: "nvidia.com/gpu", Effect: corev1.TaintEffectNoSchedule}}
		}, false},
		"the usual label":   {func(n *corev1.Node) { n.Labels["nvidia.com/gpu.present"] = "true" }, false},
		"feature discovery": {func(n *corev1.Node) { n.Labels["feature.node.kubernetes.io/pci-0302_10de.present"] = "true" }, false},
		"an H100 machine":   {func(n *corev1.Node) { n.Labels["node.kubernetes.io/instance-type"] = "p5.48xlarge" }, false},
		"a Grace machine":   {func(n *corev1.Node) { n.Labels["node.kubernetes.io/instance-type"] = "gr6.4xlarge" }, false},
		"a device plugin": {func(n *corev1.Node) {
			n.Status.Capacity = corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("8")}
		}, false},
	} {
		for what, write := range writes {
			t.Run(name+"/"+what, func(t *testing.T) {
				before := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", Labels: map[string]string{"a": "b"}}}
				test.sign(before)
				after := before.DeepCopy()
				write(after)
				if refused := review(before, after); strings.Contains(refused, "to nodes with GPUs and to no other") != test.refused || !test.refused && refused != "" {
					t.Errorf("refused: %q", refused)
				}
				if refused := review(after, before); refused != "" {
					t.Errorf("undoing it is refused: %q", refused)
				}
			})
		}
	}
}

// waiting is a pod that the scheduler could not place.
func waiting() *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "default", Labels: map[string]string{"a": "b"}, Finalizers: []string{"batch.kubernetes.io/job-tracking"}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c"}}, ResourceClaims: []corev1.PodResourceClaim{{Name: "gpu"}}},
		Status: corev1.PodStatus{
			Phase:      corev1.PodPending,
			Conditions: []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: "Unschedulable"}},
		},
	}
}

func TestPodStatusPolicyDecides(t *testing.T) {
	policy := renderedPolicy(t, "podstatus-")
	ours := corev1.PodCondition{Type: "mica.gpu/ScaleUp", Status: corev1.ConditionTrue}
	gate := corev1.PodReadinessGate{ConditionType: "mica.gpu/serving"}
	serving := func(status corev1.ConditionStatus) corev1.PodCondition {
		return corev1.PodCondition{Type: gate.ConditionType, Status: status}
	}
	for name, test := range map[string]struct {
		change func(*corev1.Pod)
		want   string
		before []corev1.PodCondition
	}{
		"opens a gate": {func(p *corev1.Pod) {
			p.Spec.ReadinessGates, p.Status.Conditions = []corev1.PodReadinessGate{gate}, append(p.Status.Conditions, serving(corev1.ConditionTrue))
		}, "", []corev1.PodCondition{{Type: corev1.ContainersReady, Status: corev1.ConditionTrue}}},
		"opens the gate of a pod that loads": {func(p *corev1.Pod) {
			p.Spec.ReadinessGates, p.Status.Conditions = []corev1.PodReadinessGate{gate}, append(p.Status.Conditions, serving(corev1.ConditionTrue))
		}, "whose containers are ready", []corev1.PodCondition{{Type: corev1.ContainersReady, Status: corev1.ConditionFalse}}},
		"leaves a gate open": {func(p *corev1.Pod) { p.Spec.ReadinessGates = []corev1.PodReadinessGate{gate} }, "", []corev1.PodCondition{serving(corev1.ConditionTrue)}},
		"says why a gate is closed": {func(p *corev1.Pod) {
			p.Spec.ReadinessGates, p.Status.Conditions = []corev1.PodReadinessGate{gate}, append(p.Status.Conditions, serving(corev1.ConditionFalse))
		}, "", nil},
		"closes a gate": {func(p *corev1.Pod) {
			p.Spec.ReadinessGates, p.Status.Conditions[1].Status = []corev1.PodReadinessGate{gate}, corev1.ConditionFalse
		}, "may not close it", []corev1.PodCondition{serving(corev1.ConditionTrue)}},
		"takes a gate's condition away": {func(p *corev1.Pod) {
			p.Spec.ReadinessGates, p.Status.Conditions = []corev1.PodReadinessGate{gate}, p.Status.Conditions[:1]
		}, "may not close it", []corev1.PodCondition{serving(corev1.ConditionTrue)}},
		"a gate that the pod does not have": {func(p *corev1.Pod) { p.Status.Conditions = append(p.Status.Conditions, serving(corev1.ConditionTrue)) }, "of a pod that has it", nil},
		"its condition":                     {func(p *corev1.Pod) { p.Status.Conditions = append(p.Status.Conditions, ours) }, "", nil},
		"the scheduler's condition":         {func(p *corev1.Pod) { p.Status.Conditions[0].Status = corev1.ConditionTrue }, "and no other", nil},
		"another condition": {func(p *corev1.Pod) {
			p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: "Ready"})
		}, "and no other", nil},
		"no condition left":                 {func(p *corev1.Pod) { p.Status.Conditions = nil }, "and no other", nil},
		"ended":                             {func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }, "nothing else", nil},
		"nominated":                         {func(p *corev1.Pod) { p.Status.NominatedNodeName = "n" }, "nothing else", nil},
		"another claim than its own":        {func(p *corev1.Pod) { p.Status.ResourceClaimStatuses = []corev1.PodResourceClaimStatus{{Name: "c"}} }, "nothing else", nil},
		"a label on the way":                {func(p *corev1.Pod) { p.Labels["a"] = "c" }, "nothing else", nil},
		"an address":                        {func(p *corev1.Pod) { p.Status.PodIP = "10.0.0.1" }, "nothing else", nil},
		"the states of containers":          {func(p *corev1.Pod) { p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "c", Ready: true}} }, "nothing else", nil},
		"everything but its own gone":       {func(p *corev1.Pod) { p.Status = corev1.PodStatus{Conditions: []corev1.PodCondition{ours}} }, "nothing else", nil},
		"kept from the autoscaler":          {func(p *corev1.Pod) { p.Annotations = keptFor("1h0m0s", "") }, "", nil},
		"kept for ever":                     {func(p *corev1.Pod) { p.Annotations = keptFor(aHundred, "") }, "", nil},
		"kept without a mark":               {func(p *corev1.Pod) { p.Annotations = map[string]string{scaleUpDelay: aHundred} }, "while it notes the value before", nil},
		"kept with a forged mark":           {func(p *corev1.Pod) { p.Annotations = keptFor("1h0m0s", "0s") }, "while it notes the value before", nil},
		"kept by no duration":               {func(p *corev1.Pod) { p.Annotations = keptFor("soon", "") }, "while it notes the value before", nil},
		"a mark alone":                      {func(p *corev1.Pod) { p.Annotations = map[string]string{delayBefore: ""} }, "while it notes the value before", nil},
		"what its deletion costs":           {func(p *corev1.Pod) { p.Annotations = map[string]string{corev1.PodDeletionCost: "200"} }, "", nil},
		"another delay":                     {func(p *corev1.Pod) { p.Annotations = map[string]string{scaleUpDelay: "0s"} }, "put that value back", nil},
		"a finalizer, to end a Job's count": {func(p *corev1.Pod) { p.Finalizers = nil }, "nothing else", nil},
		"another address":                   {func(p *corev1.Pod) { p.Status.PodIPs = []corev1.PodIP{{IP: "10.0.0.1"}} }, "nothing else", nil},
		"the host's address":                {func(p *corev1.Pod) { p.Status.HostIP = "10.0.0.1" }, "nothing else", nil},
		"the states of init containers": {func(p *corev1.Pod) {
			p.Status.InitContainerStatuses = []corev1.ContainerStatus{{Name: "c", Ready: true}}
		}, "nothing else", nil},
		"another claim of its extended resources": {func(p *corev1.Pod) {
			p.Status.ExtendedResourceClaimStatus = &corev1.PodExtendedResourceClaimStatus{ResourceClaimName: "c"}
		}, "nothing else", nil},
		"an annotation on the way": {func(p *corev1.Pod) {
			p.Annotations = map[string]string{"a": "b", scaleUpDelay: aHundred, delayBefore: ""}
		}, "nothing else", nil},
	} {
		t.Run(name, func(t *testing.T) {
			before, after := waiting(), waiting()
			for _, pod := range []*corev1.Pod{before, after} {
				pod.Status.Conditions = append(pod.Status.Conditions, test.before...)
			}
			test.change(after)
			before.Spec = after.Spec // a status is written without its spec
			expectDecision(t, policy, admission.Review{Kind: "Pod", Object: after, Old: before, User: theController}, test.want)
		})
	}
}

// Pods that ask for no device are none of the controller's.
func TestPodStatusPolicyKeepsPodsWithoutDevices(t *testing.T) {
	policy := renderedPolicy(t, "podstatus-")
	requests := func(name corev1.ResourceName) func(*corev1.PodSpec) {
		return func(s *corev1.PodSpec) {
			s.Containers = []corev1.Container{{Name: "c", Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{name: resource.MustParse("1")}}}}
		}
	}
	for name, test := range map[string]struct {
		spec    func(*corev1.PodSpec)
		refused bool
	}{
		"nothing":              {func(*corev1.PodSpec) {}, true},
		"CPUs":                 {requests("cpu"), true},
		"huge pages":           {requests("hugepages-2Mi"), true},
		"an extended resource": {requests("nvidia.com/gpu"), false},
		"a class":              {requests("deviceclass.resource.kubernetes.io/gpu.nvidia.com"), false},
		"an init container's GPU": {func(s *corev1.PodSpec) {
			plain := s.Containers
			requests("nvidia.com/gpu")(s)
			s.InitContainers, s.Containers = s.Containers, plain
		}, false},
		"a claim": {func(s *corev1.PodSpec) { s.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu"}} }, false},
		"nothing, with the gate": {func(s *corev1.PodSpec) {
			s.ReadinessGates = []corev1.PodReadinessGate{{ConditionType: "mica.gpu/serving"}}
		}, false},
	} {
		for _, annotations := range []map[string]string{keptFor("1h0m0s", ""), {corev1.PodDeletionCost: "-2147483648"}} {
			before := waiting()
			before.Spec = corev1.PodSpec{Containers: []corev1.Container{{Name: "c"}}}
			test.spec(&before.Spec)
			after := before.DeepCopy()
			after.Annotations = annotations
			_, messages := policy.Review(t, admission.Review{Kind: "Pod", Object: after, Old: before, User: theController})
			if refused := strings.Join(messages, "\n"); strings.Contains(refused, "to pods that ask for devices") != test.refused || !test.refused && refused != "" {
				t.Errorf("%v of a pod that asks for %s: refused: %q", annotations, name, refused)
			}
		}
	}
}

// A delay that a user has chosen is not the controller's to change, but while it notes it, and is what comes back.
func TestPodStatusPolicyKeepsUsersDelays(t *testing.T) {
	policy := renderedPolicy(t, "podstatus-")
	own := map[string]string{scaleUpDelay: "10m"}
	for name, test := range map[string]struct {
		before, after map[string]string
		allowed       bool
	}{
		"set":                            {own, keptFor("1h0m0s", "10m"), true},
		"renewed":                        {keptFor("1h0m0s", "10m"), keptFor("2h30m0s", "10m"), true},
		"put back":                       {keptFor("1h0m0s", "10m"), own, true},
		"put back, it was none":          {keptFor("1h0m0s", ""), nil, true},
		"of before there was a mark":     {map[string]string{scaleUpDelay: aHundred}, nil, true},
		"that, renewed":                  {map[string]string{scaleUpDelay: aHundred}, keptFor("1h0m0s", ""), true},
		"removed":                        {own, nil, false},
		"forgotten":                      {own, keptFor("1h0m0s", ""), false},
		"forgotten at the end":           {keptFor("1h0m0s", "10m"), nil, false},
		"another one put back":           {keptFor("1h0m0s", "10m"), map[string]string{scaleUpDelay: "0s"}, false},
		"another one noted":              {keptFor("1h0m0s", "10m"), keptFor("1h0m0s", "0s"), false},
		"the delay gone, the mark stays": {keptFor("1h0m0s", "10m"), map[string]string{delayBefore: "10m"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			before, after := waiting(), waiting()
			before.Annotations, after.Annotations = test.before, test.after
			_, messages := policy.Review(t, admission.Review{Kind: "Pod", Object: after, Old: before, User: theController})
			if refused := strings.Join(messages, "\n"); (refused == "") != test.allowed {
				t.Errorf("refused: %q, want allowed: %t", refused, test.allowed)
			}
		})
	}
}

func TestNodeStatusPolicyDecides(t *testing.T) {
	policy := renderedPolicy(t, "nodestatus-")
	ready := corev1.NodeCondition{Type: corev1.NodeReady, Status: corev1.ConditionTrue}
	ours := corev1.NodeCondition{Type: "mica.gpu/GPUsHealthy", Status: corev1.ConditionFalse}
	node := func() *corev1.Node {
		return &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: "n", Labels: map[string]string{"a": "b"}, Annotations: map[string]string{"a": "b"}},
			Status:     corev1.NodeStatus{Conditions: []corev1.NodeCondition{ready}},
		}
	}
	for name, test := range map[string]struct {
		change func(*corev1.Node)
		want   string
	}{
		"its condition and annotation": {func(n *corev1.Node) {
			n.Status.Conditions = append(n.Status.Conditions, ours)
			n.Annotations["mica.gpu/gpu-faults"] = "[]"
		}, ""},
		"that it is ready": {func(n *corev1.Node) { n.Status.Conditions[0].Status = corev1.ConditionFalse }, "and no other"},
		"another condition": {func(n *corev1.Node) {
			n.Status.Conditions = append(n.Status.Conditions, corev1.NodeCondition{Type: "MemoryPressure"})
		}, "and no other"},
		"no condition left":    {func(n *corev1.Node) { n.Status.Conditions = nil }, "and no other"},
		"what it can allocate": {func(n *corev1.Node) { n.Status.Allocatable = corev1.ResourceList{"cpu": resource.MustParse("1")} }, "nothing else"},
		"an address": {func(n *corev1.Node) {
			n.Status.Addresses = []corev1.NodeAddress{{Type: "InternalIP", Address: "10.0.0.1"}}
		}, "nothing else"},
		"where its kubelet answers": {func(n *corev1.Node) { n.Status.DaemonEndpoints.KubeletEndpoint.Port = 8080 }, "nothing else"},
		"its container runtime":     {func(n *corev1.Node) { n.Status.NodeInfo.ContainerRuntimeVersion = "x" }, "nothing else"},
		"what its runtime can":      {func(n *corev1.Node) { n.Status.RuntimeHandlers = []corev1.NodeRuntimeHandler{{Name: "x"}} }, "nothing else"},
		"a label on the way":        {func(n *corev1.Node) { n.Labels["a"] = "c" }, "nothing else"},
		"another annotation":        {func(n *corev1.Node) { n.Annotations["a"] = "c" }, "and no other"},
		"an annotation gone":        {func(n *corev1.Node) { delete(n.Annotations, "a") }, "and no other"},
	} {
		t.Run(name, func(t *testing.T) {
			after := node()
			test.change(after)
			expectDecision(t, policy, admission.Review{Kind: "Node", Object: after, Old: node(), User: theController}, test.want)
		})
	}
}

// placeholder is what the controller creates: see pkg/scaleout/pair.
func placeholder() *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: "mica-gpus-0", Namespace: "mica-placeholders",
			Labels:          map[string]string{"mica.gpu/node-group": "gpus"},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "mica.gpu/v1alpha1", Kind: "GPUNodeGroup", Name: "gpus", Controller: ptr.To(true)}},
		},
		Spec: corev1.PodSpec{
			NodeSelector:                 map[string]string{"pool": "gpus"},
			Tolerations:                  []corev1.Toleration{{Key: "nvidia.com/gpu", Operator: corev1.TolerationOpExists}},
			PriorityClassName:            "mica-placeholder",
			ServiceAccountName:           "default", // of admission
			AutomountServiceAccountToken: ptr.To(false),
			EnableServiceLinks:           ptr.To(false),
			SecurityContext: &corev1.PodSecurityContext{
				RunAsNonRoot: ptr.To(true), RunAsUser: ptr.To(int64(65534)), SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
			},
			Containers: []corev1.Container{{
				Name: "placeholder", Image: "mica-gpu/controller:0.1.0", Args: []string{"pause"},
				Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{"cpu": resource.MustParse("4"), "memory": resource.MustParse("8Gi")}},
				SecurityContext: &corev1.SecurityContext{
					AllowPrivilegeEscalation: ptr.To(false), ReadOnlyRootFilesystem: ptr.To(true), Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
				},
			}},
		},
	}
}

// Who has stolen the controller's token can make placeholders, and no pod that does anything.
func TestPlaceholderPolicyDecides(t *testing.T) {
	policy := renderedPolicy(t, "placeholders-")
	container := func(change func(*corev1.Container)) func(*corev1.Pod) {
		return func(p *corev1.Pod) { change(&p.Spec.Containers[0]) }
	}
	for name, test := range map[string]struct {
		change func(*corev1.Pod)
		want   string // part of the message; "" is accepted
	}{
		"a placeholder":                 {func(*corev1.Pod) {}, ""},
		"another namespace":             {func(p *corev1.Pod) { p.Namespace = "kube-system" }, "in the namespace mica-placeholders and nowhere else"},
		"the release's namespace":       {func(p *corev1.Pod) { p.Namespace = "mica" }, "in the namespace mica-placeholders and nowhere else"},
		"no label":                      {func(p *corev1.Pod) { p.Labels = nil }, "and no other pods"},
		"no owner":                      {func(p *corev1.Pod) { p.OwnerReferences = nil }, "and no other pods"},
		"another image":                 {container(func(c *corev1.Container) { c.Image = "alpine" }), "runs the image mica-gpu/controller:"},
		"no argument":                   {container(func(c *corev1.Container) { c.Args = nil }), "with the argument pause"},
		"more arguments":                {container(func(c *corev1.Container) { c.Args = append(c.Args, "x") }), "with the argument pause"},
		"a command":                     {container(func(c *corev1.Container) { c.Command = []string{"sh"} }), "and nothing else"},
		"an environment":                {container(func(c *corev1.Container) { c.Env = []corev1.EnvVar{{Name: "LD_PRELOAD"}} }), "and nothing else"},
		"the environment of a Secret":   {container(func(c *corev1.Container) { c.EnvFrom = []corev1.EnvFromSource{{}} }), "and nothing else"},
		"a hook":                        {container(func(c *corev1.Container) { c.Lifecycle = &corev1.Lifecycle{} }), "and nothing else"},
		"a probe":                       {container(func(c *corev1.Container) { c.LivenessProbe = &corev1.Probe{} }), "and nothing else"},
		"a second container":            {func(p *corev1.Pod) { p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: "x"}) }, "and nothing else"},
		"a container before":            {func(p *corev1.Pod) { p.Spec.InitContainers = []corev1.Container{{Name: "x"}} }, "and nothing else"},
		"privileged":                    {container(func(c *corev1.Container) { c.SecurityContext.Privileged = ptr.To(true) }), "no privileges"},
		"perhaps root":                  {func(p *corev1.Pod) { p.Spec.SecurityContext.RunAsNonRoot = nil }, "no privileges"},
		"perhaps root in its container": {container(func(c *corev1.Container) { c.SecurityContext.RunAsNonRoot = ptr.To(false) }), "no privileges"},
		"a capability":                  {container(func(c *corev1.Container) { c.SecurityContext.Capabilities.Add = []corev1.Capability{"SYS_ADMIN"} }), "no privileges"},
		"the usual capabilities":        {container(func(c *corev1.Container) { c.SecurityContext.Capabilities = nil }), "no privileges"},
		"escalation":                    {container(func(c *corev1.Container) { c.SecurityContext.AllowPrivilegeEscalation = nil }), "no privileges"},
		"no security context":           {func(p *corev1.Pod) { p.Spec.SecurityContext, p.Spec.Containers[0].SecurityContext = nil, nil }, "no privileges"},
		"the host's network":            {func(p *corev1.Pod) { p.Spec.HostNetwork = true }, "nothing of the host's"},
		"the host's processes":          {func(p *corev1.Pod) { p.Spec.HostPID = true }, "nothing of the host's"},
		"the host's IPC":                {func(p *corev1.Pod) { p.Spec.HostIPC = true }, "nothing of the host's"},
		"a token":                       {func(p *corev1.Pod) { p.Spec.AutomountServiceAccountToken = nil }, "no token"},
		"another ServiceAccount":        {func(p *corev1.Pod) { p.Spec.ServiceAccountName = "admin" }, "no token"},
		"a volume":                      {func(p *corev1.Pod) { p.Spec.Volumes = []corev1.Volume{{Name: "host"}} }, "no volume"},
		"a node of its choice":          {func(p *corev1.Pod) { p.Spec.NodeName = "n" }, "a node that the scheduler chooses"},
		"a runtime class":               {func(p *corev1.Pod) { p.Spec.RuntimeClassName = ptr.To("nvidia") }, "no runtime class"},
		"a priority that others yield to": {func(p *corev1.Pod) { p.Spec.PriorityClassName = "system-node-critical" },
			"with the priority class mica-placeholder"},
		"a claim": {func(p *corev1.Pod) { p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu"}} }, "CPU and memory only"},
		"a GPU":   {container(func(c *corev1.Container) { c.Resources.Requests["nvidia.com/gpu"] = resource.MustParse("1") }), "CPU and memory only"},
	} {
		t.Run(name, func(t *testing.T) {
			pod := placeholder()
			test.change(pod)
			expectDecision(t, policy, admission.Review{Kind: "Pod", Namespace: pod.Namespace, Object: pod, User: theController}, test.want)
		})
	}
	if matched, _ := policy.Review(t, admission.Review{Kind: "Pod", Object: placeholder(), User: user.DefaultInfo{Name: "a user"}}); matched {
		t.Error("others than the controller are looked at")
	}
}

// After an upgrade, placeholders of the release before have another image.
func TestOnlyPlaceholdersMayBeDeleted(t *testing.T) {
	policy := renderedPolicy(t, "placeholders-")
	old := placeholder()
	old.Spec.Containers[0].Image = "mica-gpu/controller:older"
	if matched, messages := policy.Review(t, admission.Review{Kind: "Pod", Namespace: old.Namespace, Old: old, User: theController}); !matched || len(messages) > 0 {
		t.Errorf("an older release's placeholder: looked at: %t, refused: %q", matched, messages)
	}
	plugin := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "mica-plugin-x", Namespace: "mica"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "plugin"}}}}
	if _, messages := policy.Review(t, admission.Review{Kind: "Pod", Namespace: "mica", Old: plugin, User: theController}); !strings.Contains(strings.Join(messages, "\n"), "and no other pods") {
		t.Errorf("the plugin's pod: refused: %q", messages)
	}
}
