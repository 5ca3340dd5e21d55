package view

import (
	"cmp"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	corehelpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/klog/v2"

	"github.com/mica-gpu/mica/api/v1alpha1"
	"github.com/mica-gpu/mica/pkg/scaleout/fit"
)

// Daemon is a DaemonSet with the pod that it creates on each node.
type Daemon struct {
	set      *appsv1.DaemonSet
	pod      *corev1.Pod
	affinity nodeaffinity.RequiredNodeAffinity
}

// daemonTolerations are those that the DaemonSet controller adds to every pod. Source: Kubernetes' documentation of
// DaemonSets, "Taints and tolerations".
var daemonTolerations = []corev1.Toleration{
	{Key: corev1.TaintNodeNotReady, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute},
	{Key: corev1.TaintNodeUnreachable, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute},
	{Key: corev1.TaintNodeDiskPressure, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule},
	{Key: corev1.TaintNodeMemoryPressure, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule},
	{Key: corev1.TaintNodePIDPressure, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule},
	{Key: corev1.TaintNodeUnschedulable, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule},
	{Key: corev1.TaintNodeNetworkUnavailable, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule},
}

// DaemonsOf leaves out DaemonSets that are being deleted.
func DaemonsOf(sets []appsv1.DaemonSet) []Daemon {
	out := make([]Daemon, 0, len(sets))
	for i := range sets {
		set := &sets[i]
		if set.DeletionTimestamp != nil {
			continue
		}
		pod := &corev1.Pod{Spec: set.Spec.Template.Spec}
		pod.Name, pod.Namespace = set.Name, set.Namespace
		pod.Labels = set.Spec.Template.Labels
		pod.Spec.Tolerations = append(append([]corev1.Toleration(nil), pod.Spec.Tolerations...), daemonTolerations...)
		out = append(out, Daemon{set: set, pod: pod, affinity: nodeaffinity.GetRequiredNodeAffinity(pod)})
	}
	return out
}

// daemonPods are the pods of DaemonSets that a new node gets. Their claims are ignored: they are for administrators,
// and take no devices.
func daemonPods(daemons []Daemon, node *corev1.Node) []*corev1.Pod {
	var pods []*corev1.Pod
	for _, d := range daemons {
		// As for the DaemonSet controller, an affinity that cannot be parsed selects no node.
		if match, err := d.affinity.Match(node); err != nil || !match {
			continue
		}
		if !d.untolerated(node, fit.Repels) {
			pods = append(pods, d.pod)
		}
	}
	return pods
}

// KeptOff are the DaemonSets that only Mica's startup taint keeps off the node. Other startup taints do not count,
// because they are removed without Mica. DaemonSets that nodes need most come first.
func (v *View) KeptOff(node *corev1.Node) []*appsv1.DaemonSet {
	ours := func(taint *corev1.Taint) bool { return taint.Key == v1alpha1.TaintStartup && fit.Repels(taint) }
	others := func(taint *corev1.Taint) bool { return !v.StartupTaints.Has(*taint) && fit.Repels(taint) }
	var kept []*appsv1.DaemonSet
	for _, d := range v.Daemons {
		match, err := d.affinity.Match(node)
		if err != nil || !match || !d.untolerated(node, ours) || d.untolerated(node, others) {
			continue
		}
		kept = append(kept, d.set)
	}
	slices.SortFunc(kept, func(a, b *appsv1.DaemonSet) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
	})
	return kept
}

// rank is lower if a node needs the DaemonSet more, by its priority class.
func rank(set *appsv1.DaemonSet) int {
	switch set.Spec.Template.Spec.PriorityClassName {
	case "system-node-critical":
		return 0
	case "system-cluster-critical":
		return 1
	}
	return 2
}

func (d Daemon) untolerated(node *corev1.Node, which func(*corev1.Taint) bool) bool {
	_, untolerated := corehelpers.FindMatchingUntoleratedTaint(klog.Background(), node.Spec.Taints, d.pod.Spec.Tolerations, which, true)
	return untolerated
}
