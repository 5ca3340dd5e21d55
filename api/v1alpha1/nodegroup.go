package v1alpha1

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// GPUNodeGroup is a group of nodes of one kind. It grows, also from zero, for claims that no existing
// node can satisfy. The spec selects the nodes, describes a new node, and sets how the group grows.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:validation:XValidation:rule="size(self.metadata.name) <= 63",message="the name of a GPUNodeGroup is the value of a label, and has at most 63 characters"
// +kubebuilder:resource:path=gpunodegroups,scope=Cluster,shortName=gng
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Type",type=string,JSONPath=`.status.instanceType`
// +kubebuilder:printcolumn:name="Template",type=string,JSONPath=`.status.template.source`
// +kubebuilder:printcolumn:name="Nodes",type=integer,JSONPath=`.status.nodes`
// +kubebuilder:printcolumn:name="Demand",type=integer,JSONPath=`.status.demand`,description="Nodes that pending claims need beyond existing and coming nodes"
// +kubebuilder:printcolumn:name="Pairing",type=string,priority=1,JSONPath=`.spec.pairing`
// +kubebuilder:printcolumn:name="Starting",type=integer,priority=1,JSONPath=`.status.starting`
// +kubebuilder:printcolumn:name="Unused",type=integer,priority=1,JSONPath=`.status.unused`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type GPUNodeGroup struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +required
	Spec GPUNodeGroupSpec `json:"spec"`
	// +optional
	Status GPUNodeGroupStatus `json:"status,omitempty"`
}

// GPUNodeGroupList is a list of GPUNodeGroups.
//
// +kubebuilder:object:root=true
type GPUNodeGroupList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []GPUNodeGroup `json:"items"`
}

// GPUNodeGroupSpec describes a group, and how it grows.
//
// +kubebuilder:validation:XValidation:rule="!has(self.max) || self.min <= self.max",message="min is over max: lower min, or raise max"
// +kubebuilder:validation:XValidation:rule="self.pairing != 'direct' || has(self.provider.eks) || has(self.provider.autoScalingGroup)",message="pairing direct calls AWS: give provider.eks or provider.autoScalingGroup, or choose placeholder or observe"
type GPUNodeGroupSpec struct {
	// provider selects the nodes of the group.
	//
	// +required
	Provider NodeGroupProvider `json:"provider"`
	// instanceType is the EC2 instance type, such as p5.48xlarge. Unset: the type of a present or
	// former node of the group.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=63
	InstanceType string `json:"instanceType,omitempty"`
	// template adds to or overrides the description of a new node, which Mica derives from
	// instanceType and from earlier nodes.
	//
	// +optional
	Template NodeTemplate `json:"template,omitempty"`
	// min is the number of nodes that pairing direct keeps, even if they are empty. With other
	// pairings, only the autoscaler's minimum counts.
	//
	// +optional
	// +kubebuilder:default=0
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=5000
	Min int32 `json:"min"`
	// max is the maximum number of nodes. Unset: only the autoscaler's limit counts.
	//
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=5000
	Max *int32 `json:"max,omitempty"`
	// pricePerHour is the price of one node. Of the groups that fit, the cheapest for the pending pods
	// grows. Use the same currency in all groups. Groups without a price come last.
	//
	// +optional
	// +kubebuilder:validation:XValidation:rule="type(self) == int || !self.matches('[eE][-+0-9]')",message="write the quantity without an exponent"
	// +kubebuilder:validation:XValidation:rule="type(self) == int ? self >= 0 : !self.startsWith('-')",message="the price is negative: give the price of an hour, or leave it out"
	PricePerHour *resource.Quantity `json:"pricePerHour,omitempty"`
	// pairing is how the group grows. placeholder: by Cluster Autoscaler, for a pod without claims
	// that fits on a new node only. direct: by calls of EKS or, for autoScalingGroup, of EC2 Auto
	// Scaling. observe: not at all; the status reports the demand.
	//
	// +optional
	// +kubebuilder:default=placeholder
	// +kubebuilder:validation:Enum=placeholder;direct;observe
	Pairing Pairing `json:"pairing,omitempty"`
	// capacityType is the purchase option of the nodes. It predicts the label
	// eks.amazonaws.com/capacityType of nodes of managed node groups.
	//
	// +optional
	// +kubebuilder:validation:Enum=ON_DEMAND;SPOT;CAPACITY_BLOCK
	CapacityType string `json:"capacityType,omitempty"`
	// provisionTimeout is the maximum time from the decision to the node's slices. After it, the group
	// backs off.
	//
	// +optional
	// +kubebuilder:default="30m"
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]+([.][0-9]+)?(h|m|s|ms))+$')",message="give a duration with its unit, such as 30m or 1h"
	ProvisionTimeout metav1.Duration `json:"provisionTimeout,omitempty"`
	// scaleInAfter is how long a node must be empty before pairing direct ends it, such as 10m.
	// Empty is a node without pods, other than those of DaemonSets, and without allocated
	// claims. 0s: never. Unset: 10m, or never if a Cluster Autoscaler has had a status in the
	// cluster within a day.
	//
	// +optional
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('0s')",message="scaleInAfter is negative: give a duration such as 10m, or 0s for never"
	ScaleInAfter *metav1.Duration `json:"scaleInAfter,omitempty"`
}

