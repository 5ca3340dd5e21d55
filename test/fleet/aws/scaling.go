package aws

import (
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/mica-gpu/mica/test/fleet/cloud"
)

// scaling is EC2 Auto Scaling.
type scaling struct {
	machines Cloud
	now      func() time.Time
}

// response is what all answers end with.
type response struct {
	RequestID string `xml:"ResponseMetadata>RequestId"`
}

type describeGroupsResponse struct {
	XMLName xml.Name `xml:"http://autoscaling.amazonaws.com/doc/2011-01-01/ DescribeAutoScalingGroupsResponse"`
	Result  struct {
		Groups    members[scalingGroup] `xml:"AutoScalingGroups"`
		NextToken string                `xml:"NextToken,omitempty"`
	} `xml:"DescribeAutoScalingGroupsResult"`
	response
}

type members[T any] struct {
	Members []T `xml:"member"`
}

type scalingGroup struct {
	Name             string            `xml:"AutoScalingGroupName"`
	MinSize          int               `xml:"MinSize"`
	MaxSize          int               `xml:"MaxSize"`
	DesiredCapacity  int               `xml:"DesiredCapacity"`
	Zones            members[string]   `xml:"AvailabilityZones"`
	LaunchTemplate   launchTemplate    `xml:"LaunchTemplate"`
	Instances        members[instance] `xml:"Instances"`
	Tags             members[tag]      `xml:"Tags"`
	HealthCheckType  string            `xml:"HealthCheckType"`
	DefaultCooldown  int               `xml:"DefaultCooldown"`
	HealthCheckGrace int               `xml:"HealthCheckGracePeriod"`
}

type launchTemplate struct {
	Name    string `xml:"LaunchTemplateName"`
	Version string `xml:"Version"`
}

type instance struct {
	ID             string         `xml:"InstanceId"`
	Type           string         `xml:"InstanceType"`
	Zone           string         `xml:"AvailabilityZone"`
	LifecycleState string         `xml:"LifecycleState"`
	HealthStatus   string         `xml:"HealthStatus"`
	LaunchTemplate launchTemplate `xml:"LaunchTemplate"`
	Protected      bool           `xml:"ProtectedFromScaleIn"`
}

type tag struct {
	ResourceID        string `xml:"ResourceId"`
	ResourceType      string `xml:"ResourceType"`
	Key               string `xml:"Key"`
	Value             string `xml:"Value"`
	PropagateAtLaunch bool   `xml:"PropagateAtLaunch"`
}

// describeGroups gives the groups by name, or those that have all the tags.
func (s scaling) describeGroups(_ context.Context, p *parameters) (any, error) {
	names := p.list("AutoScalingGroupNames.member")
	matches := p.filters()
	size, after := p.number("MaxRecords", 50), p.text("NextToken")
	if size < 1 || size > maxMembers {
		p.problems = append(p.problems, fmt.Errorf("MaxRecords is %d and has to be from 1 to %d", size, maxMembers))
	}
	if err := p.end(); err != nil {
		return nil, err
	}
	body := describeGroupsResponse{response: response{requestID}}
	for _, group := range s.groups() {
		if group.Name <= after || len(names) > 0 && !slices.Contains(names, group.Name) || !matches(group.Tags.Members) {
			continue
		}
		if page := body.Result.Groups.Members; len(page) == size {
			body.Result.NextToken = page[size-1].Name
			break
		}
		body.Result.Groups.Members = append(body.Result.Groups.Members, group)
	}
	return body, nil
}

// filters reads Filters.member.N, of which a group has to match each.
func (p *parameters) filters() func([]tag) bool {
	var all []func(tag) bool
	for n := 1; p.left.Has(fmt.Sprintf("Filters.member.%d.Name", n)) && n <= maxMembers; n++ {
		filter := fmt.Sprintf("Filters.member.%d", n)
		name, values := p.text(filter+".Name"), p.list(filter+".Values.member")
		key, ofKey := strings.CutPrefix(name, "tag:")
		switch {
		case ofKey:
			all = append(all, func(t tag) bool { return t.Key == key && slices.Contains(values, t.Value) })
		case name == "tag-key":
			all = append(all, func(t tag) bool { return slices.Contains(values, t.Key) })
		default:
			p.problems = append(p.problems, fmt.Errorf("the simulator does not know filter %q", name))
		}
	}
	return func(tags []tag) bool {
		return !slices.ContainsFunc(all, func(matches func(tag) bool) bool { return !slices.ContainsFunc(tags, matches) })
	}
}

