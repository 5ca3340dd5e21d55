package eks

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/eks"
	"github.com/aws/aws-sdk-go-v2/service/eks/types"

	"github.com/mica-gpu/mica/api/v1alpha1"
	"github.com/mica-gpu/mica/pkg/scaleout/pair"
	"github.com/mica-gpu/mica/pkg/scaleout/view"
)

// answer is what EKS said, and for which update it was asked.
type answer struct {
	update    string
	nodegroup view.Nodegroup
	// until is when EKS may be asked again.
	until time.Time
}

// Describe tells what EKS says of a group's node group, and of our last update of that, or what
// EC2 Auto Scaling says of a self-managed group. An answer counts for a while. Errors are in the
// result.
func (c *Client) Describe(ctx context.Context, of *v1alpha1.GPUNodeGroup) view.Nodegroup {
	group, update := idOf(of), pair.UpdateOf(of)
	if a, found := c.fresh(group, update); found {
		return a
	}
	ctx, cancel := context.WithTimeout(ctx, c.options.Timeout)
	defer cancel()
	var n view.Nodegroup
	if group.scaling != "" {
		n = c.askScaling(ctx, group)
	} else {
		n = c.ask(ctx, group, update)
	}
	n.AskedAt = c.options.Now()
	if n.Err == nil {
		n.DesiredSince = c.desiredSince(group, n.Desired)
	}
	c.keep(group, update, n)
	return n
}

// ask asks for the update first: when it is over, the group is as it has made it.
func (c *Client) ask(ctx context.Context, group groupID, update string) view.Nodegroup {
	var u *types.Update
	if update != "" {
		var err error
		if u, err = c.describeUpdate(ctx, group, update); err != nil {
			return view.Nodegroup{Err: err}
		}
	}
	described, err := c.describe(ctx, group)
	if err != nil {
		return view.Nodegroup{Err: err}
	}
	n := facts(described)
	if err := checkSizes(n); err != nil {
		return view.Nodegroup{Err: err}
	}
	n.Refused = c.refusal(group)
	n.ScalingGroup = scalingGroup(described)
	n.ScalingRefused = c.refusal(groupID{scaling: n.ScalingGroup})
	switch {
	case u == nil: // None was asked for, or EKS has forgotten it.
	case u.Status == types.UpdateStatusInProgress:
		n.Update = update
	case u.Status == types.UpdateStatusFailed || u.Status == types.UpdateStatusCancelled:
		n.Failed = failure(u)
	default:
		n.Failed = c.newIssue(group, described)
	}
	return n
}

// facts of a node group that do not depend on an update.
func facts(g *types.Nodegroup) view.Nodegroup {
	n := view.Nodegroup{Status: string(g.Status)}
	if s := g.ScalingConfig; s != nil {
		n.Min, n.Max, n.Desired = int(aws.ToInt32(s.MinSize)), int(aws.ToInt32(s.MaxSize)), int(aws.ToInt32(s.DesiredSize))
	}
	if w := g.WarmPoolConfig; w != nil && aws.ToBool(w.Enabled) {
		n.WarmPool = aws.Int(int(aws.ToInt32(w.MinSize)))
	}
	if texts := complaints(g); len(texts) > 0 {
		n.Issue = texts[0]
	}
	return n
}

func (c *Client) describe(ctx context.Context, group groupID) (*types.Nodegroup, error) {
	if err := c.paused(); err != nil {
		return nil, err
	}
	out, err := c.api.DescribeNodegroup(ctx, &eks.DescribeNodegroupInput{
		ClusterName:   aws.String(group.cluster),
		NodegroupName: aws.String(group.nodegroup),
	})
	if err := c.judge(apiEKS, "DescribeNodegroup", group, err); err != nil {
		return nil, err
	}
	if out.Nodegroup == nil {
		return nil, fmt.Errorf("EKS describes %s with nothing: ask again", group)
	}
	return out.Nodegroup, nil
}

// describeUpdate gives nil for an update that EKS does not know any more.
func (c *Client) describeUpdate(ctx context.Context, group groupID, id string) (*types.Update, error) {
	if err := c.paused(); err != nil {
		return nil, err
	}
	out, err := c.api.DescribeUpdate(ctx, &eks.DescribeUpdateInput{
		Name:          aws.String(group.cluster),
		NodegroupName: aws.String(group.nodegroup),
		UpdateId:      aws.String(id),
	})
	var gone *types.ResourceNotFoundException
	if errors.As(err, &gone) {
		return nil, nil
	}
	if err := c.judge(apiEKS, "DescribeUpdate", group, err); err != nil {
		return nil, err
	}
	return out.Update, nil
}

