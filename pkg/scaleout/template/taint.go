package template

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
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

// agentNotReady ends the keys of taints by which Cilium and the CSI drivers of AWS keep pods off
// a node until their own pod runs there.
const agentNotReady = "/agent-not-ready"

// TaintToBeDeleted is on a node that Cluster Autoscaler is about to end.
const TaintToBeDeleted = "ToBeDeletedByClusterAutoscaler"

// failingTaints are prefixes of taints that a node has while it ends or is ill.
var failingTaints = []string{
	"node.kubernetes.io/",
	"node.cloudprovider.kubernetes.io/",
	"status-taint.cluster-autoscaler.kubernetes.io/",
	TaintToBeDeleted,
	"DeletionCandidateOfClusterAutoscaler",
	"aws-node-termination-handler/",
}

// IsStartup tells whether a node has the taint only until it has started.
func IsStartup(taint corev1.Taint) bool {
	return hasPrefix(taint.Key, startupTaints) || strings.HasSuffix(taint.Key, agentNotReady)
}

// WithoutStartup are the taints of a node that has started.
func WithoutStartup(taints []corev1.Taint) []corev1.Taint {
	return slices.DeleteFunc(slices.Clone(taints), IsStartup)
}

// lasting are the taints that a new node keeps: without those of its start, its end and illness.
func lasting(taints []corev1.Taint) []corev1.Taint {
	return slices.DeleteFunc(WithoutStartup(taints), func(taint corev1.Taint) bool { return hasPrefix(taint.Key, failingTaints) })
}

func hasPrefix(key string, prefixes []string) bool {
	return slices.ContainsFunc(prefixes, func(prefix string) bool { return strings.HasPrefix(key, prefix) })
}
