package v1alpha1

import (
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// GPUBudget bounds what the controller asks for: it asks for no node with which there would be more
// than the budget allows. It tells the pods that it holds back. A budget takes no node away, and
// keeps no pod from a node that is there.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=gpubudgets,scope=Cluster,shortName=gbu
// +kubebuilder:printcolumn:name="GPUs",type=integer,JSONPath=`.status.gpus`
// +kubebuilder:printcolumn:name="Of",type=integer,JSONPath=`.spec.gpus`
// +kubebuilder:printcolumn:name="Price",type=string,JSONPath=`.status.pricePerHour`
// +kubebuilder:printcolumn:name="Most",type=string,JSONPath=`.spec.pricePerHour`
// +kubebuilder:printcolumn:name="Held",type=integer,JSONPath=`.status.held`,description="Pods for which no node is asked for because of the budget"
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type GPUBudget struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +required
	Spec GPUBudgetSpec `json:"spec"`
	// +optional
	Status GPUBudgetStatus `json:"status,omitempty"`
}

// GPUBudgetList is a list of budgets.
//
// +kubebuilder:object:root=true
type GPUBudgetList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []GPUBudget `json:"items"`
}

// GPUBudgetSpec is what may be had, and by whom.
//
// +kubebuilder:validation:XValidation:rule="has(self.gpus) || has(self.pricePerHour) || has(self.rate)",message="the budget bounds nothing: give gpus, pricePerHour or rate"
type GPUBudgetSpec struct {
	// namespaces whose nodes count, each in full: nodes with devices that their claims have,
	// and nodes that are asked for because of their pods. Empty: all nodes count, for all pods
	// and for headroom.
	//
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=256
	Namespaces []Namespace `json:"namespaces,omitempty"`
	// gpus is the most GPUs on nodes that exist or were asked for. Unset: no limit.
	//
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1000000
	GPUs *int32 `json:"gpus,omitempty"`
	// pricePerHour is the most that those nodes may cost together, in the currency of the node groups.
	// A group without a price then does not grow. Unset: no limit.
	//
	// +optional
	// +kubebuilder:validation:XValidation:rule="type(self) == int || !self.matches('[eE][-+0-9]')",message="write the quantity without an exponent"
	// +kubebuilder:validation:XValidation:rule="type(self) == int ? self >= 0 : !self.startsWith('-')",message="the price is negative: give the price of an hour, or leave it out"
	PricePerHour *resource.Quantity `json:"pricePerHour,omitempty"`
	// rate is how fast nodes may come. Unset: no limit.
	//
	// +optional
	Rate *ScaleUpRate `json:"rate,omitempty"`
}

// Namespace is the name of one.
//
// +kubebuilder:validation:MinLength=1
// +kubebuilder:validation:MaxLength=63
// +kubebuilder:validation:XValidation:rule="self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')",message="give the name of one namespace: patterns such as team-* are not understood"
type Namespace string

// ScaleUpRate is a number of nodes in a time. Nodes count that are younger than the period, and
// nodes that were asked for and are not there yet.
type ScaleUpRate struct {
	// nodes that may come in the period.
	//
	// +required
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=5000
	Nodes int32 `json:"nodes"`
	// period of at most a day, such as 10m.
	//
	// +required
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('1m') && duration(self) <= duration('24h')",message="give a period from 1m to 24h"
	Period metav1.Duration `json:"period"`
}

// GPUBudgetStatus is what there is, with what was asked for.
type GPUBudgetStatus struct {
	// observedGeneration is the generation of the spec that this status is of.
	//
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// gpus is how many there are.
	//
	// +optional
	GPUs int32 `json:"gpus"`
	// pricePerHour is what the nodes cost together, as far as the prices of their groups are known.
	//
	// +optional
	PricePerHour string `json:"pricePerHour,omitempty"`
	// held is how many pods the budget holds back.
	//
	// +optional
	Held int32 `json:"held"`
}
