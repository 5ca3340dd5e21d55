package v1alpha1

// Labels, annotations and taints that Mica writes or reads.
const (
	// LabelNodeGroup is on placeholders, with the GPUNodeGroup for which they are.
	LabelNodeGroup = "mica.gpu/node-group"
	// LabelKind is on placeholders, with the kind of the pods for which they are.
	LabelKind = "mica.gpu/kind"
	// AnnotationPods is on placeholders, with the pods for which they are, for people.
	AnnotationPods = "mica.gpu/for-pods"
	// AnnotationKinds is on placeholders, with all kinds of those pods.
	AnnotationKinds = "mica.gpu/kinds"
	// LabelDiscovered is on groups that the controller has found, with how: nodes or eks.
	LabelDiscovered = "mica.gpu/discovered-from"

	// TaintStartup keeps pods, and Cluster Autoscaler's template, from a node until it offers
	// what its group's template promises. The prefix is Cluster Autoscaler's.
	TaintStartup = "startup-taint.cluster-autoscaler.kubernetes.io/mica"

	// AnnotationScaleDownDisabled is Cluster Autoscaler's, and AnnotationProtected says that
	// it was put there by the controller, and for what: "claim", "headroom" or "use".
	AnnotationScaleDownDisabled = "cluster-autoscaler.kubernetes.io/scale-down-disabled"
	AnnotationProtected         = "mica.gpu/protected-for"

	// AnnotationHeldUntil is on nodes that the controller has protected or cordoned, with the time until which
	// that holds, as in RFC 3339. The controller renews it while it leads; after that time it is taken back.
	AnnotationHeldUntil = "mica.gpu/held-until"

	// AnnotationScaleUpDelay is Cluster Autoscaler's: how old a pod has to be before a node is added
	// for it. The controller sets it on pods that it plans under a GPUBudget, for as long as it renews
	// it, or to ScaleUpDelayForever, which is a hundred years. AnnotationDelayBefore beside it has the
	// value that was there before, which is empty if there was none.
	AnnotationScaleUpDelay = "cluster-autoscaler.kubernetes.io/pod-scale-up-delay"
	AnnotationDelayBefore  = "mica.gpu/scale-up-delay-before"
	ScaleUpDelayForever    = "876000h"

	// AnnotationScaleIn is on nodes of pairing direct that are empty, with how far their end is,
	// and since when: "empty", "cordoned" or "ending", and a time as in RFC 3339.
	AnnotationScaleIn = "mica.gpu/scale-in"

	// ConditionGPUsHealthy is of nodes that have had a sick GPU: whether none has a fault that keeps
	// claims away. AnnotationGPUFaults has all faults of the node's GPUs, as JSON.
	ConditionGPUsHealthy = "mica.gpu/GPUsHealthy"
	AnnotationGPUFaults  = "mica.gpu/gpu-faults"

	// AnnotationRepaired is the prefix of an annotation that an administrator sets on a node, before the UUID of one of its
	// GPUs. The value is the time, as in RFC 3339, at which the GPU was repaired: faults from before it that no driver
	// reports as over end.
	AnnotationRepaired = "repaired.mica.gpu/"

	// ConditionScaleUp is of pending pods: whether and by what they get a node.
	ConditionScaleUp = "mica.gpu/ScaleUp"

	// ConditionServing is of pods with a readiness gate of this name: a pod that has loaded its
	// model is not Ready, and in no Endpoints, until the controller makes it True.
	ConditionServing = "mica.gpu/serving"

	// Reasons of ConditionScaleUp that the controller itself reads again: ReasonFitsNode is of a pod
	// for which a node has room, ReasonNodeUnused of one that was not put there for too long.
	ReasonFitsNode   = "GPUFitsNode"
	ReasonNodeUnused = "GPUNodeUnused"
)