// DefaultProvisionTimeout is the default of spec.provisionTimeout.
const DefaultProvisionTimeout = 30 * time.Minute

// ProvisionTimeout is spec.provisionTimeout with its default.
func (g *GPUNodeGroup) ProvisionTimeout() time.Duration {
	if timeout := g.Spec.ProvisionTimeout.Duration; timeout > 0 {
		return timeout
	}
	return DefaultProvisionTimeout
}

// Pairing is how a group grows.
type Pairing string

// Pairings.
const (
	PairingPlaceholder Pairing = "placeholder"
	PairingDirect      Pairing = "direct"
	PairingObserve     Pairing = "observe"
)

// NodeGroupProvider selects the nodes of a group.
//
// +kubebuilder:validation:XValidation:rule="has(self.eks) != has(self.nodeSelector)",message="give exactly one of eks and nodeSelector"
// +kubebuilder:validation:XValidation:rule="!has(self.autoScalingGroup) || has(self.nodeSelector)",message="autoScalingGroup is a self-managed group: give nodeSelector with the labels of its nodes, and not eks"
type NodeGroupProvider struct {
	// eks is a managed node group. Its nodes have the label eks.amazonaws.com/nodegroup.
	//
	// +optional
	EKS *EKSNodegroup `json:"eks,omitempty"`
	// nodeSelector are labels that all nodes of the group have, and no other node.
	//
	// +optional
	// +kubebuilder:validation:MinProperties=1
	// +kubebuilder:validation:MaxProperties=8
	NodeSelector map[string]string `json:"nodeSelector,omitempty"`
	// autoScalingGroup is the name of the self-managed Auto Scaling group of these nodes. Only pairing
	// direct needs it. For a managed node group, set eks instead.
	//
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=255
	AutoScalingGroup string `json:"autoScalingGroup,omitempty"`
}

// LabelEKSNodegroup is on every node of a managed node group of EKS.
const LabelEKSNodegroup = "eks.amazonaws.com/nodegroup"

// Selector are the labels that select the group's nodes.
func (p NodeGroupProvider) Selector() map[string]string {
	if p.EKS != nil {
		return map[string]string{LabelEKSNodegroup: p.EKS.Nodegroup}
	}
	return p.NodeSelector
}

// EKSNodegroup is a managed node group of EKS.
type EKSNodegroup struct {
	// cluster is the name of the cluster at EKS. Only pairing direct needs it.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=100
	Cluster string `json:"cluster,omitempty"`
	// nodegroup is the name of the node group.
	//
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Nodegroup string `json:"nodegroup"`
}

