package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// GPUPolicy sets the shapes in which nodes offer their GPUs. Of the policies that select a node, only
// the one with the highest priority applies. A node without a policy offers whole GPUs and MIG
// partitions.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=gpupolicies,scope=Cluster,shortName=gpol
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Priority",type=integer,JSONPath=`.spec.priority`
// +kubebuilder:printcolumn:name="Nodes",type=integer,JSONPath=`.status.applied`,description="Nodes that have applied the policy"
// +kubebuilder:printcolumn:name="Pending",type=integer,JSONPath=`.status.pending`,description="Nodes that have not reported yet"
// +kubebuilder:printcolumn:name="Refused",type=integer,JSONPath=`.status.refused`,description="Nodes that cannot apply the policy"
// +kubebuilder:printcolumn:name="Withheld",type=integer,JSONPath=`.status.withheld`,description="Nodes that offer no GPUs",priority=1
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type GPUPolicy struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +required
	Spec GPUPolicySpec `json:"spec"`
	// +optional
	Status GPUPolicyStatus `json:"status,omitempty"`
}

// GPUPolicyList is a list of GPUPolicies.
//
// +kubebuilder:object:root=true
type GPUPolicyList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []GPUPolicy `json:"items"`
}

// GPUPolicySpec selects nodes, and sets the shapes of their GPUs and the effects of faults.
type GPUPolicySpec struct {
	// nodeSelector selects nodes by their labels. Empty: all nodes.
	//
	// +optional
	NodeSelector metav1.LabelSelector `json:"nodeSelector,omitempty"`
	// priority decides between policies that select the same node: the highest applies. If priorities
	// are equal, the first by name applies.
	//
	// +optional
	// +kubebuilder:default=0
	Priority int32 `json:"priority,omitempty"`
	// shapes are the shapes in which each GPU is offered. Other shapes are not offered.
	//
	// +required
	Shapes Shapes `json:"shapes"`
	// overrides replace the shapes of some GPUs. The first that matches a GPU applies.
	//
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	Overrides []Override `json:"overrides,omitempty"`
	// health sets the effects of GPU faults on claims. Unset: a fault keeps new claims away
	// (NoSchedule), and running pods continue.
	//
	// +optional
	// +listType=map
	// +listMapKey=condition
	// +kubebuilder:validation:MaxItems=8
	Health []FaultEffect `json:"health,omitempty"`
}

// FaultEffect is the effect of one kind of fault on claims.
//
// +kubebuilder:validation:XValidation:rule="!has(self.recovery) || self.recovery != 'Reset' || !(self.condition in ['gpu-lost', 'unresponsive'])",message="no reset reaches a GPU with this condition: leave recovery out, or set None"
type FaultEffect struct {
	// condition is the kind of fault: xid, gpu-lost, recovery-action, memory, fabric or unresponsive.
	//
	// +required
	// +kubebuilder:validation:Enum=xid;gpu-lost;recovery-action;memory;fabric;unresponsive
	Condition string `json:"condition"`
	// effect is the effect of the taint. NoSchedule keeps new claims away. NoExecute also evicts the
	// pods that use the device. None only shows the fault. A fault with which work can continue always
	// has the effect None.
	//
	// +required
	// +kubebuilder:validation:Enum=NoSchedule;NoExecute;None
	Effect string `json:"effect"`
	// recovery is the node's reaction to the fault. Reset resets a GPU that no claim uses, if the
	// NVIDIA driver asks for a reset; it is not possible for gpu-lost and unresponsive. None leaves
	// the GPU to an administrator or another tool. Default: None.
	//
	// +optional
	// +kubebuilder:validation:Enum=None;Reset
	Recovery string `json:"recovery,omitempty"`
}

// Override sets other shapes for the GPUs that it matches.
type Override struct {
	// when is a CEL expression over the entire GPU as a device, as in claims' selectors:
	// device.attributes["gpu.nvidia.com"].productName, and so on. At most 10 KiB.
	//
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=10240
	// +kubebuilder:validation:XValidation:rule="self.contains('device.')",message="the expression looks at no device: write it as in a claim's selector, such as device.attributes['gpu.nvidia.com'].productName == 'NVIDIA H100 80GB HBM3'"
	When string `json:"when"`
	// shapes are the shapes in which matching GPUs are offered.
	//
	// +required
	Shapes Shapes `json:"shapes"`
}

// Shapes are the ways to allocate a GPU. A GPU has one shape at a time; a claim chooses it by its
// DeviceClass.
//
// +kubebuilder:validation:MinProperties=1
type Shapes struct {
	// whole offers the entire GPU, to one claim at a time unless consumableShares is set.
	//
	// +optional
	Whole *Whole `json:"whole,omitempty"`
	// mig offers partitions, if the board and its MIG mode allow them.
	//
	// +optional
	MIG *MIG `json:"mig,omitempty"`
	// timeSlice offers the entire GPU in shares whose processes run in turn. Their memory is accounted
	// for, but not limited.
	//
	// +optional
	TimeSlice *TimeSlice `json:"timeSlice,omitempty"`
	// mps offers the entire GPU in shares whose processes run at the same time, with limits of memory
	// and cores. It needs the chart's mps.enabled, and GPUs of compute capability 7.0 or later.
	//
	// +optional
	MPS *MPS `json:"mps,omitempty"`
}

