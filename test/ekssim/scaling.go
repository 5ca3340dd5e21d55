package ekssim

import (
	"cmp"
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
)

// EC2 Auto Scaling, as of its API reference, version 2011-01-01.

// ScalingGroup is the default name of the Auto Scaling group behind a managed node group.
func ScalingGroup(nodegroup string) string { return "eks-" + nodegroup + "-0" }

func (g *group) scalingName() string {
	if g.SelfManaged {
		return g.Name
	}
	return cmp.Or(g.ScalingGroup, ScalingGroup(g.Name))
}

// Lifecycle states of instances.
const (
	inService   = "InService"
	terminating = "Terminating"
)

func (s *Server) scaling() {
	s.mux.Handle("POST /{$}", Query("autoscaling", "2011-01-01", scalingError, map[string]Action{
		"DescribeAutoScalingGroups":           s.faulty("DescribeAutoScalingGroups", s.describeScaling),
		"DescribeScalingActivities":           s.faulty("DescribeScalingActivities", s.describeActivities),
		"SetDesiredCapacity":                  s.faulty("SetDesiredCapacity", s.setCapacity),
		"TerminateInstanceInAutoScalingGroup": s.faulty("TerminateInstanceInAutoScalingGroup", s.terminate),
	}))
}

// faulty adds injected faults to an action, and records its calls.
func (s *Server) faulty(operation string, act Action) Action {
	return func(ctx context.Context, p *Parameters) (any, error) {
		of := cmp.Or(p.left.Get("AutoScalingGroupName"), p.left.Get("AutoScalingGroupNames.member.1"), p.left.Get("InstanceId"))
		injected := s.take(operation)
		if !wait(ctx, injected.Latency) {
			return nil, ctx.Err()
		}
		if injected.Status != 0 {
			s.note(operation, of, injected.Status)
			return nil, &Refusal{injected.Status, injected.Code, injected.Message}
		}
		body, err := act(ctx, p)
		status := http.StatusOK
		var refusal *Refusal
		if errors.As(err, &refusal) {
			status = refusal.Status
		}
		if injected.Hangup {
			s.note(operation, of, 0)
			panic(http.ErrAbortHandler) // net/http's way to close the connection without an answer
		}
		s.note(operation, of, status)
		return body, err
	}
}

// response ends all answers.
type response struct {
	RequestID string `xml:"ResponseMetadata>RequestId"`
}

type members[T any] struct {
	Members []T `xml:"member"`
}

type describeGroupsResponse struct {
	XMLName xml.Name `xml:"http://autoscaling.amazonaws.com/doc/2011-01-01/ DescribeAutoScalingGroupsResponse"`
	Result  struct {
		Groups    members[xmlGroup] `xml:"AutoScalingGroups"`
		NextToken string            `xml:"NextToken,omitempty"`
	} `xml:"DescribeAutoScalingGroupsResult"`
	response
}

type xmlGroup struct {
	Name             string               `xml:"AutoScalingGroupName"`
	MinSize          int                  `xml:"MinSize"`
	MaxSize          int                  `xml:"MaxSize"`
	DesiredCapacity  int                  `xml:"DesiredCapacity"`
	Zones            members[string]      `xml:"AvailabilityZones"`
	LaunchTemplate   *launchTemplate      `xml:"LaunchTemplate"`
	Instances        members[xmlInstance] `xml:"Instances"`
	Suspended        *members[xmlProcess] `xml:"SuspendedProcesses"`
	Tags             members[xmlTag]      `xml:"Tags"`
	HealthCheckType  string               `xml:"HealthCheckType"`
	DefaultCooldown  int                  `xml:"DefaultCooldown"`
	HealthCheckGrace int                  `xml:"HealthCheckGracePeriod"`
}

type launchTemplate struct {
	Name    string `xml:"LaunchTemplateName"`
	Version string `xml:"Version"`
}

type xmlInstance struct {
	ID             string          `xml:"InstanceId"`
	Type           string          `xml:"InstanceType"`
	Zone           string          `xml:"AvailabilityZone"`
	LifecycleState string          `xml:"LifecycleState"`
	HealthStatus   string          `xml:"HealthStatus"`
	LaunchTemplate *launchTemplate `xml:"LaunchTemplate"`
	Protected      bool            `xml:"ProtectedFromScaleIn"`
}

type xmlProcess struct {
	Name string `xml:"ProcessName"`
}

type xmlTag struct {
	ResourceID        string `xml:"ResourceId"`
	ResourceType      string `xml:"ResourceType"`
	Key               string `xml:"Key"`
	Value             string `xml:"Value"`
	PropagateAtLaunch bool   `xml:"PropagateAtLaunch"`
}