// NodeTemplate describes a new node.
type NodeTemplate struct {
	// labels are the labels of new nodes, besides those of the provider and of Kubernetes.
	//
	// +optional
	// +kubebuilder:validation:MaxProperties=64
	Labels map[string]string `json:"labels,omitempty"`
	// taints are the taints that new nodes keep. Leave out startup taints.
	//
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:XValidation:rule="self.all(t, t.effect in ['NoSchedule', 'PreferNoSchedule', 'NoExecute'])",message="the effect of a taint is NoSchedule, PreferNoSchedule or NoExecute"
	// +kubebuilder:validation:XValidation:rule="!self.exists(t, t.key.startsWith('startup-taint.cluster-autoscaler.kubernetes.io/'))",message="nodes lose startup taints once they have started: leave them out of spec.template.taints, and keep them on the node group"
	Taints []corev1.Taint `json:"taints,omitempty"`
	// allocatable are the resources of a new node for pods: cpu, memory, pods, ephemeral-storage.
	//
	// +optional
	// +kubebuilder:validation:MaxProperties=8
	// +kubebuilder:validation:XValidation:rule="self.all(name, type(self[name]) == int || !self[name].matches('[eE][-+0-9]'))",message="write the quantities without an exponent"
	Allocatable corev1.ResourceList `json:"allocatable,omitempty"`
	// gpus replaces the catalogue's description of the instance type.
	//
	// +optional
	GPUs *GPUTemplate `json:"gpus,omitempty"`
	// driverVersion is the version of the NVIDIA driver on new nodes, for claims that select by it.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^[0-9]+([.][0-9]+){0,2}$')",message="write the version as nvidia-smi shows it, such as 580.95.05"
	DriverVersion string `json:"driverVersion,omitempty"`
	// cudaDriverVersion is the newest CUDA version that the driver supports.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^[0-9]+([.][0-9]+){0,2}$')",message="write the version as nvidia-smi shows it, such as 13.0"
	CUDADriverVersion string `json:"cudaDriverVersion,omitempty"`
}

// GPUTemplate describes the GPUs of a node. They are all of one kind.
//
// +kubebuilder:validation:XValidation:rule="has(self.board) || has(self.productName) && has(self.memory)",message="give board, a name of the catalogue, or productName and memory as nvidia-smi shows them"
type GPUTemplate struct {
	// count is the number of GPUs per node.
	//
	// +required
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=64
	Count int32 `json:"count"`
	// board is the catalogue's name of the GPU, such as h100-sxm-80gb. The catalogue also has its MIG
	// profiles.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=64
	Board string `json:"board,omitempty"`
	// productName is the attribute that nodes publish, such as NVIDIA H100 80GB HBM3.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=64
	ProductName string `json:"productName,omitempty"`
	// brand is the attribute that nodes publish, such as Nvidia.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=64
	Brand string `json:"brand,omitempty"`
	// architecture is the attribute that nodes publish, such as Hopper.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=64
	Architecture string `json:"architecture,omitempty"`
	// cudaComputeCapability is the attribute that nodes publish, such as 9.0.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=16
	// +kubebuilder:validation:Pattern=`^[0-9]+\.[0-9]+$`
	CUDAComputeCapability string `json:"cudaComputeCapability,omitempty"`
	// memory is the memory of one GPU as the driver reports it. EC2 reports another number.
	//
	// +optional
	// +kubebuilder:validation:XValidation:rule="type(self) == int || !self.matches('[eE][-+0-9]')",message="write the quantity without an exponent"
	// +kubebuilder:validation:XValidation:rule="type(self) == int ? self > 0 : !self.startsWith('-') && self.matches('[1-9]')",message="give the memory of one GPU as nvidia-smi shows it, such as 81559Mi"
	Memory *resource.Quantity `json:"memory,omitempty"`
}

// Limits of a group's status.
const (
	// MaxTemplateBytes is the maximum length of a template's data.
	MaxTemplateBytes = 512 << 10
	// MaxInFlight is the maximum number of scale-ups in a status.
	MaxInFlight = 100
	// MaxUnusedBy is the maximum number of workloads in unusedBy.
	MaxUnusedBy = 32
)

