package v1alpha1

// Labels, annotations and taints that Mica writes or reads.
const (
	// LabelNodeGroup is a placeholder's GPUNodeGroup.
	LabelNodeGroup = "mica.gpu/node-group"
	// LabelKind is the kind of the pods that a placeholder is for.
	LabelKind = "mica.gpu/kind"
	// AnnotationPods names the pods that a placeholder is for, for people.
	AnnotationPods = "mica.gpu/for-pods"
	// AnnotationKinds has all kinds of these pods.
	AnnotationKinds = "mica.gpu/kinds"
	// LabelDiscovered is on groups that the controller has discovered, with the source: nodes or eks.
	LabelDiscovered = "mica.gpu/discovered-from"

	// TaintStartup keeps pods from a node until it offers all devices of its group's template. Cluster
	// Autoscaler takes no node with this taint as a template. The prefix is Cluster Autoscaler's.
	TaintStartup = "startup-taint.cluster-autoscaler.kubernetes.io/mica"

	// AnnotationScaleDownDisabled is Cluster Autoscaler's. AnnotationProtected marks it as set by the
	// controller, with the reason: "claim", "headroom" or "use".
	AnnotationScaleDownDisabled = "cluster-autoscaler.kubernetes.io/scale-down-disabled"
	AnnotationProtected         = "mica.gpu/protected-for"

	// AnnotationHeldUntil is on nodes that the controller has protected or cordoned, with the time, as
	// in RFC 3339, at which that expires. The leader renews it.
	AnnotationHeldUntil = "mica.gpu/held-until"

	// AnnotationScaleUpDelay is Cluster Autoscaler's: the age of a pod before it adds a node for it.
	// The controller sets it on pods under a GPUBudget, and renews it, or sets it to
	// ScaleUpDelayForever, a hundred years. AnnotationDelayBefore has the previous value, or is empty.
	AnnotationScaleUpDelay = "cluster-autoscaler.kubernetes.io/pod-scale-up-delay"
	AnnotationDelayBefore  = "mica.gpu/scale-up-delay-before"
	ScaleUpDelayForever    = "876000h"

	// AnnotationScaleIn is on empty nodes of groups with pairing direct: the step, "empty", "cordoned"
	// or "ending", and the time at which it began, as in RFC 3339.
	AnnotationScaleIn = "mica.gpu/scale-in"

	// ConditionGPUsHealthy is set on nodes that have had a sick GPU. It is False while a GPU has a
	// fault that keeps claims away. AnnotationGPUFaults has all faults of the node's GPUs, as JSON.
	ConditionGPUsHealthy = "mica.gpu/GPUsHealthy"
	AnnotationGPUFaults  = "mica.gpu/gpu-faults"

	// AnnotationRepaired is the prefix of an annotation that an administrator sets on a node, before the UUID of one of its
	// GPUs. The value is the time, as in RFC 3339, at which the GPU was repaired: faults from before it that no driver
	// reports as over end.
	AnnotationRepaired = "repaired.mica.gpu/"

	// ConditionScaleUp is set on pending pods. It reports how they get a node, or why they do not.
	ConditionScaleUp = "mica.gpu/ScaleUp"

	// ConditionServing is set on pods with a readiness gate of this name. A pod that has loaded its
	// model is not Ready, and gets no traffic, until the controller sets the condition to True.
	ConditionServing = "mica.gpu/serving"

	// Reasons of ConditionScaleUp that the controller also reads. ReasonFitsNode: a node has room for
	// the pod. ReasonNodeUnused: the scheduler has not used that room for too long.
	ReasonFitsNode   = "GPUFitsNode"
	ReasonNodeUnused = "GPUNodeUnused"
)
