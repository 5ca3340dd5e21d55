package v1alpha1

import (
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// GPUBudget limits the nodes that the controller asks for, by GPUs, price and rate. The controller
// reports the budget in the condition of pods that it holds back. A budget removes no node, and keeps
// no pod from an existing node.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=gpubudgets,scope=Cluster,shortName=gbu
// +kubebuilder:printcolumn:name="GPUs",type=integer,JSONPath=`.status.gpus`
// +kubebuilder:printcolumn:name="Of",type=integer,JSONPath=`.spec.gpus`
// +kubebuilder:printcolumn:name="Price",type=string,JSONPath=`.status.pricePerHour`
// +kubebuilder:printcolumn:name="Most",type=string,JSONPath=`.spec.pricePerHour`
// +kubebuilder:printcolumn:name="Held",type=integer,JSONPath=`.status.held`,description="Pods that the budget holds back"
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type GPUBudget struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +required
	Spec GPUBudgetSpec `json:"spec"`
	// +optional
	Status GPUBudgetStatus `json:"status,omitempty"`
}

// GPUBudgetList is a list of GPUBudgets.
//
// +kubebuilder:object:root=true
type GPUBudgetList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []GPUBudget `json:"items"`
}

// GPUBudgetSpec is the limit, and the namespaces that it applies to.
//
// +kubebuilder:validation:XValidation:rule="has(self.gpus) || has(self.pricePerHour) || has(self.rate)",message="the budget bounds nothing: give gpus, pricePerHour or rate"
type GPUBudgetSpec struct {
	// namespaces are the namespaces that the budget limits. Nodes with devices that their claims hold
	// count in full, and so do nodes that were asked for because of their pods. Empty: all nodes
	// count, for all pods and for headroom.
	//
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=256
	Namespaces []Namespace `json:"namespaces,omitempty"`
	// gpus is the maximum number of GPUs on nodes that exist or were asked for. Unset: no limit.
	//
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1000000
	GPUs *int32 `json:"gpus,omitempty"`
	// pricePerHour is the maximum price of these nodes together, in the currency of the node groups.
	// If it is set, a group without a price does not grow. Unset: no limit.
	//
	// +optional
	// +kubebuilder:validation:XValidation:rule="type(self) == int || !self.matches('[eE][-+0-9]')",message="write the quantity without an exponent"
	// +kubebuilder:validation:XValidation:rule="type(self) == int ? self >= 0 : !self.startsWith('-')",message="the price is negative: give the price of an hour, or leave it out"
	PricePerHour *resource.Quantity `json:"pricePerHour,omitempty"`
	// rate limits how fast nodes are added. Unset: no limit.
	//
	// +optional
	Rate *ScaleUpRate `json:"rate,omitempty"`
}

// Namespace is the name of a namespace.
//
// +kubebuilder:validation:MinLength=1
// +kubebuilder:validation:MaxLength=63
// +kubebuilder:validation:XValidation:rule="self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')",message="give the name of one namespace: patterns such as team-* are not understood"
type Namespace string

// ScaleUpRate is a number of nodes per period. Nodes that are younger than the period count, and so do
// nodes that were asked for and have not come.
type ScaleUpRate struct {
	// nodes is the maximum number of new nodes per period.
	//
	// +required
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=5000
	Nodes int32 `json:"nodes"`
	// period is at most a day, such as 10m.
	//
	// +required
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('1m') && duration(self) <= duration('24h')",message="give a period from 1m to 24h"
	Period metav1.Duration `json:"period"`
}

// GPUBudgetStatus counts the nodes that exist or were asked for.
type GPUBudgetStatus struct {
	// observedGeneration is the generation of the spec that the status is about.
	//
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// gpus is the number of GPUs on these nodes.
	//
	// +optional
	GPUs int32 `json:"gpus"`
	// pricePerHour is the price of these nodes together, as far as the prices of their groups are
	// known.
	//
	// +optional
	PricePerHour string `json:"pricePerHour,omitempty"`
	// held is the number of pods that the budget holds back.
	//
	// +optional
	Held int32 `json:"held"`
}
