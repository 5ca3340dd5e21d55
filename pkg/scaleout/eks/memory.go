package eks

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/eks/types"

	"github.com/mica-gpu/mica/api/v1alpha1"
	"github.com/mica-gpu/mica/pkg/excerpt"
	"github.com/mica-gpu/mica/pkg/scaleout/view"
)

// groupID is a managed node group of EKS, or an Auto Scaling group if scaling is set.
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

// memory is what a client remembers of a group. It is lost with the process.
type memory struct {
	// answer is the cached answer for an update, until a time.
	answer view.Nodegroup
	update string
	until  time.Time
	// since is when desired was first seen.
	desired int
	since   time.Time
	// issues are the group's complaints before the scale-up of the token. EKS keeps old complaints until a scale-up succeeds,
	// without a time.
	token  string
	issues []string
	// refusal is AWS's last one, until a time.
	refusal      string
	refusedUntil time.Time
	// heldUntil delays changes, after a call that EKS did not begin for sure.
	heldUntil time.Time
}

// refusedFor is how long a refusal is reported.
const refusedFor = time.Minute

func (c *Client) with(group groupID, use func(m *memory, now time.Time)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	m := c.groups[group]
	if m == nil {
		m = &memory{}
		c.groups[group] = m
	}
	use(m, c.options.Now())
}

// cached is the answer for the same update, while it is fresh.
func (c *Client) cached(group groupID, update string) (n view.Nodegroup, found bool) {
	c.with(group, func(m *memory, now time.Time) { n, found = m.answer, m.update == update && now.Before(m.until) })
	return n, found
}

// cache completes an answer with times and caches it. A pause after throttling is not an answer; it ends by itself.
func (c *Client) cache(group groupID, update string, n view.Nodegroup) view.Nodegroup {
	c.with(group, func(m *memory, now time.Time) {
		n.AskedAt = now
		if n.Err == nil {
			if m.since.IsZero() || m.desired != n.Desired {
				m.desired, m.since = n.Desired, now
			}
			n.DesiredSince = m.since
		}
		if !errors.Is(n.Err, ErrThrottled) {
			m.answer, m.update, m.until = n, update, now.Add(fresh)
		}
	})
	return n
}

// forget removes the cached answer.
func (c *Client) forget(group groupID) {
	c.with(group, func(m *memory, _ time.Time) { m.until = time.Time{} })
}

// remember keeps the group's complaints before a scale-up. When the scale-up is repeated, complaints may be about it already.
func (c *Client) remember(group groupID, token string, g *types.Nodegroup) {
	c.with(group, func(m *memory, _ time.Time) {
		if m.token != token {
			m.token, m.issues = token, complaints(g)
		}
	})
}

// newIssue is a complaint that came after the scale-up began. After a restart no complaint counts as new: an old one would
// fail a good scale-up, and a bad one times out.
func (c *Client) newIssue(group groupID, g *types.Nodegroup) (issue string) {
	c.with(group, func(m *memory, _ time.Time) {
		all := complaints(g)
		if i := slices.IndexFunc(all, func(text string) bool { return !slices.Contains(m.issues, text) }); i >= 0 && m.token != "" {
			issue = all[i]
		}
	})
	return issue
}

// noteFailure remembers a refusal. After another error it holds the group.
func (c *Client) noteFailure(group groupID, err error) error {
	if refuses(err) {
		return c.refuse(group, err)
	}
	c.hold(group)
	return err
}

func (c *Client) refuse(group groupID, err error) error {
	c.with(group, func(m *memory, now time.Time) {
		m.refusal, m.refusedUntil, m.until = err.Error(), now.Add(refusedFor), time.Time{}
	})
	return err
}

// hold delays changes of a group: EKS is busy with it, or may have begun a change. Repeated calls would be throttled.
func (c *Client) hold(group groupID) {
	c.with(group, func(m *memory, now time.Time) { m.heldUntil = now.Add(fresh) })
}

func (c *Client) refusal(group groupID) (text string) {
	c.with(group, func(m *memory, now time.Time) {
		if now.Before(m.refusedUntil) {
			text = m.refusal
		}
	})
	return text
}

// held reports whether the group must not be changed yet.
func (c *Client) held(group groupID) (held bool) {
	c.with(group, func(m *memory, now time.Time) { held = now.Before(m.heldUntil) })
	return held
}

// launching are the complaints that mean that no useful machine comes. Others say nothing about a scale-up.
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

// complaints are EKS's issues that keep machines from coming.
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

// failure is why an update failed.
func failure(u *types.Update) string {
	if u.Status == types.UpdateStatusCancelled {
		return "update " + aws.ToString(u.Id) + " was cancelled at EKS"
	}
	texts := make([]string, 0, len(u.Errors))
	for _, e := range u.Errors {
		texts = append(texts, sentence(string(e.ErrorCode), aws.ToString(e.ErrorMessage)))
	}
	if len(texts) == 0 {
		return "update " + aws.ToString(u.Id) + " failed at EKS, which gives no reason"
	}
	return strings.Join(texts, "; ")
}

// sentence is a bounded code and text of EKS.
func sentence(code, text string) string {
	const most = 300
	return strings.TrimSpace(code + ": " + excerpt.Of(text, most))
}