// GPUNodeGroupStatus is the observed state of a group.
type GPUNodeGroupStatus struct {
	// observedGeneration is the generation of the spec that the status is about.
	//
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// instanceType is that of the spec, or else that of a node of the group.
	//
	// +optional
	InstanceType string `json:"instanceType,omitempty"`
	// template is the expected new node.
	//
	// +optional
	Template *TemplateStatus `json:"template,omitempty"`
	// nodes is the number of nodes of the group.
	//
	// +optional
	Nodes int32 `json:"nodes"`
	// starting is the number of nodes that do not offer all devices of the template yet.
	//
	// +optional
	Starting int32 `json:"starting"`
	// unused is the number of nodes that have been complete for 10 minutes, and none of whose devices
	// is allocated.
	//
	// +optional
	Unused int32 `json:"unused"`
	// unusedBy are workloads whose pods the scheduler did not put on a node with room for them. The
	// controller asks for no further node for new pods of the workload until the given time. It
	// removes an entry when a newer pod of the workload gets a node, and a day after that time. An
	// entry is in the first group by name that could grow for the pods. To retry at once, remove the
	// entry.
	//
	// +optional
	// +listType=map
	// +listMapKey=namespace
	// +listMapKey=workload
	// +listMapKey=asks
	// +kubebuilder:validation:MaxItems=32
	UnusedBy []UnusedBy `json:"unusedBy,omitempty"`
	// demand is the number of nodes that pending claims need beyond existing and coming nodes.
	//
	// +optional
	Demand int32 `json:"demand"`
	// inFlight are the scale-ups in progress.
	//
	// +optional
	// +listType=map
	// +listMapKey=id
	// +kubebuilder:validation:MaxItems=100
	InFlight []InFlight `json:"inFlight,omitempty"`
	// providerMax is the last known limit of EKS (maxSize) or Cluster Autoscaler. The group does not
	// grow beyond it. Unset: unknown.
	//
	// +optional
	ProviderMax *int32 `json:"providerMax,omitempty"`
	// providerSize is the last known desired size at EKS or EC2 Auto Scaling. Unset: it is not read,
	// as with pairing placeholder.
	//
	// +optional
	ProviderSize *int32 `json:"providerSize,omitempty"`
	// autoscaler is Cluster Autoscaler's last report on the group. Unset: none within a day.
	//
	// +optional
	Autoscaler *AutoscalerReport `json:"autoscaler,omitempty"`
	// backoff is the reason why the group does not grow, and until when.
	//
	// +optional
	Backoff *Backoff `json:"backoff,omitempty"`
	// conditions has Ready, TemplateValid and InBackoff; OutlastsAutoscaler and NodesStuck once they
	// were True; Discovered if the group was discovered at EKS; and ScaleIn if empty nodes are
	// terminated.
	//
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=8
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// AutoscalerReport is Cluster Autoscaler's last report on a group.
type AutoscalerReport struct {
	// target is Cluster Autoscaler's target size of the group, such as 4. Unset: it does not report
	// the group.
	//
	// +optional
	Target *int32 `json:"target,omitempty"`
	// silentSince is the time since which the status is missing, outdated or without the group, as
	// during a restart. Nodes up to the target count as asked for until the group's provisionTimeout
	// has passed. Unset: it reports the group.
	//
	// +optional
	SilentSince *metav1.Time `json:"silentSince,omitempty"`
}

// TemplateSource is the origin of a template.
type TemplateSource string

// Sources, best first.
const (
	// SourceLiveNode is a present node of the group.
	SourceLiveNode TemplateSource = "LiveNode"
	// SourceLearned is a former node of the group.
	SourceLearned TemplateSource = "Learned"
	// SourceCatalogue is the instance type, or spec.template, and the GPUPolicy that will apply.
	SourceCatalogue TemplateSource = "Catalogue"
)

// TemplateStatus describes the expected new node.
type TemplateStatus struct {
	Source TemplateSource `json:"source"`
	// node is the node that the template was learned from.
	//
	// +optional
	Node string `json:"node,omitempty"`
	// learnedAt is the time at which it was learned.
	//
	// +optional
	LearnedAt *metav1.Time `json:"learnedAt,omitempty"`
	// policy is the GPUPolicy of that node, with its generation.
	//
	// +optional
	Policy string `json:"policy,omitempty"`
	// devices is a summary for people.
	//
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=32
	Devices []DeviceSummary `json:"devices,omitempty"`
	// data is the learned node with its slices, compressed. It is used while the group has no node.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=524288
	Data []byte `json:"data,omitempty"`
}

// DeviceSummary counts devices of one kind.
type DeviceSummary struct {
	// type is the devices' attribute type: gpu, mig, timeslice, and so on.
	Type string `json:"type"`
	// productName is the product name of their GPU.
	//
	// +optional
	ProductName string `json:"productName,omitempty"`
	// profile is the MIG profile of partitions.
	//
	// +optional
	Profile string `json:"profile,omitempty"`
	// memory is the memory of one device.
	//
	// +optional
	Memory *resource.Quantity `json:"memory,omitempty"`
	// count is the number of devices.
	Count int32 `json:"count"`
}

// InFlight is a scale-up in progress.
type InFlight struct {
	// id is the name of the placeholder, the ID of the update at EKS, or "intent" before the update
	// begins.
	ID string `json:"id"`
	// kind is the kind of the pods that the nodes are for.
	//
	// +optional
	Kind string `json:"kind,omitempty"`
	// nodes is the number of nodes.
	Nodes int32 `json:"nodes"`
	// target is the desired size that pairing direct has set.
	//
	// +optional
	Target int32 `json:"target,omitempty"`
	// since is the time of the request.
	Since metav1.Time `json:"since"`
}

// UnusedBy is a workload that left nodes unused.
type UnusedBy struct {
	// namespace is the namespace of the workload.
	//
	// +kubebuilder:validation:MaxLength=63
	Namespace string `json:"namespace"`
	// workload is the kind and name of the pods' owner, such as CronJob/train or Deployment/llm. For a
	// pod without an owner, it is the pod, such as Pod/train.
	//
	// +kubebuilder:validation:MaxLength=330
	Workload string `json:"workload"`
	// asks is a hash of the pods' requirements, so that a changed workload gets a node at once.
	//
	// +kubebuilder:validation:MaxLength=16
	Asks string `json:"asks"`
	// nodes is the number of unused nodes in a row, such as 3.
	Nodes int32 `json:"nodes"`
	// since is the time at which the last of them was found unused.
	Since metav1.Time `json:"since"`
	// until is the time of the next attempt: an hour after since, twice as long after each further
	// unused node, at most a day.
	Until metav1.Time `json:"until"`
	// message is the scheduler's message about the pod.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=512
	Message string `json:"message,omitempty"`
}

// Backoff is the reason why a group does not grow, and until when.
type Backoff struct {
	// until is the time at which the group may grow again.
	Until metav1.Time `json:"until"`
	// failures is the number of failures in a row.
	Failures int32 `json:"failures"`
	// reason is the last failure's reason, in one word.
	Reason string `json:"reason"`
	// message describes the last failure.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=512
	Message string `json:"message,omitempty"`
}

// Conditions of groups. ConditionReady is one of them.
const (
	// ConditionTemplateValid is True while nodes match their template.
	ConditionTemplateValid = "TemplateValid"
	// ConditionInBackoff is True while the group does not grow after a failure.
	ConditionInBackoff = "InBackoff"
	// ConditionOutlastsAutoscaler is True if Cluster Autoscaler gave up on the last new node too
	// early. It is absent until that has happened.
	ConditionOutlastsAutoscaler = "OutlastsAutoscaler"
	// ConditionNodesStuck is True while a node keeps the startup taint for too long. It is absent
	// until that has happened.
	ConditionNodesStuck = "NodesStuck"
	// ConditionDiscovered is True while EKS lists the node group of a group that was discovered there.
	// While it is False, the group does not grow.
	ConditionDiscovered = "Discovered"
	// ConditionScaleIn is True while empty nodes of a group with pairing direct are terminated. Other
	// groups lack it.
	ConditionScaleIn = "ScaleIn"
)

// Reasons of a group's conditions.
const (
	ReasonReady               = "Ready"
	ReasonSameNodes           = "SameNodesAsOtherGroup"
	ReasonUnknownTemplate     = "UnknownTemplate"
	ReasonWithheld            = "GPUsWithheld"
	ReasonAutoscalerAbsent    = "ClusterAutoscalerAbsent"
	ReasonEKSUnavailable      = "EKSUnavailable"
	ReasonAsPredicted         = "AsPredicted"
	ReasonNotSeenYet          = "NotSeenYet"
	ReasonLiveNodeDiffers     = "LiveNodeDiffers"
	ReasonScaleUpFailed       = "ScaleUpFailed"
	ReasonPlaceholderStays    = "PlaceholderStays"
	ReasonAutoscalerBackedOff = "ClusterAutoscalerBackedOff"
	ReasonNoBackoff           = "NoFailure"
	ReasonProvisionTime       = "MaxNodeProvisionTimeTooShort"
	ReasonStartupTime         = "MaxNodeStartupTimeTooShort"
	ReasonWaitsLongEnough     = "WaitsLongEnough"
	ReasonDaemonSetsKeptOff   = "DaemonSetsKeptOff"
	ReasonNodeIncomplete      = "NodeIncomplete"
	ReasonNoneStuck           = "NoneStuck"
	ReasonListed              = "Listed"
	ReasonNotRead             = "NotRead"
	ReasonNodegroupGone       = "NodegroupGone"
	ReasonEKSUpdating         = "EKSUpdating"
	ReasonEmptyNodesEnd       = "EmptyNodesEnd"
	ReasonScaleInRefused      = "ScaleInRefused"
)
