package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// GPUPolicy says in which shapes nodes offer their GPUs. Of the policies that
// select a node, the one with the highest priority applies, and no other. A node
// that none selects offers whole GPUs and MIG partitions.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=gpupolicies,scope=Cluster,shortName=gpol
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Priority",type=integer,JSONPath=`.spec.priority`
// +kubebuilder:printcolumn:name="Nodes",type=integer,JSONPath=`.status.applied`,description="Nodes that offer what the policy says"
// +kubebuilder:printcolumn:name="Pending",type=integer,JSONPath=`.status.pending`,description="Nodes that have not said yet"
// +kubebuilder:printcolumn:name="Refused",type=integer,JSONPath=`.status.refused`,description="Nodes that cannot"
// +kubebuilder:printcolumn:name="Withheld",type=integer,JSONPath=`.status.withheld`,description="Nodes that offer none of their GPUs",priority=1
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type GPUPolicy struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +required
	Spec GPUPolicySpec `json:"spec"`
	// +optional
	Status GPUPolicyStatus `json:"status,omitempty"`
}

// GPUPolicyList is a list of policies.
//
// +kubebuilder:object:root=true
type GPUPolicyList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []GPUPolicy `json:"items"`
}

// GPUPolicySpec is what a policy says.
type GPUPolicySpec struct {
	// nodeSelector selects nodes by their labels. Empty: all nodes.
	//
	// +optional
	NodeSelector metav1.LabelSelector `json:"nodeSelector,omitempty"`
	// priority decides between policies that select the same node: the highest
	// applies. Of equal ones, the first by name does.
	//
	// +optional
	// +kubebuilder:default=0
	Priority int32 `json:"priority,omitempty"`
	// shapes are what each GPU is offered in. What they do not name is not offered.
	//
	// +required
	Shapes Shapes `json:"shapes"`
	// overrides replace the shapes of some GPUs: the first that matches a GPU counts.
	//
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	Overrides []Override `json:"overrides,omitempty"`
	// health says what faults of GPUs mean for claims. Unset: a fault keeps further claims
	// away (NoSchedule), and pods that run go on.
	//
	// +optional
	// +listType=map
	// +listMapKey=condition
	// +kubebuilder:validation:MaxItems=8
	Health []FaultEffect `json:"health,omitempty"`
}

// FaultEffect is what faults of one condition mean for claims.
//
// +kubebuilder:validation:XValidation:rule="!has(self.recovery) || self.recovery != 'Reset' || !(self.condition in ['gpu-lost', 'unresponsive'])",message="no reset reaches a GPU with this condition: leave recovery out, or set None"
type FaultEffect struct {
	// condition is the kind of fault: xid, gpu-lost, recovery-action, memory, fabric or unresponsive.
	//
	// +required
	// +kubebuilder:validation:Enum=xid;gpu-lost;recovery-action;memory;fabric;unresponsive
	Condition string `json:"condition"`
	// effect is that of the taint: NoSchedule keeps further claims away, NoExecute also evicts
	// the pods that have the device, None only shows the fault. A fault with which work can go
	// on has the effect None whatever is said here.
	//
	// +required
	// +kubebuilder:validation:Enum=NoSchedule;NoExecute;None
	Effect string `json:"effect"`
	// recovery is what the node does about the fault by itself. Reset resets a GPU that no claim
	// has, if the NVIDIA driver asks for a reset; not for gpu-lost and unresponsive, which no reset
	// reaches. None leaves the GPU as it is, for an operator or another tool. Default: None.
	//
	// +optional
	// +kubebuilder:validation:Enum=None;Reset
	Recovery string `json:"recovery,omitempty"`
}

// Override has other shapes for the GPUs that it matches.
type Override struct {
	// when is a CEL expression over the whole GPU as a device, in the language of
	// claims' selectors: device.attributes["gpu.nvidia.com"].productName, and so on. At
	// most 10 KiB.
	//
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=10240
	// +kubebuilder:validation:XValidation:rule="self.contains('device.')",message="the expression looks at no device: write it as in a claim's selector, such as device.attributes['gpu.nvidia.com'].productName == 'NVIDIA H100 80GB HBM3'"
	When string `json:"when"`
	// shapes are what the GPUs that match are offered in.
	//
	// +required
	Shapes Shapes `json:"shapes"`
}

// Shapes are ways in which a GPU can be given to claims. They exclude each other
// on one GPU, and a claim chooses one by its DeviceClass.
//
// +kubebuilder:validation:MinProperties=1
type Shapes struct {
	// whole offers the entire GPU to one claim at a time.
	//
	// +optional
	Whole *Whole `json:"whole,omitempty"`
	// mig offers partitions, if the board and its MIG mode allow them.
	//
	// +optional
	MIG *MIG `json:"mig,omitempty"`
	// timeSlice offers the entire GPU in shares whose processes run in turn. Their
	// memory is counted and not limited.
	//
	// +optional
	TimeSlice *TimeSlice `json:"timeSlice,omitempty"`
	// mps offers the entire GPU in shares whose processes run at once, with limits of
	// memory and cores. It needs the chart's mps.enabled, and GPUs of compute
	// capability 7.0 or later.
	//
	// +optional
	MPS *MPS `json:"mps,omitempty"`
}

