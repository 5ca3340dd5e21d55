package offer

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/gentype"
	"k8s.io/client-go/rest"

	"github.com/mica-gpu/mica/api/v1alpha1"
)

// Policies are the cluster's GPUPolicies.
type Policies interface {
	Get(ctx context.Context, name string, options metav1.GetOptions) (*v1alpha1.GPUPolicy, error)
	List(ctx context.Context, options metav1.ListOptions) (*v1alpha1.GPUPolicyList, error)
	Watch(ctx context.Context, options metav1.ListOptions) (watch.Interface, error)
	UpdateStatus(ctx context.Context, policy *v1alpha1.GPUPolicy, options metav1.UpdateOptions) (*v1alpha1.GPUPolicy, error)
}

// NewPolicies returns a client of the API server that config tells about.
func NewPolicies(config *rest.Config) (Policies, error) {
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		return nil, fmt.Errorf("register GPUPolicy: %w", err)
	}
	config = rest.CopyConfig(config)
	config.GroupVersion = &v1alpha1.GroupVersion
	config.APIPath = "/apis"
	config.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	// Custom resources have no other form.
	config.ContentType, config.AcceptContentTypes = runtime.ContentTypeJSON, runtime.ContentTypeJSON
	client, err := rest.RESTClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("set up the client of GPUPolicies: %w", err)
	}
	return gentype.NewClientWithList(v1alpha1.PolicyResource, client, runtime.NewParameterCodec(scheme), "",
		func() *v1alpha1.GPUPolicy { return &v1alpha1.GPUPolicy{} },
		func() *v1alpha1.GPUPolicyList { return &v1alpha1.GPUPolicyList{} }), nil
}
