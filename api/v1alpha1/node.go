package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// GPUNode is the report of the plugin on the node of the same name. Only the plugin
// writes it, so it has no spec and no status subresource. It is deleted with its Node.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=gpunodes,scope=Cluster,shortName=gnode
// +kubebuilder:printcolumn:name="Policy",type=string,JSONPath=`.policy.name`
// +kubebuilder:printcolumn:name="Generation",type=integer,JSONPath=`.policy.observedGeneration`
// +kubebuilder:printcolumn:name="Refusal",type=string,JSONPath=`.policy.message`,description="Why the node cannot apply the policy"
// +kubebuilder:printcolumn:name="Withheld",type=string,JSONPath=`.withheld`,description="Why the node offers no GPUs"
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type GPUNode struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// policy is the GPUPolicy that applies to the node. Unset: none selects it.
	//
	// +optional
	Policy *NodePolicy `json:"policy,omitempty"`
	// withheld is the reason why the node offers no GPUs, for example because a device plugin has
	// them. Empty: it offers them.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=512
	Withheld string `json:"withheld,omitempty"`
}

// GPUNodeList is a list of GPUNodes.
//
// +kubebuilder:object:root=true
type GPUNodeList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []GPUNode `json:"items"`
}

// NodePolicy is a node's report on its policy.
type NodePolicy struct {
	// name is the name of the policy.
	//
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
	// uid is the UID of the policy.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=64
	UID string `json:"uid,omitempty"`
	// observedGeneration is the generation of the policy that the report is about.
	//
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// message is the reason why the node cannot apply the policy. Empty: it has applied it.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=512
	Message string `json:"message,omitempty"`
}

// MaxMessageLength is the maximum length of a GPUNode's messages. The API server counts characters;
// writers may count bytes.
const MaxMessageLength = 512
