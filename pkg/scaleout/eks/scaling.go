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

// askScaling is of a self-managed group, which has no updates.
func (c *Client) askScaling(ctx context.Context, group groupID) view.Nodegroup {
	g, err := c.describeScaling(ctx, group)
	if err != nil {
		return view.Nodegroup{Err: err}
	}
	n := view.Nodegroup{
		Min: int(aws.ToInt32(g.MinSize)), Max: int(aws.ToInt32(g.MaxSize)), Desired: int(aws.ToInt32(g.DesiredCapacity)),
		Status:       aws.ToString(g.Status), // empty, unless the group is being deleted
		Refused:      c.refusal(group),
		ScalingGroup: group.scaling,
	}
	if err := checkSizes(n); err != nil {
		return view.Nodegroup{Err: err}
	}
	return n
}

func (c *Client) describeScaling(ctx context.Context, group groupID) (*types.AutoScalingGroup, error) {
	if err := c.paused(); err != nil {
		return nil, err
	}
	out, err := c.scaling.DescribeAutoScalingGroups(ctx, &autoscaling.DescribeAutoScalingGroupsInput{AutoScalingGroupNames: []string{group.scaling}})
	if err := c.judge(apiScaling, "DescribeAutoScalingGroups", group, err); err != nil {
		return nil, err
	}
	if len(out.AutoScalingGroups) != 1 {
		return nil, fmt.Errorf("EC2 Auto Scaling knows no Auto Scaling group %s in this region: correct spec.provider.autoScalingGroup of the GPUNodeGroup, or the controller's region", group.scaling)
	}
	return &out.AutoScalingGroups[0], nil
}

// setCapacity sets the size of an Auto Scaling group. A size that was set already is not set
// again: whatever has become of it since is somebody else's.
func (c *Client) setCapacity(ctx context.Context, group groupID, intent v1alpha1.InFlight) (string, error) {
	if c.refusal(group) != "" || c.holds(group) {
		return "", nil // nothing has changed since
	}
	g, err := c.describeScaling(ctx, group)
	if err != nil {
		return "", c.noteRefusal(group, err)
	}
	switch most, desired := aws.ToInt32(g.MaxSize), aws.ToInt32(g.DesiredCapacity); {
	case intent.Target > most:
		err := fmt.Errorf("%s cannot grow to %d: its maximum size is %d; raise it, or set spec.max of the GPUNodeGroup to %d", group, intent.Target, most, most)
		c.refuse(group, err)
		return "", err
	case intent.Target <= desired:
		return pair.WantedID(intent), nil
	}
	if err := c.paused(); err != nil {
		return "", err
	}
	_, err = c.scaling.SetDesiredCapacity(ctx, &autoscaling.SetDesiredCapacityInput{
		AutoScalingGroupName: aws.String(group.scaling), DesiredCapacity: aws.Int32(intent.Target),
	})
	c.forget(group)
	if err := c.judge(apiScaling, "SetDesiredCapacity", group, err); err != nil {
		return "", c.noteRefusal(group, err)
	}
	return pair.WantedID(intent), nil
}

// noteRefusal remembers a refusal, or that the group is to be left alone for a moment.
func (c *Client) noteRefusal(group groupID, err error) error {
	if refuses(err) {
		c.refuse(group, err)
	} else {
		c.hold(group)
	}
	return err
}

// End terminates an instance of a group and lets the group's size be one less. An instance that
// terminates already is left alone, so that its end counts once, however often it is asked for.
// The error is pair.ErrRefused when AWS will not do it the next time either, and
// pair.ErrNotInGroup where it has no such instance in the group.
func (c *Client) End(ctx context.Context, of *v1alpha1.GPUNodeGroup, instance string) error {
	if c.ends(instance) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, c.options.Timeout)
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
		return fmt.Errorf("%w: instance %s is none of %s: it was detached, or has ended", pair.ErrNotInGroup, instance, group)
	}
	if strings.HasPrefix(string(g.Instances[at].LifecycleState), "Terminat") {
		c.noteEnd(instance)
		return nil
	}
	if rebalances(g, instance) {
		return fmt.Errorf("%w: without instance %s, %s would have more machines in one zone than in another, and AWS would end a machine there, also one that is in use: "+
			"suspend its process AZRebalance (aws autoscaling suspend-processes --auto-scaling-group-name %s --scaling-processes AZRebalance), use one zone per group, or set spec.scaleInAfter of the GPUNodeGroup to 0s",
			pair.ErrRefused, instance, group, group.scaling)
	}
	if err := c.paused(); err != nil {
		return err
	}
	_, err = c.scaling.TerminateInstanceInAutoScalingGroup(ctx, &autoscaling.TerminateInstanceInAutoScalingGroupInput{
		InstanceId: aws.String(instance), ShouldDecrementDesiredCapacity: aws.Bool(true),
	})
	c.forget(id)
	if err := c.judge(apiScaling, "TerminateInstanceInAutoScalingGroup", group, err); err != nil {
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

// refusal is pair.ErrRefused too when AWS has refused a call. A group that another activity
// holds is not refused: that passes.
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

// endSeen is how long an instance that was seen to terminate is not asked about.
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
	left := c.ended[instance].Sub(c.options.Now())
	return left > 0 && left <= endSeen
}
