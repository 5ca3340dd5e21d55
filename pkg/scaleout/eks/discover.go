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

// maxNodegroups bounds what Discover looks at, which takes a call each.
const maxNodegroups = 500

// Discover lists the cluster's node groups, with how those would be declared whose machines have GPUs, as
// isGPU tells of an instance type. Nothing can be predicted of groups with several types, of which any
// node may be, and of groups whose type only their launch template says. The pairing is observe: an
// administrator says who makes a group grow. One that cannot be read, or of which EKS says
// what cannot be, has an error of its own; the error is of the list.
func (c *Client) Discover(ctx context.Context, cluster string, isGPU func(instanceType string) bool) ([]view.Discovered, error) {
	names, err := c.list(ctx, cluster)
	if err != nil {
		return nil, err
	}
	var groups []view.Discovered
	for _, name := range names {
		found := view.Discovered{Nodegroup: name}
		if found.Err = checkName(name); found.Err != nil {
			groups = append(groups, found)
			continue
		}
		id := v1alpha1.EKSNodegroup{Cluster: cluster, Nodegroup: name}
		described, err := c.describeAlone(ctx, groupID{cluster: cluster, nodegroup: name})
		var gone *types.ResourceNotFoundException
		switch {
		case errors.As(err, &gone):
			continue // it was deleted meanwhile
		case err != nil:
			found.Err = err
			groups = append(groups, found)
			continue
		}
		if len(described.InstanceTypes) != 1 || !isGPU(described.InstanceTypes[0]) {
			klog.FromContext(ctx).V(4).Info("Node group is not of one type of machine with GPUs", "cluster", cluster, "nodegroup", name, "instanceTypes", described.InstanceTypes)
			groups = append(groups, found)
			continue
		}
		if found.Err = check(described); found.Err == nil {
			found.Group = declared(id, described)
		}
		groups = append(groups, found)
	}
	return groups, nil
}

func (c *Client) describeAlone(ctx context.Context, id groupID) (*types.Nodegroup, error) {
	ctx, cancel := context.WithTimeout(ctx, c.options.Timeout)
	defer cancel()
	return c.describe(ctx, id)
}

func (c *Client) list(ctx context.Context, cluster string) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, c.options.Timeout)
	defer cancel()
	var names []string
	var next *string
	for {
		if err := c.paused(); err != nil {
			return nil, err
		}
		out, err := c.api.ListNodegroups(ctx, &eks.ListNodegroupsInput{ClusterName: aws.String(cluster), NextToken: next})
		if err := c.judge(apiEKS, "ListNodegroups", groupID{cluster: cluster}, err); err != nil {
			return nil, err
		}
		names = append(names, out.Nodegroups...)
		if len(names) > maxNodegroups {
			return nil, fmt.Errorf("cluster %s has more than %d node groups, too many to describe: declare those with GPUs as GPUNodeGroups, and discover none", cluster, maxNodegroups)
		}
		if aws.ToString(out.NextToken) == "" {
			return names, nil
		}
		if next != nil && *next == *out.NextToken {
			return nil, fmt.Errorf("EKS gives the same page of cluster %s's node groups again and again", cluster)
		}
		next = out.NextToken
	}
}

// declared is the group as somebody would have declared it.
func declared(id v1alpha1.EKSNodegroup, g *types.Nodegroup) *v1alpha1.GPUNodeGroup {
	n := facts(g)
	most := int32(n.Max)
	return &v1alpha1.GPUNodeGroup{
		ObjectMeta: metav1.ObjectMeta{Name: view.DiscoveredName(id.Nodegroup), Labels: map[string]string{v1alpha1.LabelDiscovered: "eks"}},
		Spec: v1alpha1.GPUNodeGroupSpec{
			Provider:     v1alpha1.NodeGroupProvider{EKS: &id},
			InstanceType: g.InstanceTypes[0],
			Template:     v1alpha1.NodeTemplate{Labels: g.Labels, Taints: taints(g.Taints)},
			Min:          int32(n.Min),
			Max:          &most,
			Pairing:      v1alpha1.PairingObserve,
			CapacityType: string(g.CapacityType),
		},
	}
}

// effects in EKS's words.
var effects = map[types.TaintEffect]corev1.TaintEffect{
	types.TaintEffectNoSchedule:       corev1.TaintEffectNoSchedule,
	types.TaintEffectNoExecute:        corev1.TaintEffectNoExecute,
	types.TaintEffectPreferNoSchedule: corev1.TaintEffectPreferNoSchedule,
}

// taints are those that nodes keep, in order.
func taints(of []types.Taint) []corev1.Taint {
	var kept []corev1.Taint
	for _, t := range of {
		kept = append(kept, corev1.Taint{Key: aws.ToString(t.Key), Value: aws.ToString(t.Value), Effect: effects[t.Effect]})
	}
	kept = template.WithoutStartup(kept)
	slices.SortFunc(kept, func(a, b corev1.Taint) int {
		return cmp.Or(strings.Compare(a.Key, b.Key), strings.Compare(string(a.Effect), string(b.Effect)))
	})
	return kept
}
