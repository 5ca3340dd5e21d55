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

// declared are the startup taints of which only the cluster's operator knows.
var declared struct{ keys, prefixes []string }

// DeclareStartup says which other taints are startup taints, by their whole keys and by prefixes of
// keys, as Cluster Autoscaler's --startup-taint and --startup-taint-prefix do. It is called before
// anything else, at most once: an autoscaler has one list for all of its nodes.
func DeclareStartup(keys, prefixes []string) {
	declared.keys, declared.prefixes = keys, prefixes
}

// agentNotReady ends the keys of taints by which Cilium and the CSI drivers of AWS keep pods off
// a node until their own pod runs there.
const agentNotReady = "/agent-not-ready"

// agents are those whose taint ends in agentNotReady.
var agents = []string{"node.cilium.io", "ebs.csi.aws.com", "efs.csi.aws.com", "fsx.csi.aws.com"}

// StartupTolerations are for the startup taints of which the whole key is known, and for those among
// a group's taints.
func StartupTolerations(ofGroup []corev1.Taint) []corev1.Toleration {
	keys := []string{v1alpha1.TaintStartup}
	for _, key := range startupTaints {
		if !strings.HasSuffix(key, "/") {
			keys = append(keys, key)
		}
	}
	for _, agent := range agents {
		keys = append(keys, agent+agentNotReady)
	}
	keys = append(keys, declared.keys...)
	for _, taint := range ofGroup {
		if IsStartup(taint) && !slices.Contains(keys, taint.Key) {
			keys = append(keys, taint.Key)
		}
	}
	tolerations := make([]corev1.Toleration, 0, len(keys))
	for _, key := range keys {
		tolerations = append(tolerations, corev1.Toleration{Key: key, Operator: corev1.TolerationOpExists})
	}
	return tolerations
}

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
	return hasPrefix(taint.Key, startupTaints) || strings.HasSuffix(taint.Key, agentNotReady) ||
		slices.Contains(declared.keys, taint.Key) || hasPrefix(taint.Key, declared.prefixes)
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
