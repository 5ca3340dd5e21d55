package eks

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/eks"
	"github.com/aws/aws-sdk-go-v2/service/eks/types"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"github.com/mica-gpu/mica/api/v1alpha1"
	"github.com/mica-gpu/mica/pkg/scaleout/template"
	"github.com/mica-gpu/mica/pkg/scaleout/view"
)

// maxNodegroups bounds Discover, which takes a call per node group.
const maxNodegroups = 500

// Discover lists the cluster's node groups, with a declaration for those of one instance type with GPUs. Groups of several
// types, or with the type in a launch template, cannot be predicted. The error is the list's; a group that cannot be read has
// its own.
func (c *Client) Discover(ctx context.Context, cluster string, isGPU func(instanceType string) bool) ([]view.Discovered, error) {
	names, err := c.list(ctx, cluster)
	if err != nil {
		return nil, err
	}
	var groups []view.Discovered
	for _, name := range names {
		found := view.Discovered{Nodegroup: name}
		found.Group, found.Err = c.discover(ctx, v1alpha1.EKSNodegroup{Cluster: cluster, Nodegroup: name}, isGPU)
		if gone := (*types.ResourceNotFoundException)(nil); errors.As(found.Err, &gone) {
			continue // it was deleted since the list
		}
		groups = append(groups, found)
	}
	return groups, nil
}

// discover returns nil for a node group that cannot be predicted.
func (c *Client) discover(ctx context.Context, id v1alpha1.EKSNodegroup, isGPU func(string) bool) (*v1alpha1.GPUNodeGroup, error) {
	if !nodegroupName.MatchString(id.Nodegroup) {
		return nil, fmt.Errorf("EKS lists a node group with the invalid name %.80q", id.Nodegroup)
	}
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	g, err := c.describe(ctx, groupID{cluster: id.Cluster, nodegroup: id.Nodegroup})
	if err != nil {
		return nil, err
	}
	if len(g.InstanceTypes) != 1 || !isGPU(g.InstanceTypes[0]) {
		klog.FromContext(ctx).V(4).Info("Node group has no single instance type with GPUs", "cluster", id.Cluster, "nodegroup", id.Nodegroup, "instanceTypes", g.InstanceTypes)
		return nil, nil
	}
	n := facts(g)
	if err := checkSizes(n); err != nil {
		return nil, err
	}
	most := int32(n.Max)
	return &v1alpha1.GPUNodeGroup{
		ObjectMeta: metav1.ObjectMeta{Name: view.DiscoveredName(id.Nodegroup), Labels: map[string]string{v1alpha1.LabelDiscovered: "eks"}},
		Spec: v1alpha1.GPUNodeGroupSpec{
			Provider:     v1alpha1.NodeGroupProvider{EKS: &id},
			InstanceType: g.InstanceTypes[0],
			Template:     v1alpha1.NodeTemplate{Labels: g.Labels, Taints: taints(g.Taints, c.options.StartupTaints)},
			Min:          int32(n.Min),
			Max:          &most,
			Pairing:      v1alpha1.PairingObserve,
			CapacityType: string(g.CapacityType),
		},
	}, nil
}

func (c *Client) list(ctx context.Context, cluster string) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	var names []string
	var next *string
	for {
		page, err := call(c, apiEKS, "ListNodegroups", groupID{cluster: cluster}, func() (*eks.ListNodegroupsOutput, error) {
			return c.api.ListNodegroups(ctx, &eks.ListNodegroupsInput{ClusterName: aws.String(cluster), NextToken: next})
		})
		if err != nil {
			return nil, err
		}
		if names = append(names, page.Nodegroups...); len(names) > maxNodegroups {
			return nil, fmt.Errorf("cluster %s has more than %d node groups, too many to describe: declare those with GPUs as GPUNodeGroups, and turn off discovery", cluster, maxNodegroups)
		}
		if token := aws.ToString(page.NextToken); token == "" || token == aws.ToString(next) {
			return names, nil
		}
		next = page.NextToken
	}
}

// effects by EKS's names.
var effects = map[types.TaintEffect]corev1.TaintEffect{
	types.TaintEffectNoSchedule:       corev1.TaintEffectNoSchedule,
	types.TaintEffectNoExecute:        corev1.TaintEffectNoExecute,
	types.TaintEffectPreferNoSchedule: corev1.TaintEffectPreferNoSchedule,
}

// taints are those that nodes keep, in order.
func taints(of []types.Taint, startup template.StartupTaints) []corev1.Taint {
	var kept []corev1.Taint
	for _, t := range of {
		kept = append(kept, corev1.Taint{Key: aws.ToString(t.Key), Value: aws.ToString(t.Value), Effect: effects[t.Effect]})
	}
	kept = startup.Without(kept)
	slices.SortFunc(kept, func(a, b corev1.Taint) int {
		return cmp.Or(strings.Compare(a.Key, b.Key), strings.Compare(string(a.Effect), string(b.Effect)))
	})
	return kept
}
