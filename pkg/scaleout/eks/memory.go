package eks

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/eks/types"

	"github.com/mica-gpu/mica/api/v1alpha1"
	"github.com/mica-gpu/mica/pkg/excerpt"
	"github.com/mica-gpu/mica/pkg/scaleout/view"
)

// issues are texts of complaints about a node group before a scale-up, which the token names.
type issues struct {
	token string
	texts map[string]bool
}

// launching are the complaints that mean that no machine, or none of use, comes. The others
// are for the group's owner and say nothing about this scale-up.
var launching = map[types.NodegroupIssueCode]bool{
	types.NodegroupIssueCodeAsgInstanceLaunchFailures:                true,
	types.NodegroupIssueCodeInstanceLimitExceeded:                    true,
	types.NodegroupIssueCodeInsufficientFreeAddresses:                true,
	types.NodegroupIssueCodeNodeCreationFailure:                      true,
	types.NodegroupIssueCodeAutoScalingGroupNotFound:                 true,
	types.NodegroupIssueCodeAutoScalingGroupInvalidConfiguration:     true,
	types.NodegroupIssueCodeEc2LaunchTemplateNotFound:                true,
	types.NodegroupIssueCodeEc2LaunchTemplateInvalidConfiguration:    true,
	types.NodegroupIssueCodeEc2SubnetNotFound:                        true,
	types.NodegroupIssueCodeEc2InstanceTypeDoesNotExist:              true,
	types.NodegroupIssueCodeAmiIdNotFound:                            true,
	types.NodegroupIssueCodeIamInstanceProfileNotFound:               true,
	types.NodegroupIssueCodeIamNodeRoleNotFound:                      true,
	types.NodegroupIssueCodeLimitExceeded:                            true,
	types.NodegroupIssueCodeAutoScalingGroupOptInRequired:            true,
	types.NodegroupIssueCodeEc2LaunchTemplateVersionMaxLimitExceeded: true,
}

// groupID is a managed node group of EKS, or, with a name in scaling, an Auto Scaling group.
type groupID struct {
	cluster, nodegroup string
	scaling            string
}

func idOf(of *v1alpha1.GPUNodeGroup) groupID {
	provider := of.Spec.Provider
	if provider.EKS == nil {
		return groupID{scaling: provider.AutoScalingGroup}
	}
	return groupID{cluster: provider.EKS.Cluster, nodegroup: provider.EKS.Nodegroup}
}

// String names the group for people.
func (g groupID) String() string {
	switch {
	case g.scaling != "":
		return "Auto Scaling group " + g.scaling
	case g.nodegroup == "":
		return "cluster " + g.cluster
	}
	return fmt.Sprintf("node group %s of cluster %s", g.nodegroup, g.cluster)
}

// fresh is an answer that still counts, for the same update.
func (c *Client) fresh(group groupID, update string) (view.Nodegroup, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	a, found := c.answers[group]
	now := c.options.Now()
	// An answer of the future was given before the clock was set back.
	if !found || a.update != update || !now.Before(a.until) || now.Before(a.nodegroup.AskedAt) {
		return view.Nodegroup{}, false
	}
	return a.nodegroup, true
}

// keep keeps an answer. That EKS is left alone is none, and ends when that does.
func (c *Client) keep(group groupID, update string, n view.Nodegroup) {
	if errors.Is(n.Err, ErrThrottled) {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.answers[group] = answer{update: update, nodegroup: n, until: n.AskedAt.Add(c.options.Fresh)}
}

// desiredSince is since when a group's desired size is as it is, as far as this process knows.
func (c *Client) desiredSince(group groupID, desired int) time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	last, now := c.sizes[group], c.options.Now()
	if last.since.IsZero() || last.desired != desired || now.Before(last.since) {
		last = size{desired: desired, since: now}
		c.sizes[group] = last
	}
	return last.since
}

// size is a desired size, and since when it is that.
type size struct {
	desired int
	since   time.Time
}

// forget lets the next Describe ask.
func (c *Client) forget(group groupID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.answers, group)
}

// remember notes what EKS complains of before a scale-up. When the same is asked for again,
// the complaint may be about it already.
func (c *Client) remember(group groupID, token string, g *types.Nodegroup) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.issues[group].token == token {
		return
	}
	before := issues{token: token, texts: map[string]bool{}}
	for _, i := range complaints(g) {
		before.texts[i] = true
	}
	c.issues[group] = before
}

// newIssue is a complaint that was not there before the scale-up. Where it is not known what
// was there before, because the controller has been started since, none is new: an old
// complaint would end a scale-up that goes well. That one which does not is found out by
// time, later.
func (c *Client) newIssue(group groupID, g *types.Nodegroup) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	before, known := c.issues[group]
	if !known {
		return ""
	}
	for _, i := range complaints(g) {
		if !before.texts[i] {
			return i
		}
	}
	return ""
}

// hold keeps a node group from being changed for a while: EKS is busy with it, or has not
// said what became of a change. Who asks in every pass would only be throttled.
func (c *Client) hold(group groupID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.held[group] = c.options.Now().Add(c.options.Fresh)
}

// holds tells whether a node group is not to be changed yet.
func (c *Client) holds(group groupID) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	left := c.held[group].Sub(c.options.Now())
	return left > 0 && left <= c.options.Fresh
}

// refused is a call that EKS has refused.
type refused struct {
	why string
	at  time.Time
}

// refusedFor is how long a refusal is told of.
const refusedFor = time.Minute

func (c *Client) refuse(group groupID, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.refusals[group] = refused{why: err.Error(), at: c.options.Now()}
	delete(c.answers, group)
}

func (c *Client) refusal(group groupID) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	r, found := c.refusals[group]
	if since := c.options.Now().Sub(r.at); !found || since < 0 || since > refusedFor {
		return ""
	}
	return r.why
}

// complaints are those that keep machines from coming.
func complaints(g *types.Nodegroup) []string {
	if g.Health == nil {
		return nil
	}
	var texts []string
	for _, i := range g.Health.Issues {
		if launching[i.Code] {
			texts = append(texts, sentence(string(i.Code), aws.ToString(i.Message)))
		}
	}
	return texts
}

// failure is why an update has failed.
func failure(u *types.Update) string {
	if u.Status == types.UpdateStatusCancelled {
		return "update " + aws.ToString(u.Id) + " was cancelled at EKS"
	}
	texts := make([]string, 0, len(u.Errors))
	for _, e := range u.Errors {
		texts = append(texts, sentence(string(e.ErrorCode), aws.ToString(e.ErrorMessage)))
	}
	if len(texts) == 0 {
		return "update " + aws.ToString(u.Id) + " failed at EKS, which does not say why"
	}
	return strings.Join(texts, "; ")
}

// sentence is a code and a text of EKS, the length bounded.
func sentence(code, text string) string {
	const most = 300
	return strings.TrimSpace(code + ": " + excerpt.Of(text, most))
}
