package eks

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/autoscaling"
	"github.com/aws/aws-sdk-go-v2/service/autoscaling/types"
	"github.com/aws/smithy-go"

	"github.com/mica-gpu/mica/api/v1alpha1"
	"github.com/mica-gpu/mica/pkg/scaleout/pair"
	"github.com/mica-gpu/mica/pkg/scaleout/view"
)

// readScaling reads a self-managed group. It has no updates.
func (c *Client) readScaling(ctx context.Context, group groupID, _ string) (view.Nodegroup, error) {
	g, err := c.describeScaling(ctx, group)
	if err != nil {
		return view.Nodegroup{}, err
	}
	return view.Nodegroup{
		Min: int(aws.ToInt32(g.MinSize)), Max: int(aws.ToInt32(g.MaxSize)), Desired: int(aws.ToInt32(g.DesiredCapacity)),
		Status:       aws.ToString(g.Status), // empty, unless the group is being deleted
		Refused:      c.refusal(group),
		ScalingGroup: group.scaling,
	}, nil
}

func (c *Client) describeScaling(ctx context.Context, group groupID) (*types.AutoScalingGroup, error) {
	out, err := call(c, apiScaling, "DescribeAutoScalingGroups", group, func() (*autoscaling.DescribeAutoScalingGroupsOutput, error) {
		return c.scaling.DescribeAutoScalingGroups(ctx, &autoscaling.DescribeAutoScalingGroupsInput{AutoScalingGroupNames: []string{group.scaling}})
	})
	if err != nil {
		return nil, err
	}
	if len(out.AutoScalingGroups) != 1 {
		return nil, fmt.Errorf("EC2 Auto Scaling knows no Auto Scaling group %s in this region: correct spec.provider.autoScalingGroup of the GPUNodeGroup, or the controller's region", group.scaling)
	}
	return &out.AutoScalingGroups[0], nil
}

// setCapacity sets the size of an Auto Scaling group, unless it was at least that before.
func (c *Client) setCapacity(ctx context.Context, group groupID, intent v1alpha1.InFlight) (string, error) {
	if c.refusal(group) != "" || c.held(group) {
		return "", nil
	}
	g, err := c.describeScaling(ctx, group)
	if err != nil {
		return "", c.noteFailure(group, err)
	}
	switch most, desired := aws.ToInt32(g.MaxSize), aws.ToInt32(g.DesiredCapacity); {
	case intent.Target > most:
		return "", c.refuse(group, fmt.Errorf("%s cannot grow to %d: its maximum size is %d; raise it, or set spec.max of the GPUNodeGroup to %d", group, intent.Target, most, most))
	case intent.Target <= desired:
		return pair.WantedID(intent), nil
	}
	_, err = call(c, apiScaling, "SetDesiredCapacity", group, func() (*autoscaling.SetDesiredCapacityOutput, error) {
		defer c.forget(group)
		return c.scaling.SetDesiredCapacity(ctx, &autoscaling.SetDesiredCapacityInput{
			AutoScalingGroupName: aws.String(group.scaling), DesiredCapacity: aws.Int32(intent.Target),
		})
	})
	if err != nil {
		return "", c.noteFailure(group, err)
	}
	return pair.WantedID(intent), nil
}

