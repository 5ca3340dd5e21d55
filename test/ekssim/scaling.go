package ekssim

import (
	"cmp"
	"encoding/xml"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
)

// EC2 Auto Scaling, which has its own wire format: a form in, XML out. Source: its API reference,
// version 2011-01-01.

// ScalingGroup is the name of the Auto Scaling group behind a managed node group.
func ScalingGroup(nodegroup string) string { return "eks-" + nodegroup + "-0" }

// scalingName is the name of a group at EC2 Auto Scaling.
func (g *group) scalingName() string {
	if g.SelfManaged {
		return g.Name
	}
	return ScalingGroup(g.Name)
}

// Lifecycle states of instances.
const (
	inService   = "InService"
	terminating = "Terminating"
)

// scaling adds the operations of EC2 Auto Scaling.
func (s *Server) scaling() {
	operations := map[string]func(*http.Request) (any, *desiredChange, *fault){
		"DescribeAutoScalingGroups":           s.describeScaling,
		"SetDesiredCapacity":                  s.setCapacity,
		"TerminateInstanceInAutoScalingGroup": s.terminate,
	}
	s.mux.HandleFunc("POST /{$}", func(w http.ResponseWriter, r *http.Request) {
		operation := r.FormValue("Action")
		h := operations[operation]
		injected, _ := s.take(operation)
		if !wait(r, injected.Latency) {
			return
		}
		var body any
		f := &fault{status: http.StatusBadRequest, code: "InvalidAction", message: "The action " + operation + " is not valid for this endpoint."}
		switch {
		case injected.Status != 0:
			f = &fault{status: injected.Status, code: injected.Code, message: injected.Message}
		case !signed("autoscaling", r):
			f = &fault{status: http.StatusForbidden, code: "MissingAuthenticationToken", message: "Missing Authentication Token"}
		case h != nil:
			body, f = s.callScaling(r, h)
		}
		if injected.Hangup {
			s.note(operation, scalingOf(r), 0)
			panic(http.ErrAbortHandler) // net/http's way to close the connection without an answer
		}
		answerXML(w, operation, body, f)
		s.note(operation, scalingOf(r), statusOf(f))
	})
}

// callScaling tells the hook, too.
func (s *Server) callScaling(r *http.Request, h func(*http.Request) (any, *desiredChange, *fault)) (any, *fault) {
	s.resized.Lock()
	defer s.resized.Unlock()
	body, change, f := h(r)
	if change != nil && s.options.Resized != nil {
		s.options.Resized(change.group, change.from, change.to)
	}
	return body, f
}

// scalingOf is the group or instance that a request names.
func scalingOf(r *http.Request) string {
	for _, key := range []string{"AutoScalingGroupName", "AutoScalingGroupNames.member.1", "InstanceId"} {
		if name := r.FormValue(key); name != "" {
			return name
		}
	}
	return ""
}

func statusOf(f *fault) int {
	if f == nil {
		return http.StatusOK
	}
	return f.status
}

type xmlGroup struct {
	Name      string        `xml:"AutoScalingGroupName"`
	Min       int           `xml:"MinSize"`
	Max       int           `xml:"MaxSize"`
	Desired   int           `xml:"DesiredCapacity"`
	Zones     []string      `xml:"AvailabilityZones>member"`
	Instances []xmlInstance `xml:"Instances>member"`
	Suspended []xmlProcess  `xml:"SuspendedProcesses>member"`
}

type xmlProcess struct {
	Name string `xml:"ProcessName"`
}

type xmlInstance struct {
	ID        string `xml:"InstanceId"`
	Zone      string `xml:"AvailabilityZone"`
	Lifecycle string `xml:"LifecycleState"`
	Health    string `xml:"HealthStatus"`
}

func (s *Server) describeScaling(r *http.Request) (any, *desiredChange, *fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var result struct {
		Groups []xmlGroup `xml:"AutoScalingGroups>member"`
	}
	for i := 1; ; i++ {
		name := r.FormValue(fmt.Sprintf("AutoScalingGroupNames.member.%d", i))
		if name == "" {
			return result, nil, nil
		}
		if g := s.scaled(name); g != nil {
			result.Groups = append(result.Groups, g.xml())
		}
	}
}