// Whole has no settings.
type Whole struct{}

// MIG selects partitions by their profile. A profile that a board does not have is
// not offered there, and is no mistake.
type MIG struct {
	// profiles are offered to one claim each, by the names of nvidia-smi. Empty: all of the
	// board's, or none if shared names some.
	//
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=32
	Profiles []ProfileName `json:"profiles,omitempty"`
	// shared are offered in shares. A profile may be in profiles as well.
	//
	// +optional
	// +listType=map
	// +listMapKey=profile
	// +kubebuilder:validation:MaxItems=32
	Shared []SharedProfile `json:"shared,omitempty"`
}

// ProfileName is a profile as nvidia-smi writes it, such as 1g.10gb or 1g.10gb+me.
//
// +kubebuilder:validation:MaxLength=32
// +kubebuilder:validation:Pattern=`^[1-9][0-9]*g\.[1-9][0-9]*gb([+-][a-z]+(\.[a-z]+)*)*$`
type ProfileName string

// SharedProfile is a profile whose partitions are offered in shares.
//
// +kubebuilder:validation:XValidation:rule="has(self.timeSlice) != has(self.mps)",message="give exactly one of timeSlice and mps"
// +kubebuilder:validation:XValidation:rule="!has(self.timeSlice) || !has(self.timeSlice.interval) || self.timeSlice.interval == 'Default'",message="the interval of a MIG partition cannot be set: remove interval"
type SharedProfile struct {
	// profile is the name of nvidia-smi.
	//
	// +required
	Profile ProfileName `json:"profile"`
	// timeSlice lets the processes of all shares run in turn.
	//
	// +optional
	TimeSlice *TimeSlice `json:"timeSlice,omitempty"`
	// mps lets the processes of all shares run at once.
	//
	// +optional
	MPS *MPS `json:"mps,omitempty"`
}

// TimeSlice is how a GPU or partition is shared by turns.
type TimeSlice struct {
	// replicas is how many claims with a share of default size fit.
	//
	// +required
	// +kubebuilder:validation:Minimum=2
	// +kubebuilder:validation:Maximum=128
	Replicas int32 `json:"replicas"`
	// interval is how long a process runs before the next one may. Short, Medium and Long are
	// those of the NVIDIA driver, and Default is what it does by itself. Others than Default
	// need compute capability 7.0 or later.
	//
	// +optional
	// +kubebuilder:default=Default
	// +kubebuilder:validation:Enum=Default;Short;Medium;Long
	Interval string `json:"interval,omitempty"`
}

// MPS is how a GPU or partition is shared through CUDA's Multi-Process Service.
type MPS struct {
	// clients is how many claims with a share of default size fit. Such a share has its part of
	// the memory and of the cores.
	//
	// +required
	// +kubebuilder:validation:Minimum=2
	// +kubebuilder:validation:Maximum=48
	Clients int32 `json:"clients"`
}

// MaxRefusals is how many refusals a policy's status lists. The API server sends each
// status to every node that follows policies.
const MaxRefusals = 20

// GPUPolicyStatus is what the nodes made of a policy, as the controller has counted it.
type GPUPolicyStatus struct {
	// observedGeneration is that of the policy when the nodes were counted.
	//
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// applied is the number of nodes that offer what the policy says.
	//
	// +optional
	Applied int32 `json:"applied"`
	// pending is the number of nodes with the plugin that the policy applies to and that
	// have not said yet what they made of this generation.
	//
	// +optional
	Pending int32 `json:"pending"`
	// refused is the number of nodes that cannot do what the policy says. They go on
	// offering what they did.
	//
	// +optional
	Refused int32 `json:"refused"`
	// withheld is the number of nodes that offer none of their GPUs, whatever the policy
	// says, such as those whose device plugin gives them out. GPUNodes say why.
	//
	// +optional
	Withheld int32 `json:"withheld,omitempty"`
	// refusals are those of the first 20 of these nodes, by name. All are in the GPUNodes.
	//
	// +optional
	// +listType=map
	// +listMapKey=node
	// +kubebuilder:validation:MaxItems=20
	Refusals []Refusal `json:"refusals,omitempty"`
	// conditions has Ready: all nodes that offer GPUs offer what the policy says.
	//
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=8
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// Refusal is why one node cannot do what a policy says.
type Refusal struct {
	// node is the node's name.
	//
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Node string `json:"node"`
	// message says why.
	//
	// +required
	// +kubebuilder:validation:MaxLength=512
	Message string `json:"message"`
}

// ConditionReady is true when all nodes that a policy applies to, and that offer GPUs, offer
// what it says.
const ConditionReady = "Ready"

// Reasons of ConditionReady.
const (
	// ReasonApplied: all do.
	ReasonApplied = "Applied"
	// ReasonPending: some have not said so yet. The condition is Unknown.
	ReasonPending = "Pending"
	// ReasonRefused: some cannot. ReasonInvalid is for a policy that selects no node,
	// because its selector is invalid.
	ReasonRefused = "Refused"
)