// Whole offers the entire GPU.
type Whole struct {
	// consumableShares lets several claims have the GPU at once, with the names, capacities and defaults
	// of NVIDIA's driver. unlimited: any number of claims. memory: claims divide the memory; one that
	// requests none gets all of it. A number, 2 to 1024: as many shares. Memory is accounted for, but not
	// limited. Unset: one claim at a time.
	//
	// +optional
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:XValidation:rule="type(self) == int ? self >= 2 && self <= 1024 : self in ['unlimited', 'memory']",message="use unlimited, memory, or a number of shares from 2 to 1024"
	ConsumableShares *intstr.IntOrString `json:"consumableShares,omitempty"`
}

// MIG selects partitions by their profile. A profile that a board lacks is ignored there.
type MIG struct {
	// creation sets whether partitions are created for claims. OnDemand creates them when a claim gets
	// them. Never offers only those that an administrator has created. Default: OnDemand.
	//
	// +optional
	// +kubebuilder:validation:Enum=OnDemand;Never
	Creation string `json:"creation,omitempty"`
	// profiles are offered to one claim each, by their names in nvidia-smi. Empty: all profiles of the
	// board, or none if shared is set.
	//
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=32
	Profiles []ProfileName `json:"profiles,omitempty"`
	// shared are profiles that are offered in shares. They may be in profiles, too.
	//
	// +optional
	// +listType=map
	// +listMapKey=profile
	// +kubebuilder:validation:MaxItems=32
	Shared []SharedProfile `json:"shared,omitempty"`
}

// Values of MIG.Creation.
const (
	CreationOnDemand = "OnDemand"
	CreationNever    = "Never"
)

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
	// profile is the name in nvidia-smi.
	//
	// +required
	Profile ProfileName `json:"profile"`
	// timeSlice makes the processes of all shares run in turn.
	//
	// +optional
	TimeSlice *TimeSlice `json:"timeSlice,omitempty"`
	// mps makes the processes of all shares run at the same time.
	//
	// +optional
	MPS *MPS `json:"mps,omitempty"`
}

// TimeSlice shares a GPU or partition in turns.
type TimeSlice struct {
	// replicas is the number of shares of default size.
	//
	// +required
	// +kubebuilder:validation:Minimum=2
	// +kubebuilder:validation:Maximum=128
	Replicas int32 `json:"replicas"`
	// interval is the time for which a process runs before the next one. Short, Medium and Long are
	// the NVIDIA driver's intervals, Default is its default. Values other than Default need compute
	// capability 7.0 or later.
	//
	// +optional
	// +kubebuilder:default=Default
	// +kubebuilder:validation:Enum=Default;Short;Medium;Long
	Interval string `json:"interval,omitempty"`
}

// MPS shares a GPU or partition by CUDA's Multi-Process Service.
type MPS struct {
	// clients is the number of shares of default size. Each has its part of the memory and of the
	// cores.
	//
	// +required
	// +kubebuilder:validation:Minimum=2
	// +kubebuilder:validation:Maximum=48
	Clients int32 `json:"clients"`
}

// MaxRefusals is the maximum number of refusals in a policy's status. The API server sends each status
// to every node.
const MaxRefusals = 20

// GPUPolicyStatus counts the nodes that the policy applies to, by their reports.
type GPUPolicyStatus struct {
	// observedGeneration is the generation of the policy that the counts are about.
	//
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// applied is the number of nodes that have applied the policy.
	//
	// +optional
	Applied int32 `json:"applied"`
	// pending is the number of nodes with the plugin that have not reported on this generation yet.
	//
	// +optional
	Pending int32 `json:"pending"`
	// refused is the number of nodes that cannot apply the policy. They keep their previous offer.
	//
	// +optional
	Refused int32 `json:"refused"`
	// withheld is the number of nodes that offer no GPUs, whatever the policy, for example because a
	// device plugin has them. Their GPUNodes have the reason.
	//
	// +optional
	Withheld int32 `json:"withheld,omitempty"`
	// refusals are the reports of the first 20 nodes by name that cannot apply the policy. GPUNodes
	// have all reports.
	//
	// +optional
	// +listType=map
	// +listMapKey=node
	// +kubebuilder:validation:MaxItems=20
	Refusals []Refusal `json:"refusals,omitempty"`
	// conditions has Ready, which is True if all nodes that offer GPUs have applied the policy.
	//
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=8
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// Refusal is the reason why a node cannot apply a policy.
type Refusal struct {
	// node is the name of the node.
	//
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Node string `json:"node"`
	// message is the reason.
	//
	// +required
	// +kubebuilder:validation:MaxLength=512
	Message string `json:"message"`
}

// ConditionReady is True if all nodes that a policy applies to, and that offer GPUs, have applied it.
const ConditionReady = "Ready"

// Reasons of ConditionReady.
const (
	// ReasonApplied: all nodes have applied the policy.
	ReasonApplied = "Applied"
	// ReasonPending: some nodes have not reported yet. The condition is Unknown.
	ReasonPending = "Pending"
	// ReasonRefused: some nodes cannot apply the policy. ReasonInvalid: the selector is invalid, so
	// the policy selects no node.
	ReasonRefused = "Refused"
)
