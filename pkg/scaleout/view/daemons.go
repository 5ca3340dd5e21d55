package view

import (
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	corehelpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/klog/v2"
)

// daemon is the pod that a DaemonSet puts on each node that it selects.
type daemon struct {
	pod      *corev1.Pod
	affinity nodeaffinity.RequiredNodeAffinity
}

// daemonTolerations are those that the DaemonSet controller adds to every pod, as far as
// taints keep a pod from a node. Source: Kubernetes' documentation of DaemonSets, "Taints and
// tolerations".
var daemonTolerations = []corev1.Toleration{
	{Key: corev1.TaintNodeNotReady, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute},
	{Key: corev1.TaintNodeUnreachable, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute},
	{Key: corev1.TaintNodeDiskPressure, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule},
	{Key: corev1.TaintNodeMemoryPressure, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule},
	{Key: corev1.TaintNodePIDPressure, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule},
	{Key: corev1.TaintNodeUnschedulable, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule},
	{Key: corev1.TaintNodeNetworkUnavailable, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule},
}

func daemonsOf(sets []appsv1.DaemonSet) []daemon {
	out := make([]daemon, 0, len(sets))
	for i := range sets {
		set := &sets[i]
		if set.DeletionTimestamp != nil {
			continue
		}
		pod := &corev1.Pod{Spec: set.Spec.Template.Spec}
		pod.Name, pod.Namespace = set.Name, set.Namespace
		pod.Labels = set.Spec.Template.Labels
		pod.Spec.Tolerations = append(append([]corev1.Toleration(nil), pod.Spec.Tolerations...), daemonTolerations...)
		out = append(out, daemon{pod: pod, affinity: nodeaffinity.GetRequiredNodeAffinity(pod)})
	}
	return out
}

// daemonPods are those that a new node gets. Devices that they ask for by a claim's template
// are not modelled: a DaemonSet's claims are for administrators, and take nothing.
func daemonPods(daemons []daemon, node *corev1.Node) []*corev1.Pod {
	var pods []*corev1.Pod
	for _, d := range daemons {
		// An affinity that cannot be read selects no node, for the DaemonSet controller too.
		if match, err := d.affinity.Match(node); err != nil || !match {
			continue
		}
		_, untolerated := corehelpers.FindMatchingUntoleratedTaint(klog.Background(), node.Spec.Taints, d.pod.Spec.Tolerations, keepsPodsOff, true)
		if !untolerated {
			pods = append(pods, d.pod)
		}
	}
	return pods
}

func keepsPodsOff(taint *corev1.Taint) bool {
	return taint.Effect == corev1.TaintEffectNoSchedule || taint.Effect == corev1.TaintEffectNoExecute
}
