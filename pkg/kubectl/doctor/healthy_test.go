package doctor

import (
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/mica-gpu/mica/api/v1alpha1"
)

var (
	now   = time.Date(2026, 10, 1, 12, 0, 0, 0, time.UTC)
	early = metav1.NewTime(now.Add(-time.Hour))
)

// healthy is a cluster without a mistake: an EKS node group with one node.
func healthy() *Facts {
	f := &Facts{
		Driver: "gpu.nvidia.com", Now: now, Version: "v1.37.2", Served: map[string]bool{"resource.k8s.io/v1 resourceslices": true},
		Nodes:             []*corev1.Node{gpuNode("gpu-1")},
		ExtendedResources: map[corev1.ResourceName]bool{"nvidia.com/gpu": true, "nvidia.com/gpu.shared": true},
		DaemonSets:        []*appsv1.DaemonSet{plugin()},
		Groups:            []*v1alpha1.GPUNodeGroup{group()},
		Policies:          []*v1alpha1.GPUPolicy{{ObjectMeta: metav1.ObjectMeta{Name: "mica"}}},
		GPUNodes:          []*v1alpha1.GPUNode{{ObjectMeta: metav1.ObjectMeta{Name: "gpu-1"}}},
		Headrooms:         []*v1alpha1.GPUHeadroom{{ObjectMeta: metav1.ObjectMeta{Name: "warm"}, Status: v1alpha1.GPUHeadroomStatus{Conditions: conditions(v1alpha1.ConditionReady, "True", v1alpha1.ReasonKept)}}},
		TaintRules:        []*resourceapi.DeviceTaintRule{taintRule("cordon", &resourceapi.DeviceTaintSelector{Pool: ptr.To("gpu-1")}, resourceapi.DeviceTaintEffectNoSchedule)},
		Unseen:            map[Kind]string{},
	}
	for _, kind := range kinds {
		f.Served["mica.gpu/v1alpha1 "+kind] = true
	}
	f.Deployments = []*appsv1.Deployment{{
		ObjectMeta: metav1.ObjectMeta{Namespace: "mica", Name: "mica-controller", Labels: map[string]string{"app.kubernetes.io/name": "mica", "app.kubernetes.io/component": "controller"}},
		Status:     appsv1.DeploymentStatus{ReadyReplicas: 1},
	}}
	f.Slices = append(f.Slices, slice("gpu-1-a", "gpu-1", 1, 1))
	f.AddPod(pluginPod("gpu-1", true))
	return f
}

func gpuNode(name string) *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: early, Labels: map[string]string{
			"nvidia.com/gpu.present": "true", corev1.LabelInstanceTypeStable: "p5.48xlarge", v1alpha1.LabelEKSNodegroup: "h100", corev1.LabelTopologyZone: "eu-1a",
		}},
		Spec: corev1.NodeSpec{Taints: []corev1.Taint{{Key: "nvidia.com/gpu", Value: "true", Effect: corev1.TaintEffectNoSchedule}}},
		Status: corev1.NodeStatus{
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
			NodeInfo:   corev1.NodeSystemInfo{ContainerRuntimeVersion: "containerd://2.2.0", KubeletVersion: "v1.37.2", OSImage: "Ubuntu 24.04"},
		},
	}
}

func group() *v1alpha1.GPUNodeGroup {
	g := &v1alpha1.GPUNodeGroup{ObjectMeta: metav1.ObjectMeta{Name: "h100"}}
	g.Spec.Provider.EKS = &v1alpha1.EKSNodegroup{Cluster: "prod", Nodegroup: "h100"}
	g.Spec.Pairing = v1alpha1.PairingPlaceholder
	g.Status.Conditions = conditions(v1alpha1.ConditionReady, "True", v1alpha1.ReasonReady)
	return g
}

func conditions(kind, status, reason string) []metav1.Condition {
	return []metav1.Condition{{Type: kind, Status: metav1.ConditionStatus(status), Reason: reason, Message: "As the controller says."}}
}

func plugin() *appsv1.DaemonSet {
	return daemonSet("mica", "mica-kubelet-plugin", corev1.Container{Name: "plugin", Image: "mica:1"},
		map[string]string{"app.kubernetes.io/name": "mica", "app.kubernetes.io/component": "kubelet-plugin"})
}

func daemonSet(namespace, name string, container corev1.Container, labels map[string]string) *appsv1.DaemonSet {
	return &appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: labels},
		Spec: appsv1.DaemonSetSpec{Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{
			NodeSelector: map[string]string{"nvidia.com/gpu.present": "true"},
			Tolerations:  []corev1.Toleration{{Key: "nvidia.com/gpu", Operator: corev1.TolerationOpExists}},
			Containers:   []corev1.Container{container},
		}}},
	}
}

func pluginPod(node string, ready bool) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: "mica", Name: "plugin-" + node, OwnerReferences: []metav1.OwnerReference{{Kind: "DaemonSet", Name: "mica-kubelet-plugin"}},
	}}
	pod.Spec.NodeName = node
	if ready {
		pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: early}}
	}
	return pod
}

func slice(name, node string, generation, of int64) *resourceapi.ResourceSlice {
	return &resourceapi.ResourceSlice{
		ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: early},
		Spec: resourceapi.ResourceSliceSpec{
			Driver: "gpu.nvidia.com", NodeName: &node, Pool: resourceapi.ResourcePool{Name: node, Generation: generation, ResourceSliceCount: of},
			Devices: []resourceapi.Device{{Name: "gpu-0", Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
				"type": {StringValue: ptr.To("gpu")}, "uuid": {StringValue: ptr.To("GPU-0")}, "driverVersion": {VersionValue: ptr.To("580.95.5")},
			}}},
		},
	}
}

func taintRule(name string, selector *resourceapi.DeviceTaintSelector, effect resourceapi.DeviceTaintEffect) *resourceapi.DeviceTaintRule {
	rule := &resourceapi.DeviceTaintRule{ObjectMeta: metav1.ObjectMeta{Name: name}}
	rule.Spec.Taint = resourceapi.DeviceTaint{Key: "example.com/sick", Effect: effect}
	rule.Spec.DeviceSelector = selector
	return rule
}
