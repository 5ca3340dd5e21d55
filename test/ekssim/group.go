package ekssim

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"time"

	"k8s.io/utils/ptr"
)

// Group is a managed node group.
type Group struct {
	Name              string
	Min, Max, Desired int
	InstanceTypes     []string
	CapacityType      string
	AMIType           string
	Labels            map[string]string
	Taints            []Taint
	// Issues of the group's health stay until a scale-up succeeds, as at EKS.
	Issues []Issue
	// NoCapacity lets every update succeed, and no machine start: the group becomes
	// DEGRADED with an issue AsgInstanceLaunchFailures of this text.
	NoCapacity string
	// FailedLaunches are activities of the Auto Scaling group that failed for NoCapacity.
	FailedLaunches int
	// Status is EKS's. Empty: ACTIVE. UPDATING without an update of this server is another client's update.
	Status string
	// SelfManaged is an Auto Scaling group of that name that EKS does not know.
	SelfManaged bool
	// ScalingGroup is the name of the Auto Scaling group. Empty: see ScalingGroup. LaunchTemplate and Tags are its own.
	ScalingGroup, LaunchTemplate string
	Tags                         map[string]string
	// Instances are lifecycle states by instance ID. The simulator starts none.
	Instances map[string]string
	// Zones of the Auto Scaling group. None: sim-1a. InstanceZones are those of instances outside of the first.
	Zones         []string
	InstanceZones map[string]string
	// Suspended are suspended processes of the Auto Scaling group, such as AZRebalance.
	Suspended []string
}

// Taint is a taint in EKS's words: the effect is NO_SCHEDULE, NO_EXECUTE or PREFER_NO_SCHEDULE.
type Taint struct {
	Key    string `json:"key"`
	Value  string `json:"value,omitempty"`
	Effect string `json:"effect"`
}

// Issue is a complaint about a node group's health.
type Issue struct {
	Code        string   `json:"code"`
	Message     string   `json:"message"`
	ResourceIDs []string `json:"resourceIds,omitempty"`
}

// UpdateError is why an update has failed.
type UpdateError struct {
	Code        string   `json:"errorCode"`
	Message     string   `json:"errorMessage"`
	ResourceIDs []string `json:"resourceIds,omitempty"`
}

// Statuses of groups and updates.
const (
	active   = "ACTIVE"
	updating = "UPDATING"
	degraded = "DEGRADED"

	inProgress = "InProgress"
	successful = "Successful"
	failed     = "Failed"
)

// codeNoCapacity is EKS's code if EC2 starts no machine for the group.
const codeNoCapacity = "AsgInstanceLaunchFailures"

// group is a Group with its updates.
type group struct {
	Group
	updates []*update
	// failNext are the errors of the next updates.
	failNext [][]UpdateError
}

// update is a change of a group in progress, or a past one.
type update struct {
	id, token, status string
	created           time.Time
	request           updateRequest
	errors            []UpdateError
}

// updateRequest is the part of UpdateNodegroupConfig's body that the simulator knows.
type updateRequest struct {
	Token   string         `json:"clientRequestToken"`
	Scaling *scalingChange `json:"scalingConfig"`
}

type scalingChange struct {
	Min     *int `json:"minSize"`
	Max     *int `json:"maxSize"`
	Desired *int `json:"desiredSize"`
}

func newGroup(g Group) *group {
	g.InstanceTypes = slices.Clone(g.InstanceTypes)
	g.Labels = maps.Clone(g.Labels)
	g.Taints = slices.Clone(g.Taints)
	g.Issues = slices.Clone(g.Issues)
	g.Instances = maps.Clone(g.Instances)
	if g.Instances == nil {
		g.Instances = map[string]string{}
	}
	if g.Status == "" {
		g.Status = active
	}
	return &group{Group: g}
}

// running is the update in progress, or nil.
func (g *group) running() *update {
	for _, u := range g.updates {
		if u.status == inProgress {
			return u
		}
	}
	return nil
}

// begin starts an update, or finds the one that this request started before.
func (g *group) begin(r updateRequest, now time.Time) (*update, *fault) {
	for _, u := range g.updates {
		if r.Token == "" || u.token != r.Token {
			continue
		}
		if !reflect.DeepEqual(u.request, r) {
			return nil, invalidParameter("the client request token %s was used with other parameters", r.Token)
		}
		return u, nil
	}
	if g.running() != nil || g.Status == updating {
		return nil, &fault{status: 409, code: "ResourceInUseException", message: "Nodegroup cannot be updated as it is currently not in Active State"}
	}
	if f := g.check(r); f != nil {
		return nil, f
	}
	u := &update{
		id:      fmt.Sprintf("00000000-0000-4000-8000-%012d", len(g.updates)+1),
		token:   r.Token,
		status:  inProgress,
		created: now,
		request: r,
	}
	g.updates = append(g.updates, u)
	return u, nil
}

// check refuses what EKS refuses.
func (g *group) check(r updateRequest) *fault {
	if r.Scaling == nil {
		return invalidParameter("No changes needed for the node group config provided")
	}
	least, most, desired := g.scaled(r.Scaling)
	switch {
	case least < 0 || most < 1:
		return invalidParameter("maxSize must be at least 1, and minSize at least 0")
	case least > desired:
		return invalidParameter("Minimum capacity %d can't be greater than desired size %d", least, desired)
	case desired > most:
		return invalidParameter("desired capacity %d can't be greater than max size %d", desired, most)
	}
	return nil
}

// scaled are the sizes after a change.
func (g *group) scaled(c *scalingChange) (least, most, desired int) {
	return ptr.Deref(c.Min, g.Min), ptr.Deref(c.Max, g.Max), ptr.Deref(c.Desired, g.Desired)
}

// settle ends an update that is due. It reports whether machines have to start or end.
func (g *group) settle(now time.Time, takes time.Duration) bool {
	u := g.running()
	if u == nil || now.Sub(u.created) < takes {
		return false
	}
	if len(g.failNext) > 0 {
		u.status, u.errors = failed, g.failNext[0]
		g.failNext = g.failNext[1:]
		return false
	}
	u.status = successful
	before := g.Desired
	g.Min, g.Max, g.Desired = g.scaled(u.request.Scaling)
	if g.Desired > before {
		if g.NoCapacity != "" {
			g.Status = degraded
			g.Issues = []Issue{{Code: codeNoCapacity, Message: g.NoCapacity, ResourceIDs: []string{"eks-" + g.Name}}}
			return false
		}
		g.Status, g.Issues = active, nil
	}
	return g.Desired != before
}
