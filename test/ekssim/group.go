package ekssim

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"
)

// Group is a managed node group. What Add is given is copied.
type Group struct {
	Name              string
	Min, Max, Desired int
	InstanceTypes     []string
	CapacityType      string
	AMIType           string
	Labels            map[string]string
	Taints            []Taint
	// WarmPool is nil where the group has none.
	WarmPool *WarmPool
	// Issues are what EKS says of the group's health. As at EKS, they stay until a
	// scale-up succeeds, even when the group is made smaller.
	Issues []Issue
	// NoCapacity lets every update succeed, and no machine start: the group becomes
	// DEGRADED with an issue AsgInstanceLaunchFailures of this text.
	NoCapacity string
	// Status is ACTIVE where it is empty; UPDATING, unless an update runs, is somebody else's
	// update, which ends when the status changes.
	Status string
	// SelfManaged is an Auto Scaling group of that name that EKS does not know.
	SelfManaged bool
	// Instances are lifecycle states by instance ID. The simulator starts none by itself.
	Instances map[string]string
	// Zones of the Auto Scaling group; none is "sim-1a". InstanceZones has those of instances that are in another
	// than the first.
	Zones         []string
	InstanceZones map[string]string
	// Suspended are processes of the Auto Scaling group that are suspended, such as AZRebalance.
	Suspended []string
}

// Taint is a taint in EKS's words: the effect is NO_SCHEDULE, NO_EXECUTE or PREFER_NO_SCHEDULE.
type Taint struct {
	Key    string `json:"key"`
	Value  string `json:"value,omitempty"`
	Effect string `json:"effect"`
}

// WarmPool is a pool of stopped machines.
type WarmPool struct {
	Enabled   bool   `json:"enabled"`
	MinSize   int    `json:"minSize"`
	PoolState string `json:"poolState,omitempty"`
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

// codeNoCapacity is what EKS calls it when EC2 starts no machine for the group.
const codeNoCapacity = "AsgInstanceLaunchFailures"

// group is a Group with its updates.
type group struct {
	Group
	updates []*update
	// failNext are the errors with which the next updates end, the first first.
	failNext [][]UpdateError
}

// update is a change of a group, which takes a while.
type update struct {
	id, token, status string
	created           time.Time
	request           updateRequest
	errors            []UpdateError
}

// updateRequest is the body of UpdateNodegroupConfig, of which the simulator knows two parts.
type updateRequest struct {
	Token    string         `json:"clientRequestToken"`
	Scaling  *scalingChange `json:"scalingConfig"`
	WarmPool *warmChange    `json:"warmPoolConfig"`
}

type scalingChange struct {
	Min     *int `json:"minSize"`
	Max     *int `json:"maxSize"`
	Desired *int `json:"desiredSize"`
}

type warmChange struct {
	Enabled *bool   `json:"enabled"`
	MinSize *int    `json:"minSize"`
	State   *string `json:"poolState"`
}

// desiredChange is what the hook is told.
type desiredChange struct {
	group    string
	from, to int
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
	if g.WarmPool != nil {
		pool := *g.WarmPool
		g.WarmPool = &pool
	}
	if g.Status == "" {
		g.Status = active
	}
	return &group{Group: g}
}

// running is the update in progress, nil where there is none.
func (g *group) running() *update {
	for _, u := range g.updates {
		if u.status == inProgress {
			return u
		}
	}
	return nil
}

// begin starts an update, or finds the one that this request has started before.
func (g *group) begin(r updateRequest, now time.Time) (*update, *fault) {
	for _, u := range g.updates {
		if r.Token == "" || u.token != r.Token {
			continue
		}
		if !sameRequest(u.request, r) {
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
	if r.Scaling == nil && r.WarmPool == nil {
		return invalidParameter("No changes needed for the node group config provided")
	}
	if r.WarmPool != nil && r.WarmPool.MinSize != nil && *r.WarmPool.MinSize < 0 {
		return invalidParameter("minSize of a warm pool can't be less than 0")
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
	least, most, desired = g.Min, g.Max, g.Desired
	if c == nil {
		return least, most, desired
	}
	set(&least, c.Min)
	set(&most, c.Max)
	set(&desired, c.Desired)
	return least, most, desired
}

func set[T any](to *T, from *T) {
	if from != nil {
		*to = *from
	}
}

// settle ends updates that have run for as long as updates take, and tells what became of
// the desired size: nil where nothing did.
func (g *group) settle(now time.Time, takes time.Duration) *desiredChange {
	u := g.running()
	if u == nil || now.Sub(u.created) < takes {
		return nil
	}
	if len(g.failNext) > 0 {
		u.status, u.errors = failed, g.failNext[0]
		g.failNext = g.failNext[1:]
		return nil
	}
	u.status = successful
	before := g.Desired
	g.Min, g.Max, g.Desired = g.scaled(u.request.Scaling)
	g.warm(u.request.WarmPool)
	if g.NoCapacity != "" && g.Desired > before {
		g.Status = degraded
		g.Issues = []Issue{{Code: codeNoCapacity, Message: g.NoCapacity, ResourceIDs: []string{"eks-" + g.Name}}}
		return nil
	}
	if g.Desired == before {
		return nil
	}
	if g.Desired > before {
		g.Status, g.Issues = active, nil
	}
	return &desiredChange{group: g.Name, from: before, to: g.Desired}
}

func (g *group) warm(c *warmChange) {
	if c == nil {
		return
	}
	if g.WarmPool == nil {
		g.WarmPool = &WarmPool{PoolState: "STOPPED"}
	}
	set(&g.WarmPool.Enabled, c.Enabled)
	set(&g.WarmPool.MinSize, c.MinSize)
	set(&g.WarmPool.PoolState, c.State)
}

// params are an update's, as EKS lists them.
func (u *update) params() []map[string]string {
	params := []map[string]string{}
	add := func(kind string, value *int) {
		if value != nil {
			params = append(params, map[string]string{"type": kind, "value": strconv.Itoa(*value)})
		}
	}
	if c := u.request.Scaling; c != nil {
		add("MinSize", c.Min)
		add("MaxSize", c.Max)
		add("DesiredSize", c.Desired)
	}
	return params
}
