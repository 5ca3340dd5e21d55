package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion is the group and version of all kinds in this package.
var GroupVersion = schema.GroupVersion{Group: "mica.gpu", Version: "v1alpha1"}

// PolicyResource and NodeResource are the resources of GPUPolicies and GPUNodes in the API server's
// paths.
const (
	PolicyResource = "gpupolicies"
	NodeResource   = "gpunodes"
)

// AddToScheme adds the kinds to a scheme.
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