// describeScaling lists groups by name, and by their tags.
func (s *Server) describeScaling(_ context.Context, p *Parameters) (any, error) {
	names := p.List("AutoScalingGroupNames.member")
	matches := p.filters()
	size, after := p.number("MaxRecords", 50), p.Text("NextToken")
	if size < 1 || size > maxMembers {
		p.errors = append(p.errors, fmt.Errorf("MaxRecords is %d and has to be from 1 to %d", size, maxMembers))
	}
	if err := p.End(); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var groups []xmlGroup
	for _, g := range s.groups {
		groups = append(groups, g.xml())
	}
	slices.SortFunc(groups, func(a, b xmlGroup) int { return strings.Compare(a.Name, b.Name) })
	body := describeGroupsResponse{response: response{RequestID}}
	for _, group := range groups {
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

// filters reads Filters.member.N. A group has to match each.
func (p *Parameters) filters() func([]xmlTag) bool {
	var all []func(xmlTag) bool
	for n := 1; p.left.Has(fmt.Sprintf("Filters.member.%d.Name", n)) && n <= maxMembers; n++ {
		filter := fmt.Sprintf("Filters.member.%d", n)
		name, values := p.Text(filter+".Name"), p.List(filter+".Values.member")
		key, byKey := strings.CutPrefix(name, "tag:")
		switch {
		case byKey:
			all = append(all, func(t xmlTag) bool { return t.Key == key && slices.Contains(values, t.Value) })
		case name == "tag-key":
			all = append(all, func(t xmlTag) bool { return slices.Contains(values, t.Key) })
		default:
			p.errors = append(p.errors, fmt.Errorf("the simulator does not know filter %q", name))
		}
	}
	return func(tags []xmlTag) bool {
		return !slices.ContainsFunc(all, func(matches func(xmlTag) bool) bool { return !slices.ContainsFunc(tags, matches) })
	}
}

func (g *group) xml() xmlGroup {
	x := xmlGroup{
		Name: g.scalingName(), MinSize: g.Min, MaxSize: g.Max, DesiredCapacity: g.Desired, Zones: members[string]{g.Zones},
		HealthCheckType: "EC2", DefaultCooldown: 300, HealthCheckGrace: 15,
	}
	if len(g.Zones) == 0 {
		x.Zones.Members = []string{"sim-1a"}
	}
	if g.LaunchTemplate != "" {
		x.LaunchTemplate = &launchTemplate{g.LaunchTemplate, "1"}
	}
	for _, id := range slices.Sorted(maps.Keys(g.Instances)) {
		i := xmlInstance{
			ID: id, Zone: cmp.Or(g.InstanceZones[id], x.Zones.Members[0]), LifecycleState: g.Instances[id], HealthStatus: "Healthy", LaunchTemplate: x.LaunchTemplate,
		}
		if len(g.InstanceTypes) > 0 {
			i.Type = g.InstanceTypes[0]
		}
		x.Instances.Members = append(x.Instances.Members, i)
	}
	for _, process := range g.Suspended {
		if x.Suspended == nil {
			x.Suspended = &members[xmlProcess]{}
		}
		x.Suspended.Members = append(x.Suspended.Members, xmlProcess{process})
	}
	for _, key := range slices.Sorted(maps.Keys(g.Tags)) {
		x.Tags.Members = append(x.Tags.Members, xmlTag{ResourceID: x.Name, ResourceType: "auto-scaling-group", Key: key, Value: g.Tags[key], PropagateAtLaunch: true})
	}
	return x
}

type setDesiredResponse struct {
	XMLName xml.Name `xml:"http://autoscaling.amazonaws.com/doc/2011-01-01/ SetDesiredCapacityResponse"`
	response
}

func (s *Server) setCapacity(_ context.Context, p *Parameters) (any, error) {
	name, desired := p.Need("AutoScalingGroupName"), p.number("DesiredCapacity", -1)
	p.flag("HonorCooldown") // there is none
	if err := p.End(); err != nil {
		return nil, err
	}
	err := s.scale(func() (string, int, error) {
		g, err := s.scaled(name)
		switch {
		case err != nil:
			return "", 0, err
		case desired > g.Max:
			return "", 0, Refused("ValidationError", "New SetDesiredCapacity value %d is above max value %d for the AutoScalingGroup.", desired, g.Max)
		case desired < g.Min:
			return "", 0, Refused("ValidationError", "New SetDesiredCapacity value %d is below min value %d for the AutoScalingGroup.", desired, g.Min)
		}
		return g.Name, desired, nil
	})
	return setDesiredResponse{response: response{RequestID}}, err
}

// scale gives a group the size that choose returns, and calls the hook.
func (s *Server) scale(choose func() (group string, to int, err error)) error {
	s.resized.Lock()
	defer s.resized.Unlock()
	s.mu.Lock()
	name, to, err := choose()
	if err != nil {
		s.mu.Unlock()
		return err
	}
	from := s.groups[name].Desired
	s.groups[name].Desired = to
	s.mu.Unlock()
	if from != to && s.options.Resized != nil {
		s.options.Resized(name, from, to)
	}
	return nil
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

// timeFormat is that of the API, in UTC.
const timeFormat = "2006-01-02T15:04:05.000Z"

// describeActivities lists failed launches. EC2 Auto Scaling repeats them while the group is too small, so the last was
// just now.
func (s *Server) describeActivities(_ context.Context, p *Parameters) (any, error) {
	name := p.Need("AutoScalingGroupName")
	if err := p.End(); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	g, err := s.scaled(name)
	if err != nil {
		return nil, err
	}
	body := describeActivitiesResponse{response: response{RequestID}}
	for n := range g.FailedLaunches {
		at := s.options.Now().UTC().Format(timeFormat)
		body.Result.Activities.Members = append(body.Result.Activities.Members, activity{
			ID: "launch-" + strconv.Itoa(n), Group: name, Progress: 100, StartTime: at, EndTime: at, StatusCode: "Failed",
			Cause:         "an instance was started in response to a difference between desired and actual capacity.",
			Description:   "Launching a new EC2 instance.  Status Reason: " + g.NoCapacity + " Launching EC2 instance failed.",
			StatusMessage: "InsufficientInstanceCapacity: " + g.NoCapacity,
		})
	}
	return body, nil
}

type terminateResponse struct {
	XMLName xml.Name `xml:"http://autoscaling.amazonaws.com/doc/2011-01-01/ TerminateInstanceInAutoScalingGroupResponse"`
	Result  struct {
		Activity activity `xml:"Activity"`
	} `xml:"TerminateInstanceInAutoScalingGroupResult"`
	response
}

// terminate lowers the size at each call, also for an instance that terminates already.
func (s *Server) terminate(ctx context.Context, p *Parameters) (any, error) {
	id := p.Need("InstanceId")
	if !p.flag("ShouldDecrementDesiredCapacity") {
		p.errors = append(p.errors, errors.New("ShouldDecrementDesiredCapacity is not true: the simulator replaces no instances"))
	}
	if err := p.End(); err != nil {
		return nil, err
	}
	scaling := ""
	err := s.scale(func() (string, int, error) {
		for _, g := range s.groups {
			if _, found := g.Instances[id]; !found {
				continue
			}
			if g.Desired <= g.Min {
				return "", 0, Refused("ValidationError", "Currently, desiredSize equals minSize (%d). Terminating instance without replacement will violate group's min size constraint.", g.Min)
			}
			scaling = g.scalingName()
			if s.options.Terminate != nil {
				return g.Name, g.Desired, s.options.Terminate(ctx, id)
			}
			g.Instances[id] = terminating
			return g.Name, g.Desired - 1, nil
		}
		return "", 0, Refused("ValidationError", "Instance Id not found - No managed instance found for instance ID: %s", id)
	})
	body := terminateResponse{response: response{RequestID}}
	body.Result.Activity = activity{
		ID: "terminate-" + id, Group: scaling, StatusCode: "InProgress", StartTime: s.options.Now().UTC().Format(timeFormat),
		Cause:       "instance " + id + " was taken out of service in response to a user request, shrinking the capacity.",
		Description: "Terminating EC2 instance: " + id,
	}
	return body, err
}

// scaled finds a group by its name at EC2 Auto Scaling. The caller holds the lock.
func (s *Server) scaled(name string) (*group, error) {
	for _, g := range s.groups {
		if g.scalingName() == name {
			return g, nil
		}
	}
	return nil, Refused("ValidationError", "AutoScalingGroup name not found - AutoScalingGroup %s not found", name)
}

func scalingError(r *Refusal) any {
	return struct {
		XMLName xml.Name `xml:"http://autoscaling.amazonaws.com/doc/2011-01-01/ ErrorResponse"`
		Type    string   `xml:"Error>Type"`
		Code    string   `xml:"Error>Code"`
		Message string   `xml:"Error>Message"`
		ID      string   `xml:"RequestId"`
	}{Type: "Sender", Code: r.Code, Message: r.Message, ID: RequestID}
}
