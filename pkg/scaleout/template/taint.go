package template

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/mica-gpu/mica/api/v1alpha1"
)

// startupTaints are prefixes of taints that a new node loses by itself once it has started.
var startupTaints = []string{
	"node.kubernetes.io/not-ready",
	"node.kubernetes.io/unreachable",
	"node.kubernetes.io/network-unavailable",
	"node.kubernetes.io/uninitialized",
	"node.cloudprovider.kubernetes.io/uninitialized",
	"node.eks.amazonaws.com/not-ready",
	// Cluster Autoscaler's, Mica's own among them, and its built-in one for readiness rules.
	"startup-taint.cluster-autoscaler.kubernetes.io/",
	"ignore-taint.cluster-autoscaler.kubernetes.io/",
	"readiness.k8s.io/",
}

// StartupTaints are the startup taints of a cluster: the usual ones, and those that an administrator has added. An
// autoscaler has one list for all of its nodes.
type StartupTaints struct {
	// Keys are whole keys, and Prefixes those of keys, as in Cluster Autoscaler's --startup-taint and
	// --startup-taint-prefix.
	Keys, Prefixes []string
}

// agentNotReady ends the keys of taints by which Cilium and the CSI drivers of AWS keep pods off
// a node until their own pod runs there.
const agentNotReady = "/agent-not-ready"

// agents are the prefixes of such taints.
var agents = []string{"node.cilium.io", "ebs.csi.aws.com", "efs.csi.aws.com", "fsx.csi.aws.com"}

// Tolerations are for the startup taints with a known key, and for those among a group's taints.
func (s StartupTaints) Tolerations(ofGroup []corev1.Taint) []corev1.Toleration {
	keys := []string{v1alpha1.TaintStartup}
	for _, key := range startupTaints {
		if !strings.HasSuffix(key, "/") {
			keys = append(keys, key)
		}
	}
	for _, agent := range agents {
		keys = append(keys, agent+agentNotReady)
	}
	keys = append(keys, s.Keys...)
	for _, taint := range ofGroup {
		if s.Has(taint) && !slices.Contains(keys, taint.Key) {
			keys = append(keys, taint.Key)
		}
	}
	tolerations := make([]corev1.Toleration, 0, len(keys))
	for _, key := range keys {
		tolerations = append(tolerations, corev1.Toleration{Key: key, Operator: corev1.TolerationOpExists})
	}
	return tolerations
}

// TaintToBeDeleted is on a node that Cluster Autoscaler is about to delete.
const TaintToBeDeleted = "ToBeDeletedByClusterAutoscaler"

// failingTaints are prefixes of taints of nodes that end or are unhealthy.
var failingTaints = []string{
	"node.kubernetes.io/",
	"node.cloudprovider.kubernetes.io/",
	"status-taint.cluster-autoscaler.kubernetes.io/",
	TaintToBeDeleted,
	"DeletionCandidateOfClusterAutoscaler",
	"aws-node-termination-handler/",
}

// Has reports whether a node has the taint only until it has started.
func (s StartupTaints) Has(taint corev1.Taint) bool {
	return hasPrefix(taint.Key, startupTaints) || strings.HasSuffix(taint.Key, agentNotReady) ||
		slices.Contains(s.Keys, taint.Key) || hasPrefix(taint.Key, s.Prefixes)
}

// Without are the taints of a node that has started.
func (s StartupTaints) Without(taints []corev1.Taint) []corev1.Taint {
	return slices.DeleteFunc(slices.Clone(taints), s.Has)
}

// lasting are the taints that a new node keeps: without those of its start, its end and its faults.
func (s StartupTaints) lasting(taints []corev1.Taint) []corev1.Taint {
	return slices.DeleteFunc(s.Without(taints), func(taint corev1.Taint) bool { return hasPrefix(taint.Key, failingTaints) })
}

func hasPrefix(key string, prefixes []string) bool {
	return slices.ContainsFunc(prefixes, func(prefix string) bool { return strings.HasPrefix(key, prefix) })
}
