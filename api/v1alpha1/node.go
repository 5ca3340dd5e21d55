package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// GPUNode is the report of the plugin on the node of the same name. Only the plugin
// writes it, so it has no spec and no status subresource. It is deleted with its Node.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=gpunodes,scope=Cluster,shortName=gnode
// +kubebuilder:printcolumn:name="Policy",type=string,JSONPath=`.policy.name`
// +kubebuilder:printcolumn:name="Generation",type=integer,JSONPath=`.policy.observedGeneration`
// +kubebuilder:printcolumn:name="Refusal",type=string,JSONPath=`.policy.message`,description="Why the node cannot do what the policy says"
// +kubebuilder:printcolumn:name="Withheld",type=string,JSONPath=`.withheld`,description="Why the node offers none of its GPUs"
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type GPUNode struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// policy is the GPUPolicy that the node goes by. Unset: none selects the node.
	//
	// +optional
	Policy *NodePolicy `json:"policy,omitempty"`
	// withheld says why the node offers none of its GPUs, such as that a device plugin
	// gives them out. Empty: it offers them.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=512
	Withheld string `json:"withheld,omitempty"`
}

// GPUNodeList is a list of nodes.
//
// +kubebuilder:object:root=true
type GPUNodeList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []GPUNode `json:"items"`
}

// NodePolicy is what one node made of its policy.
type NodePolicy struct {
	// name is the policy's.
	//
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
	// uid is the policy's.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=64
	UID string `json:"uid,omitempty"`
	// observedGeneration is that of the policy when the node looked.
	//
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// message says why the node cannot do what the policy says. Empty: it does.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=512
	Message string `json:"message,omitempty"`
}

// MaxMessageLength is that of a GPUNode's messages: the API server counts characters, and
// who writes one counts bytes, which are no fewer.
const MaxMessageLength = 512
