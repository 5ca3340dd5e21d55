package offer

import (
	"context"
	"encoding/json"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/gentype"
	"k8s.io/client-go/rest"

	"github.com/mica-gpu/mica/api/v1alpha1"
)

// Policies reads the cluster's GPUPolicies and writes a node's report.
type Policies interface {
	List(ctx context.Context, options metav1.ListOptions) (*v1alpha1.GPUPolicyList, error)
	Watch(ctx context.Context, options metav1.ListOptions) (watch.Interface, error)
	// Report creates or updates a GPUNode.
	Report(ctx context.Context, node *v1alpha1.GPUNode) error
}

// NewPolicies returns a client of the API server.
func NewPolicies(config *rest.Config) (Policies, error) {
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		return nil, fmt.Errorf("register GPUPolicy: %w", err)
	}
	config = rest.CopyConfig(config)
	config.GroupVersion = &v1alpha1.GroupVersion
	config.APIPath = "/apis"
	config.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	// Custom resources have no protobuf encoding.
	config.ContentType, config.AcceptContentTypes = runtime.ContentTypeJSON, runtime.ContentTypeJSON
	client, err := rest.RESTClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("set up the client of GPUPolicies: %w", err)
	}
	codec := runtime.NewParameterCodec(scheme)
	return policyClient{
		gentype.NewClientWithList(v1alpha1.PolicyResource, client, codec, "",
			func() *v1alpha1.GPUPolicy { return &v1alpha1.GPUPolicy{} },
			func() *v1alpha1.GPUPolicyList { return &v1alpha1.GPUPolicyList{} }),
		gentype.NewClient(v1alpha1.NodeResource, client, codec, "", func() *v1alpha1.GPUNode { return &v1alpha1.GPUNode{} }),
	}, nil
}

type policyClient struct {
	*gentype.ClientWithList[*v1alpha1.GPUPolicy, *v1alpha1.GPUPolicyList]
	nodes *gentype.Client[*v1alpha1.GPUNode]
}

// reportManager is the plugins' field manager.
const reportManager = "mica-kubelet-plugin"

// Report implements Policies. The API server does not write an unchanged object.
func (c policyClient) Report(ctx context.Context, node *v1alpha1.GPUNode) error {
	data, err := json.Marshal(node)
	if err != nil {
		return fmt.Errorf("encode the GPUNode: %w", err)
	}
	_, err = c.nodes.Patch(ctx, node.Name, types.ApplyPatchType, data, metav1.PatchOptions{FieldManager: reportManager, Force: new(true)})
	return err
}