// SetDesired sets the desired size to the intent's target and gives the update's ID. The
// node group's own limits are looked at first. The ID is empty where EKS has another update
// in progress, or may have. A version or a configuration that EKS rolls out can take hours, in
// which it changes no size: then that of the Auto Scaling group behind the node group is set, as
// Cluster Autoscaler does, which EKS provides for.
// Source: https://docs.aws.amazon.com/eks/latest/userguide/managed-node-update-behavior.html
func (c *Client) SetDesired(ctx context.Context, of *v1alpha1.GPUNodeGroup, intent v1alpha1.InFlight) (string, error) {
	group := idOf(of)
	if c.holds(group) {
		return "", nil
	}
	ctx, cancel := context.WithTimeout(ctx, c.options.Timeout)
	defer cancel()
	if group.scaling != "" {
		return c.setCapacity(ctx, group, intent)
	}
	described, err := c.describe(ctx, group)
	if err != nil {
		return "", err
	}
	if err := within(group, facts(described), int(intent.Target)); err != nil {
		c.refuse(group, err)
		return "", err
	}
	token := token(group, intent)
	c.remember(group, token, described)
	id, err := c.update(ctx, group, &eks.UpdateNodegroupConfigInput{
		ClientRequestToken: aws.String(token),
		ScalingConfig:      &types.NodegroupScalingConfig{DesiredSize: aws.Int32(intent.Target)},
	})
	if name := scalingGroup(described); id == "" && err == nil && name != "" {
		return c.setCapacity(ctx, groupID{scaling: name}, intent)
	}
	return id, err
}

// SetWarmPool sets the least size of the warm pool, which has to be there: whether a group
// can have one depends on its AMI, which is for who made the group to know.
func (c *Client) SetWarmPool(ctx context.Context, of *v1alpha1.GPUNodeGroup, size int) (string, error) {
	group := idOf(of)
	if size < 0 || size > maxWarmPool {
		return "", fmt.Errorf("a warm pool of %d machines for %s is not asked for: from 0 to %d are", size, group, maxWarmPool)
	}
	if c.holds(group) {
		return "", nil
	}
	ctx, cancel := context.WithTimeout(ctx, c.options.Timeout)
	defer cancel()
	return c.update(ctx, group, &eks.UpdateNodegroupConfigInput{
		WarmPoolConfig: &types.WarmPoolConfig{MinSize: aws.Int32(int32(size))},
	})
}

// maxWarmPool is that of GPUHeadroom.
const maxWarmPool = 100

func (c *Client) update(ctx context.Context, group groupID, in *eks.UpdateNodegroupConfigInput) (string, error) {
	if err := c.paused(); err != nil {
		return "", err
	}
	in.ClusterName, in.NodegroupName = aws.String(group.cluster), aws.String(group.nodegroup)
	out, err := c.api.UpdateNodegroupConfig(ctx, in)
	c.forget(group)
	var busy *types.ResourceInUseException
	if errors.As(err, &busy) {
		c.hold(group)
		return "", nil
	}
	if err := c.judge(apiEKS, "UpdateNodegroupConfig", group, err); err != nil {
		if refuses(err) {
			c.refuse(group, err)
		} else {
			c.hold(group)
		}
		return "", err
	}
	if out.Update == nil || aws.ToString(out.Update.Id) == "" {
		return "", fmt.Errorf("EKS has accepted an update of %s and gives it no ID", group)
	}
	return *out.Update.Id, nil
}

// scalingGroup is the Auto Scaling group behind a node group, empty where there is not just one.
func scalingGroup(g *types.Nodegroup) string {
	if g.Resources == nil || len(g.Resources.AutoScalingGroups) != 1 {
		return ""
	}
	return aws.ToString(g.Resources.AutoScalingGroups[0].Name)
}

// within refuses a size that EKS would refuse, with what to do, and one that is lower than
// the present: EKS would choose itself which machines to end.
func within(group groupID, n view.Nodegroup, target int) error {
	switch {
	case target > n.Max:
		return fmt.Errorf("%s cannot grow to %d: its maxSize at EKS is %d; raise maxSize, or set spec.max of the GPUNodeGroup to %d",
			group, target, n.Max, n.Max)
	case target < n.Min, target < n.Desired:
		return fmt.Errorf("%s is not made smaller: desiredSize is %d, minSize %d, and %d was to be set",
			group, n.Desired, n.Min, target)
	}
	return nil
}

// token is the same for the same intent, and for no other.
func token(group groupID, intent v1alpha1.InFlight) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%q %q %d %d", group.cluster, group.nodegroup, intent.Target, intent.Since.Unix()))
	return hex.EncodeToString(sum[:16])
}