// groups are the scaling groups, by name.
func (s scaling) groups() []scalingGroup {
	var all []scalingGroup
	for _, state := range s.machines.States() {
		all = append(all, s.group(state))
	}
	slices.SortFunc(all, func(a, b scalingGroup) int { return strings.Compare(a.Name, b.Name) })
	return all
}

// group is what EKS makes for a node group: a scaling group with its tags.
func (s scaling) group(state cloud.State) scalingGroup {
	template := launchTemplate{launchTemplateOf(state.Name), "1"}
	group := scalingGroup{
		Name: state.Scaling(), MinSize: state.Min, MaxSize: state.Max, DesiredCapacity: state.Desired,
		Zones: members[string]{[]string{cloud.Zone}}, LaunchTemplate: template,
		HealthCheckType: "EC2", DefaultCooldown: 300, HealthCheckGrace: 15,
	}
	for _, machine := range state.Instances {
		lifecycle := "InService"
		if machine.Node == "" {
			lifecycle = "Pending"
		}
		group.Instances.Members = append(group.Instances.Members, instance{
			ID: machine.ID, Type: state.InstanceType, Zone: cloud.Zone, LifecycleState: lifecycle, HealthStatus: "Healthy", LaunchTemplate: template,
		})
	}
	tags := map[string]string{
		"eks:cluster-name": Cluster, "eks:nodegroup-name": state.Name,
		"k8s.io/cluster-autoscaler/enabled": "true", "k8s.io/cluster-autoscaler/" + Cluster: "owned", "kubernetes.io/cluster/" + Cluster: "owned",
	}
	if unneeded := state.ScaleDownUnneeded.Duration; unneeded > 0 {
		tags["k8s.io/cluster-autoscaler/node-template/autoscaling-options/scaledownunneededtime"] = unneeded.String()
	}
	for key, value := range tags {
		group.Tags.Members = append(group.Tags.Members, tag{ResourceID: group.Name, ResourceType: "auto-scaling-group", Key: key, Value: value, PropagateAtLaunch: true})
	}
	slices.SortFunc(group.Tags.Members, func(a, b tag) int { return strings.Compare(a.Key, b.Key) })
	return group
}

type setDesiredResponse struct {
	XMLName xml.Name `xml:"http://autoscaling.amazonaws.com/doc/2011-01-01/ SetDesiredCapacityResponse"`
	response
}

func (s scaling) setDesired(_ context.Context, p *parameters) (any, error) {
	name, desired := p.need("AutoScalingGroupName"), p.number("DesiredCapacity", -1)
	p.flag("HonorCooldown") // there is none
	if err := p.end(); err != nil {
		return nil, err
	}
	state, err := s.find(name)
	if err != nil {
		return nil, err
	}
	switch err := s.machines.SetDesired(state.Name, desired); {
	case errors.Is(err, cloud.ErrSize) && desired > state.Max:
		return nil, refused("ValidationError", "New SetDesiredCapacity value %d is above max value %d for the AutoScalingGroup.", desired, state.Max)
	case errors.Is(err, cloud.ErrSize):
		return nil, refused("ValidationError", "New SetDesiredCapacity value %d is below min value %d for the AutoScalingGroup.", desired, state.Min)
	case err != nil:
		return nil, err
	}
	return setDesiredResponse{response: response{requestID}}, nil
}

func (s scaling) find(name string) (cloud.State, error) {
	states := s.machines.States()
	i := slices.IndexFunc(states, func(state cloud.State) bool { return state.Scaling() == name })
	if i < 0 {
		return cloud.State{}, refused("ValidationError", "AutoScalingGroup name not found - %s", name)
	}
	return states[i], nil
}

