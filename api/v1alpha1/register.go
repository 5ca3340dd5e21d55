package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion is that of every kind in this package.
var GroupVersion = schema.GroupVersion{Group: "mica.gpu", Version: "v1alpha1"}

// PolicyResource and NodeResource are how the API server's paths name policies and GPUNodes.
const (
	PolicyResource = "gpupolicies"
	NodeResource   = "gpunodes"
)

// AddToScheme makes the kinds known to a scheme.
func AddToScheme(scheme *runtime.Scheme) error {
	scheme.AddKnownTypes(GroupVersion,
		&GPUPolicy{}, &GPUPolicyList{},
		&GPUNode{}, &GPUNodeList{},
		&GPUNodeGroup{}, &GPUNodeGroupList{},
		&GPUHeadroom{}, &GPUHeadroomList{},
		&GPUBudget{}, &GPUBudgetList{})
	metav1.AddToGroupVersion(scheme, GroupVersion)
	return nil
}
