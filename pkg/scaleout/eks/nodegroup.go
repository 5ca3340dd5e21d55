package eks

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/eks"
	"github.com/aws/aws-sdk-go-v2/service/eks/types"

	"github.com/mica-gpu/mica/api/v1alpha1"
	"github.com/mica-gpu/mica/pkg/scaleout/pair"
	"github.com/mica-gpu/mica/pkg/scaleout/view"
)

// Describe returns a group's node group with our last update of it, or a self-managed Auto Scaling group. Answers are cached.
// Errors are in the result.
func (c *Client) Describe(ctx context.Context, of *v1alpha1.GPUNodeGroup) view.Nodegroup {
	group, update := idOf(of), pair.UpdateOf(of)
	if n, found := c.cached(group, update); found {
		return n
	}
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	read := c.read
	if group.scaling != "" {
		read = c.readScaling
	}
	n, err := read(ctx, group, update)
	if err == nil {
		err = checkSizes(n)
	}
	if err != nil {
		n = view.Nodegroup{Err: err}
	}
	return c.cache(group, update, n)
}

// read reads the update first: when it is over, the group shows its result.
func (c *Client) read(ctx context.Context, group groupID, update string) (n view.Nodegroup, err error) {
	var u *types.Update
	if update != "" {
		if u, err = c.describeUpdate(ctx, group, update); err != nil {
			return n, err
		}
	}
	described, err := c.describe(ctx, group)
	if err != nil {
		return n, err
	}
	n = facts(described)
	n.Refused = c.refusal(group)
	n.ScalingGroup = scalingGroup(described)
	n.ScalingRefused = c.refusal(groupID{scaling: n.ScalingGroup})
	switch {
	case u == nil: // there was none, or EKS has forgotten it
	case u.Status == types.UpdateStatusInProgress:
		n.Update = update
	case u.Status == types.UpdateStatusFailed || u.Status == types.UpdateStatusCancelled:
		n.Failed = failure(u)
	default:
		n.Failed = c.newIssue(group, described)
	}
	return n, nil
}

// facts are the parts of a node group that depend on no update.
func facts(g *types.Nodegroup) view.Nodegroup {
	n := view.Nodegroup{Status: string(g.Status)}
	if s := g.ScalingConfig; s != nil {
		n.Min, n.Max, n.Desired = int(aws.ToInt32(s.MinSize)), int(aws.ToInt32(s.MaxSize)), int(aws.ToInt32(s.DesiredSize))
	}
	if texts := complaints(g); len(texts) > 0 {
		n.Issue = texts[0]
	}
	return n
}

func (c *Client) describe(ctx context.Context, group groupID) (*types.Nodegroup, error) {
	out, err := call(c, apiEKS, "DescribeNodegroup", group, func() (*eks.DescribeNodegroupOutput, error) {
		return c.api.DescribeNodegroup(ctx, &eks.DescribeNodegroupInput{ClusterName: aws.String(group.cluster), NodegroupName: aws.String(group.nodegroup)})
	})
	if err != nil {
		return nil, err
	}
	if out.Nodegroup == nil {
		return nil, fmt.Errorf("the answer of EKS about %s is empty", group)
	}
	return out.Nodegroup, nil
}

// describeUpdate returns nil for an update that EKS has forgotten.
func (c *Client) describeUpdate(ctx context.Context, group groupID, id string) (*types.Update, error) {
	out, err := call(c, apiEKS, "DescribeUpdate", group, func() (*eks.DescribeUpdateOutput, error) {
		return c.api.DescribeUpdate(ctx, &eks.DescribeUpdateInput{Name: aws.String(group.cluster), NodegroupName: aws.String(group.nodegroup), UpdateId: aws.String(id)})
	})
	if gone := (*types.ResourceNotFoundException)(nil); errors.As(err, &gone) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return out.Update, nil
}

// SetDesired sets the desired size to the intent's target, within the node group's limits, and returns the update's ID. The ID
// is empty if EKS has, or may have, another update in progress. EKS's rollouts can take hours. Then SetDesired sets the size
// of the Auto Scaling group, as Cluster Autoscaler does and EKS provides for.
// Source: https://docs.aws.amazon.com/eks/latest/userguide/managed-node-update-behavior.html
func (c *Client) SetDesired(ctx context.Context, of *v1alpha1.GPUNodeGroup, intent v1alpha1.InFlight) (string, error) {
	group := idOf(of)
	if c.held(group) {
		return "", nil
	}
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	if group.scaling != "" {
		return c.setCapacity(ctx, group, intent)
	}
	described, err := c.describe(ctx, group)
	if err != nil {
		return "", err
	}
	n := facts(described)
	switch target := int(intent.Target); {
	case target > n.Max:
		return "", c.refuse(group, fmt.Errorf("%s cannot grow to %d: its maxSize at EKS is %d; raise maxSize, or set spec.max of the GPUNodeGroup to %d",
			group, target, n.Max, n.Max))
	case target < n.Min, target < n.Desired:
		return "", c.refuse(group, fmt.Errorf("%s is not made smaller: desiredSize is %d, minSize %d, and %d was to be set", group, n.Desired, n.Min, target))
	}
	token := token(group, intent)
	c.remember(group, token, described)
	id, err := c.update(ctx, group, token, intent.Target)
	if name := scalingGroup(described); id == "" && err == nil && name != "" {
		return c.setCapacity(ctx, groupID{scaling: name}, intent)
	}
	return id, err
}

// update begins an update of the desired size.
func (c *Client) update(ctx context.Context, group groupID, token string, desired int32) (string, error) {
	out, err := call(c, apiEKS, "UpdateNodegroupConfig", group, func() (*eks.UpdateNodegroupConfigOutput, error) {
		defer c.forget(group)
		return c.api.UpdateNodegroupConfig(ctx, &eks.UpdateNodegroupConfigInput{
			ClusterName: aws.String(group.cluster), NodegroupName: aws.String(group.nodegroup),
			ClientRequestToken: aws.String(token),
			ScalingConfig:      &types.NodegroupScalingConfig{DesiredSize: aws.Int32(desired)},
		})
	})
	if busy := (*types.ResourceInUseException)(nil); errors.As(err, &busy) {
		c.hold(group)
		return "", nil
	}
	if err != nil {
		return "", c.noteFailure(group, err)
	}
	if out.Update == nil || aws.ToString(out.Update.Id) == "" {
		return "", fmt.Errorf("EKS accepted an update of %s without an ID", group)
	}
	return *out.Update.Id, nil
}

// scalingGroup is the Auto Scaling group of a node group. Empty: there is not exactly one.
func scalingGroup(g *types.Nodegroup) string {
	if g.Resources == nil || len(g.Resources.AutoScalingGroups) != 1 {
		return ""
	}
	return aws.ToString(g.Resources.AutoScalingGroups[0].Name)
}

// token identifies an intent.
func token(group groupID, intent v1alpha1.InFlight) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%q %q %d %d", group.cluster, group.nodegroup, intent.Target, intent.Since.Unix()))
	return hex.EncodeToString(sum[:16])
}