type describeActivitiesResponse struct {
	XMLName xml.Name `xml:"http://autoscaling.amazonaws.com/doc/2011-01-01/ DescribeScalingActivitiesResponse"`
	Result  struct {
		Activities members[activity] `xml:"Activities"`
	} `xml:"DescribeScalingActivitiesResult"`
	response
}

type activity struct {
	ID            string `xml:"ActivityId"`
	Group         string `xml:"AutoScalingGroupName"`
	Cause         string `xml:"Cause"`
	Description   string `xml:"Description"`
	StartTime     string `xml:"StartTime"`
	EndTime       string `xml:"EndTime,omitempty"`
	StatusCode    string `xml:"StatusCode"`
	StatusMessage string `xml:"StatusMessage,omitempty"`
	Progress      int    `xml:"Progress"`
}

// describeActivities gives the launches that have failed: EC2 Auto Scaling tries again for as
// long as the group is too small, so the last was just now.
func (s scaling) describeActivities(_ context.Context, p *parameters) (any, error) {
	name := p.need("AutoScalingGroupName")
	if err := p.end(); err != nil {
		return nil, err
	}
	state, err := s.find(name)
	if err != nil {
		return nil, err
	}
	body := describeActivitiesResponse{response: response{requestID}}
	for n := range state.Failed {
		at := s.now().UTC().Format(timeFormat)
		body.Result.Activities.Members = append(body.Result.Activities.Members, activity{
			ID: "launch-" + strconv.Itoa(n), Group: name, Progress: 100, StartTime: at, EndTime: at, StatusCode: "Failed",
			Cause:         "an instance was started in response to a difference between desired and actual capacity.",
			Description:   "Launching a new EC2 instance.  Status Reason: " + state.Failure.Message + " Launching EC2 instance failed.",
			StatusMessage: state.Failure.Code + ": " + state.Failure.Message,
		})
	}
	return body, nil
}

// timeFormat is that of the API, in UTC.
const timeFormat = "2006-01-02T15:04:05.000Z"

type terminateResponse struct {
	XMLName xml.Name `xml:"http://autoscaling.amazonaws.com/doc/2011-01-01/ TerminateInstanceInAutoScalingGroupResponse"`
	Result  struct {
		Activity activity `xml:"Activity"`
	} `xml:"TerminateInstanceInAutoScalingGroupResult"`
	response
}

func (s scaling) terminate(ctx context.Context, p *parameters) (any, error) {
	id, smaller := p.need("InstanceId"), p.flag("ShouldDecrementDesiredCapacity")
	if !smaller {
		p.problems = append(p.problems, errors.New("ShouldDecrementDesiredCapacity is not true: the simulator replaces no instances"))
	}
	if err := p.end(); err != nil {
		return nil, err
	}
	name := ""
	for _, group := range s.groups() {
		if slices.ContainsFunc(group.Instances.Members, func(i instance) bool { return i.ID == id }) {
			name = group.Name
		}
	}
	switch err := s.machines.Terminate(ctx, id); {
	case errors.Is(err, cloud.ErrNoInstance):
		return nil, refused("ValidationError", "Instance Id not found - No managed instance found for instance ID: %s", id)
	case err != nil:
		return nil, err
	}
	body := terminateResponse{response: response{requestID}}
	body.Result.Activity = activity{
		ID: "terminate-" + id, Group: name, StatusCode: "InProgress", StartTime: s.now().UTC().Format(timeFormat),
		Cause:       "instance " + id + " was taken out of service in response to a user request, shrinking the capacity.",
		Description: "Terminating EC2 instance: " + id,
	}
	return body, nil
}

type scalingError struct {
	XMLName xml.Name `xml:"http://autoscaling.amazonaws.com/doc/2011-01-01/ ErrorResponse"`
	Type    string   `xml:"Error>Type"`
	Code    string   `xml:"Error>Code"`
	Message string   `xml:"Error>Message"`
	ID      string   `xml:"RequestId"`
}

func writeScalingError(w http.ResponseWriter, r *refusal) {
	writeXML(w, r.status, scalingError{Type: "Sender", Code: r.code, Message: r.message, ID: requestID})
}
