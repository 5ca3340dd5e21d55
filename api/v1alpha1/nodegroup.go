package v1alpha1

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// GPUNodeGroup is a group of like nodes that can grow, from none, for claims that no
// node can satisfy. It says how the group is known by its nodes' labels, what a node of
// it has, and who makes it grow.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:validation:XValidation:rule="size(self.metadata.name) <= 63",message="the name of a GPUNodeGroup is the value of a label, and has at most 63 characters"
// +kubebuilder:resource:path=gpunodegroups,scope=Cluster,shortName=gng
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Type",type=string,JSONPath=`.status.instanceType`
// +kubebuilder:printcolumn:name="Template",type=string,JSONPath=`.status.template.source`
// +kubebuilder:printcolumn:name="Nodes",type=integer,JSONPath=`.status.nodes`
// +kubebuilder:printcolumn:name="Demand",type=integer,JSONPath=`.status.demand`,description="Nodes that pending claims need beyond those that exist or are coming"
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

// GPUNodeGroupList is a list of groups.
//
// +kubebuilder:object:root=true
type GPUNodeGroupList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []GPUNodeGroup `json:"items"`
}

// GPUNodeGroupSpec is what is known of a group, and what may be done with it.
//
// +kubebuilder:validation:XValidation:rule="!has(self.max) || self.min <= self.max",message="min is over max: lower min, or raise max"
// +kubebuilder:validation:XValidation:rule="self.pairing != 'direct' || has(self.provider.eks) || has(self.provider.autoScalingGroup)",message="pairing direct calls AWS: give provider.eks or provider.autoScalingGroup, or choose placeholder or observe"
type GPUNodeGroupSpec struct {
	// provider says which nodes are of the group.
	//
	// +required
	Provider NodeGroupProvider `json:"provider"`
	// instanceType is the machine's name at EC2, such as p5.48xlarge. Unset: the type of a node
	// that the group has or had.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=63
	InstanceType string `json:"instanceType,omitempty"`
	// template adds to, or overrides, what Mica knows of the group's nodes from instanceType and
	// from earlier nodes.
	//
	// +optional
	Template NodeTemplate `json:"template,omitempty"`
	// min is how many nodes pairing direct keeps, used or not. With the other pairings, only the
	// autoscaler's own minimum counts.
	//
	// +optional
	// +kubebuilder:default=0
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=5000
	Min int32 `json:"min"`
	// max is the largest number of nodes. Unset: the autoscaler's own limit alone counts.
	//
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=5000
	Max *int32 `json:"max,omitempty"`
	// pricePerHour of one node decides between groups that fit: the cheapest for the pending
	// pods grows. Any currency, the same in all groups. Groups without a price come last.
	//
	// +optional
	// +kubebuilder:validation:XValidation:rule="type(self) == int || !self.matches('[eE][-+0-9]')",message="write the quantity without an exponent"
	// +kubebuilder:validation:XValidation:rule="type(self) == int ? self >= 0 : !self.startsWith('-')",message="the price is negative: give the price of an hour, or leave it out"
	PricePerHour *resource.Quantity `json:"pricePerHour,omitempty"`
	// pairing is who makes the group grow: placeholder lets Cluster Autoscaler do it, by a
	// pod without claims that only a new node has room for; direct calls EKS or, for
	// autoScalingGroup, EC2 Auto Scaling; observe only says what is needed.
	//
	// +optional
	// +kubebuilder:default=placeholder
	// +kubebuilder:validation:Enum=placeholder;direct;observe
	Pairing Pairing `json:"pairing,omitempty"`
	// capacityType is how the nodes are bought. It predicts the label
	// eks.amazonaws.com/capacityType of nodes of managed node groups.
	//
	// +optional
	// +kubebuilder:validation:Enum=ON_DEMAND;SPOT;CAPACITY_BLOCK
	CapacityType string `json:"capacityType,omitempty"`
	// provisionTimeout is how long a node may take from the decision to its slices. After
	// that the group is left alone for a while.
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

// DefaultProvisionTimeout is how long a node may take where its group does not say.
const DefaultProvisionTimeout = 30 * time.Minute

// ProvisionTimeout is how long a node of the group may take.
func (g *GPUNodeGroup) ProvisionTimeout() time.Duration {
	if timeout := g.Spec.ProvisionTimeout.Duration; timeout > 0 {
		return timeout
	}
	return DefaultProvisionTimeout
}

// Pairing is who makes a group grow.
type Pairing string

// Pairings.
const (
	PairingPlaceholder Pairing = "placeholder"
	PairingDirect      Pairing = "direct"
	PairingObserve     Pairing = "observe"
)

// NodeGroupProvider names the nodes of a group.
//
// +kubebuilder:validation:XValidation:rule="has(self.eks) != has(self.nodeSelector)",message="give exactly one of eks and nodeSelector"
// +kubebuilder:validation:XValidation:rule="!has(self.autoScalingGroup) || has(self.nodeSelector)",message="autoScalingGroup is a self-managed group: give nodeSelector with the labels of its nodes, and not eks"
type NodeGroupProvider struct {
	// eks is a managed node group: its nodes have the label eks.amazonaws.com/nodegroup.
	//
	// +optional
	EKS *EKSNodegroup `json:"eks,omitempty"`
	// nodeSelector are labels that every node of the group has, and no other node.
	//
	// +optional
	// +kubebuilder:validation:MinProperties=1
	// +kubebuilder:validation:MaxProperties=8
	NodeSelector map[string]string `json:"nodeSelector,omitempty"`
	// autoScalingGroup is the name of the self-managed Auto Scaling group that has the nodes of
	// nodeSelector. Only pairing direct needs it. For a managed node group of EKS, give eks.
	//
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=255
	AutoScalingGroup string `json:"autoScalingGroup,omitempty"`
}

// LabelEKSNodegroup is on every node of a managed node group of EKS.
const LabelEKSNodegroup = "eks.amazonaws.com/nodegroup"

// Selector are the labels by which a group's nodes are known.
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

// NodeTemplate is what a node of the group has.
type NodeTemplate struct {
	// labels that new nodes have, besides those of the provider and of Kubernetes itself.
	//
	// +optional
	// +kubebuilder:validation:MaxProperties=64
	Labels map[string]string `json:"labels,omitempty"`
	// taints that new nodes keep. Startup taints are not among them.
	//
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:XValidation:rule="self.all(t, t.effect in ['NoSchedule', 'PreferNoSchedule', 'NoExecute'])",message="the effect of a taint is NoSchedule, PreferNoSchedule or NoExecute"
	// +kubebuilder:validation:XValidation:rule="!self.exists(t, t.key.startsWith('startup-taint.cluster-autoscaler.kubernetes.io/'))",message="nodes lose startup taints once they have started: leave them out of spec.template.taints, and keep them on the node group"
	Taints []corev1.Taint `json:"taints,omitempty"`
	// allocatable is what pods can have of a node: cpu, memory, pods, ephemeral-storage.
	//
	// +optional
	// +kubebuilder:validation:MaxProperties=8
	// +kubebuilder:validation:XValidation:rule="self.all(name, type(self[name]) == int || !self[name].matches('[eE][-+0-9]'))",message="write the quantities without an exponent"
	Allocatable corev1.ResourceList `json:"allocatable,omitempty"`
	// gpus replaces what the catalogue knows of the instance type.
	//
	// +optional
	GPUs *GPUTemplate `json:"gpus,omitempty"`
	// driverVersion is the NVIDIA driver's on new nodes, for claims that select by it.
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

// GPUTemplate describes the GPUs of a node, which are alike.
//
// +kubebuilder:validation:XValidation:rule="has(self.board) || has(self.productName) && has(self.memory)",message="give board, a name of the catalogue, or productName and memory as nvidia-smi shows them"
type GPUTemplate struct {
	// count is how many GPUs a node has.
	//
	// +required
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=64
	Count int32 `json:"count"`
	// board is the catalogue's name of the GPU, such as h100-sxm-80gb. It has the MIG
	// profiles, too.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=64
	Board string `json:"board,omitempty"`
	// productName as nodes publish it, such as NVIDIA H100 80GB HBM3.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=64
	ProductName string `json:"productName,omitempty"`
	// brand as nodes publish it, such as Nvidia.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=64
	Brand string `json:"brand,omitempty"`
	// architecture as nodes publish it, such as Hopper.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=64
	Architecture string `json:"architecture,omitempty"`
	// cudaComputeCapability as nodes publish it, such as 9.0.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=16
	// +kubebuilder:validation:Pattern=`^[0-9]+\.[0-9]+$`
	CUDAComputeCapability string `json:"cudaComputeCapability,omitempty"`
	// memory of one GPU as the driver reports it, which is not what EC2 says.
	//
	// +optional
	// +kubebuilder:validation:XValidation:rule="type(self) == int || !self.matches('[eE][-+0-9]')",message="write the quantity without an exponent"
	// +kubebuilder:validation:XValidation:rule="type(self) == int ? self > 0 : !self.startsWith('-') && self.matches('[1-9]')",message="give the memory of one GPU as nvidia-smi shows it, such as 81559Mi"
	Memory *resource.Quantity `json:"memory,omitempty"`
}

// Limits of a group's status.
const (
	// MaxTemplateBytes is the length of a template's data.
	MaxTemplateBytes = 512 << 10
	// MaxInFlight is how many scale-ups of a group a status lists.
	MaxInFlight = 100
	// MaxUnusedBy is how many workloads that left nodes unused a status lists.
	MaxUnusedBy = 32
)

// GPUNodeGroupStatus is what the controller knows of a group.
type GPUNodeGroupStatus struct {
	// observedGeneration is the generation of the spec that this status is of.
	//
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// instanceType is that of spec, or else that of a node of the group.
	//
	// +optional
	InstanceType string `json:"instanceType,omitempty"`
	// template is what a new node is expected to have.
	//
	// +optional
	Template *TemplateStatus `json:"template,omitempty"`
	// nodes is how many nodes the group has.
	//
	// +optional
	Nodes int32 `json:"nodes"`
	// starting is how many nodes do not offer yet what the template promises.
	//
	// +optional
	Starting int32 `json:"starting"`
	// unused is how many nodes have been complete for 10 minutes, and have no device that a
	// claim has.
	//
	// +optional
	Unused int32 `json:"unused"`
	// unusedBy are workloads for which a node had room, and whose pods the scheduler did not put there.
	// For pods that such a workload makes anew, no further node is asked for until the given time. An
	// entry goes when a newer pod of the workload gets a node, and a day after its time. Each is in the
	// first group, by name, that could grow for its pods. To try again at once, remove the entry.
	//
	// +optional
	// +listType=map
	// +listMapKey=namespace
	// +listMapKey=workload
	// +listMapKey=asks
	// +kubebuilder:validation:MaxItems=32
	UnusedBy []UnusedBy `json:"unusedBy,omitempty"`
	// demand is how many nodes pending claims need beyond those that exist or are coming.
	//
	// +optional
	Demand int32 `json:"demand"`
	// inFlight are nodes that were asked for.
	//
	// +optional
	// +listType=map
	// +listMapKey=id
	// +kubebuilder:validation:MaxItems=100
	InFlight []InFlight `json:"inFlight,omitempty"`
	// providerMax is the limit of who makes the group grow, as last seen: maxSize at EKS, or
	// Cluster Autoscaler's own. The group does not grow beyond it. Unset: not known.
	//
	// +optional
	ProviderMax *int32 `json:"providerMax,omitempty"`
	// providerSize is how many nodes EKS or EC2 Auto Scaling is to have in the group, as last seen.
	// Unset: not asked, as with pairing placeholder.
	//
	// +optional
	ProviderSize *int32 `json:"providerSize,omitempty"`
	// autoscaler is what Cluster Autoscaler has last reported of the group. Unset: nothing within a
	// day.
	//
	// +optional
	Autoscaler *AutoscalerReport `json:"autoscaler,omitempty"`
	// backoff is why and how long the group does not grow.
	//
	// +optional
	Backoff *Backoff `json:"backoff,omitempty"`
	// conditions has Ready, TemplateValid and InBackoff, OutlastsAutoscaler and NodesStuck once they
	// were true, Discovered if the group was discovered at EKS, and ScaleIn while empty nodes are
	// ended.
	//
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=8
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// AutoscalerReport is what Cluster Autoscaler has last reported of a group in its status.
type AutoscalerReport struct {
	// target is how many nodes Cluster Autoscaler wants the group to have, such as 4. Unset: it does
	// not report the group.
	//
	// +optional
	Target *int32 `json:"target,omitempty"`
	// silentSince is since when its status is missing, outdated or without the group, as while it
	// restarts. Nodes up to the target count as asked for until the group's provisionTimeout has
	// passed. Unset: it reports.
	//
	// +optional
	SilentSince *metav1.Time `json:"silentSince,omitempty"`
}

// TemplateSource says where a template comes from.
type TemplateSource string

// Sources, best first.
const (
	// SourceLiveNode is a node that the group has.
	SourceLiveNode TemplateSource = "LiveNode"
	// SourceLearned is a node that the group had.
	SourceLearned TemplateSource = "Learned"
	// SourceCatalogue is the instance type, or spec.template, and the GPUPolicy that will apply.
	SourceCatalogue TemplateSource = "Catalogue"
)

// TemplateStatus is what a new node is expected to have.
type TemplateStatus struct {
	Source TemplateSource `json:"source"`
	// node is the one from which the template was learned.
	//
	// +optional
	Node string `json:"node,omitempty"`
	// learnedAt is when that was.
	//
	// +optional
	LearnedAt *metav1.Time `json:"learnedAt,omitempty"`
	// policy is the GPUPolicy that applied, with its generation.
	//
	// +optional
	Policy string `json:"policy,omitempty"`
	// devices is a summary for people.
	//
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=32
	Devices []DeviceSummary `json:"devices,omitempty"`
	// data is the learned node with its slices, compressed, for when the group has none.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=524288
	Data []byte `json:"data,omitempty"`
}

// DeviceSummary counts devices that are alike.
type DeviceSummary struct {
	// type is that of the attribute: gpu, mig, timeslice, and so on.
	Type string `json:"type"`
	// productName is that of their GPU.
	//
	// +optional
	ProductName string `json:"productName,omitempty"`
	// profile is that of a partition.
	//
	// +optional
	Profile string `json:"profile,omitempty"`
	// memory of one device.
	//
	// +optional
	Memory *resource.Quantity `json:"memory,omitempty"`
	// count is how many devices are alike.
	Count int32 `json:"count"`
}

// InFlight is a node, or several, that were asked for.
type InFlight struct {
	// id is the placeholder's name, or that of the update at EKS, or "intent" before there is one.
	ID string `json:"id"`
	// kind names the kind of pods for which the node was asked for.
	//
	// +optional
	Kind string `json:"kind,omitempty"`
	// nodes is how many.
	Nodes int32 `json:"nodes"`
	// target is the size to which pairing direct has set the group.
	//
	// +optional
	Target int32 `json:"target,omitempty"`
	// since is when they were asked for.
	Since metav1.Time `json:"since"`
}

// UnusedBy is a workload that left nodes unused.
type UnusedBy struct {
	// namespace of the workload.
	//
	// +kubebuilder:validation:MaxLength=63
	Namespace string `json:"namespace"`
	// workload is the kind and the name of what makes the pods, such as CronJob/train or Deployment/llm.
	// A pod that nothing makes is its own, such as Pod/train.
	//
	// +kubebuilder:validation:MaxLength=330
	Workload string `json:"workload"`
	// asks is the same for pods that ask the same of a node, so that a workload that has been changed
	// gets a node at once.
	//
	// +kubebuilder:validation:MaxLength=16
	Asks string `json:"asks"`
	// nodes is how many nodes in a row were not used, such as 3.
	Nodes int32 `json:"nodes"`
	// since is when the last of them was found unused.
	Since metav1.Time `json:"since"`
	// until is when another node is asked for: an hour after since, twice as long after each further
	// node, a day at most.
	Until metav1.Time `json:"until"`
	// message is what the scheduler said of the pod.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=512
	Message string `json:"message,omitempty"`
}

// Backoff is why and how long a group does not grow.
type Backoff struct {
	// until is when the group may grow again.
	Until metav1.Time `json:"until"`
	// failures in a row.
	Failures int32 `json:"failures"`
	// reason is one word for the last failure.
	Reason string `json:"reason"`
	// message says what failed.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=512
	Message string `json:"message,omitempty"`
}

// Conditions of groups. ConditionReady is one of them.
const (
	// ConditionTemplateValid is true while nodes are as their template says.
	ConditionTemplateValid = "TemplateValid"
	// ConditionInBackoff is true while the group does not grow after a failure.
	ConditionInBackoff = "InBackoff"
	// ConditionOutlastsAutoscaler is true when the last new node took longer than Cluster Autoscaler
	// waits for one. It is absent until that has happened.
	ConditionOutlastsAutoscaler = "OutlastsAutoscaler"
	// ConditionNodesStuck is true while a node keeps the startup taint, and may keep it for ever. It is
	// absent until that has happened.
	ConditionNodesStuck = "NodesStuck"
	// ConditionDiscovered is true while EKS lists the node group of a group that was discovered there,
	// and false when it does no longer, from when on the group does not grow.
	ConditionDiscovered = "Discovered"
	// ConditionScaleIn is true while empty nodes of a group with pairing direct are terminated. Other
	// groups have no such condition.
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