func (g *group) xml() xmlGroup {
	x := xmlGroup{Name: g.scalingName(), Min: g.Min, Max: g.Max, Desired: g.Desired, Zones: g.Zones}
	if len(x.Zones) == 0 {
		x.Zones = []string{"sim-1a"}
	}
	for id, lifecycle := range g.Instances {
		x.Instances = append(x.Instances, xmlInstance{ID: id, Zone: cmp.Or(g.InstanceZones[id], x.Zones[0]), Lifecycle: lifecycle, Health: "Healthy"})
	}
	for _, process := range g.Suspended {
		x.Suspended = append(x.Suspended, xmlProcess{process})
	}
	slices.SortFunc(x.Instances, func(a, b xmlInstance) int { return strings.Compare(a.ID, b.ID) })
	return x
}

func (s *Server) setCapacity(r *http.Request) (any, *desiredChange, *fault) {
	desired, err := strconv.Atoi(r.FormValue("DesiredCapacity"))
	if err != nil {
		return nil, nil, invalid("DesiredCapacity is not a number")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	g := s.scaled(r.FormValue("AutoScalingGroupName"))
	switch {
	case g == nil:
		return nil, nil, invalid("AutoScalingGroup name not found - AutoScalingGroup %s not found", r.FormValue("AutoScalingGroupName"))
	case desired > g.Max:
		return nil, nil, invalid("New SetDesiredCapacity value %d is above max value %d for the AutoScalingGroup.", desired, g.Max)
	case desired < g.Min:
		return nil, nil, invalid("New SetDesiredCapacity value %d is below min value %d for the AutoScalingGroup.", desired, g.Min)
	}
	return struct{}{}, g.resize(desired), nil
}

// terminate counts an instance that is asked for twice twice, which nobody should rely on.
func (s *Server) terminate(r *http.Request) (any, *desiredChange, *fault) {
	id, decrement := r.FormValue("InstanceId"), r.FormValue("ShouldDecrementDesiredCapacity") == "true"
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, name := range s.names() {
		g := s.groups[name]
		if _, found := g.Instances[id]; !found {
			continue
		}
		if decrement && g.Desired <= g.Min {
			return nil, nil, invalid("Currently, desiredSize equals minSize (%d). Terminating instance without replacement will violate group's min size constraint.", g.Min)
		}
		g.Instances[id] = terminating
		if !decrement {
			return struct{}{}, nil, nil
		}
		return struct{}{}, g.resize(g.Desired - 1), nil
	}
	return nil, nil, invalid("Instance Id not found - No managed instance found for instance ID: %s", id)
}

func (g *group) resize(to int) *desiredChange {
	before := g.Desired
	g.Desired = to
	if before == to {
		return nil
	}
	return &desiredChange{group: g.Name, from: before, to: to}
}

// scaled finds a group by its name at EC2 Auto Scaling; the lock is held.
func (s *Server) scaled(name string) *group {
	for _, g := range s.groups {
		if g.scalingName() == name {
			return g
		}
	}
	return nil
}

func invalid(format string, args ...any) *fault {
	return &fault{status: http.StatusBadRequest, code: "ValidationError", message: fmt.Sprintf(format, args...)}
}

// answerXML writes what the query protocol calls an operation's response, or error.
func answerXML(w http.ResponseWriter, operation string, result any, f *fault) {
	w.Header().Set("Content-Type", "text/xml")
	e := xml.NewEncoder(w)
	tag := func(name string) xml.StartElement { return xml.StartElement{Name: xml.Name{Local: name}} }
	if f != nil {
		w.WriteHeader(f.status)
		_ = e.EncodeElement(struct {
			Code    string `xml:"Error>Code"`
			Message string `xml:"Error>Message"`
		}{f.code, f.message}, tag("ErrorResponse"))
		return
	}
	outer := tag(operation + "Response")
	_ = e.EncodeToken(outer)
	_ = e.EncodeElement(result, tag(operation+"Result"))
	_ = e.EncodeToken(outer.End())
	_ = e.Flush()
}