// End terminates an instance of a group and lowers the group's size by one. An instance that terminates already is left alone,
// so that repeated calls count once. The error is pair.ErrRefused if AWS will refuse again, and pair.ErrNotInGroup if the group
// lacks the instance.
func (c *Client) End(ctx context.Context, of *v1alpha1.GPUNodeGroup, instance string) error {
	if c.ends(instance) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	id := idOf(of)
	group, err := c.behind(ctx, id)
	if err != nil {
		return refusal(err)
	}
	g, err := c.describeScaling(ctx, group)
	if err != nil {
		return refusal(err)
	}
	at := slices.IndexFunc(g.Instances, func(i types.Instance) bool { return aws.ToString(i.InstanceId) == instance })
	if at < 0 {
		return fmt.Errorf("%w: instance %s is not in %s: it was detached, or has ended", pair.ErrNotInGroup, instance, group)
	}
	if strings.HasPrefix(string(g.Instances[at].LifecycleState), "Terminat") {
		c.noteEnd(instance)
		return nil
	}
	if rebalances(g, instance) {
		return fmt.Errorf("%w: without instance %s, %s would have more machines in one zone than in another, and AWS would end a machine there, even one in use: "+
			"suspend its process AZRebalance (aws autoscaling suspend-processes --auto-scaling-group-name %s --scaling-processes AZRebalance), use one zone per group, or set spec.scaleInAfter of the GPUNodeGroup to 0s",
			pair.ErrRefused, instance, group, group.scaling)
	}
	_, err = call(c, apiScaling, "TerminateInstanceInAutoScalingGroup", group, func() (*autoscaling.TerminateInstanceInAutoScalingGroupOutput, error) {
		defer c.forget(id)
		return c.scaling.TerminateInstanceInAutoScalingGroup(ctx, &autoscaling.TerminateInstanceInAutoScalingGroupInput{
			InstanceId: aws.String(instance), ShouldDecrementDesiredCapacity: aws.Bool(true),
		})
	})
	if err != nil {
		return refusal(err)
	}
	c.noteEnd(instance)
	return nil
}

// rebalances reports whether EC2 Auto Scaling would balance the group's zones after the end of an instance: it starts a
// machine in the zone with fewer and ends one of its choice in the other (EC2 Auto Scaling's user guide, "Rebalancing
// activities", and TerminateInstanceInAutoScalingGroup in its API reference).
func rebalances(g *types.AutoScalingGroup, without string) bool {
	if len(g.AvailabilityZones) < 2 || slices.ContainsFunc(g.SuspendedProcesses, func(p types.SuspendedProcess) bool {
		return aws.ToString(p.ProcessName) == "AZRebalance"
	}) {
		return false
	}
	left := make(map[string]int, len(g.AvailabilityZones))
	for _, zone := range g.AvailabilityZones {
		left[zone] = 0
	}
	for _, i := range g.Instances {
		if aws.ToString(i.InstanceId) != without && !strings.HasPrefix(string(i.LifecycleState), "Terminat") {
			left[aws.ToString(i.AvailabilityZone)]++
		}
	}
	counts := slices.Collect(maps.Values(left))
	return slices.Max(counts)-slices.Min(counts) > 1
}

// behind is the Auto Scaling group that has a group's machines.
func (c *Client) behind(ctx context.Context, id groupID) (groupID, error) {
	if id.scaling != "" {
		return id, nil
	}
	described, err := c.describe(ctx, id)
	if err != nil {
		return groupID{}, err
	}
	name := scalingGroup(described)
	if name == "" {
		return groupID{}, fmt.Errorf("%w: EKS names no single Auto Scaling group of %s: set spec.scaleInAfter of the GPUNodeGroup to 0s", pair.ErrRefused, id)
	}
	return groupID{scaling: name}, nil
}

// refusal adds pair.ErrRefused to refusals. Another activity in the group passes.
func refusal(err error) error {
	var answer smithy.APIError
	if errors.As(err, &answer) && (answer.ErrorCode() == "ScalingActivityInProgress" || answer.ErrorCode() == "ResourceContention") {
		return err
	}
	if refuses(err) {
		return fmt.Errorf("%w: %w", pair.ErrRefused, err)
	}
	return err
}

// endSeen is how long the end of an instance is remembered.
const endSeen = time.Minute

func (c *Client) noteEnd(instance string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.options.Now()
	for other, until := range c.ended {
		if now.After(until) {
			delete(c.ended, other)
		}
	}
	c.ended[instance] = now.Add(endSeen)
}

func (c *Client) ends(instance string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.options.Now().Before(c.ended[instance])
}
