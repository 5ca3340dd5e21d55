package scaleout

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/mica-gpu/mica/pkg/devices"
	"github.com/mica-gpu/mica/pkg/scaleout/fit"
)

// Planner plans a snapshot once, and then answers questions about the plan. It is not safe for concurrent use.
type Planner struct {
	Snapshot Snapshot

	kinds   []*kind
	samples []*sample
	// start is the plan before a pod is placed, afterPods the plan with the pods.
	start, afterPods *plan
	// countSteps bounds the work of counting supplies.
	countSteps int

	decided  bool
	decision Decision
	err      error
}

// NewPlanner returns a planner for the snapshot. It plans when it is first asked.
func NewPlanner(snapshot Snapshot) *Planner {
	if snapshot.Selectors == nil {
		snapshot.Selectors = devices.NewSelectors()
	}
	return &Planner{Snapshot: snapshot, countSteps: countSteps}
}

// Decide returns the decision without the supplies. The first call plans, and later ones return the same decision or
// error. The only error is that of the context.
//
// Pods are placed, the most urgent and then the hardest first, on nodes that exist, then on those that are coming, then
// on those that the plan has opened for earlier pods. Only then does a group grow: the one that is cheapest per pod of
// the kind that its node takes. A pod that could preempt others waits for room like any other: the plan does not count
// what preemption would free.
func (p *Planner) Decide(ctx context.Context) (Decision, error) {
	if !p.decided {
		p.decision, p.err = p.decide(ctx)
		p.decided = true
	}
	return p.decision, p.err
}

func (p *Planner) decide(ctx context.Context) (Decision, error) {
	facts, kinds, reserved := newPlanner(p.Snapshot)
	p.kinds, p.samples, p.start = kinds, facts.samples, facts.start(p.Snapshot)
	made := &placing{plan: p.start}
	if err := made.pods(ctx, kinds); err != nil {
		return Decision{}, err
	}
	p.afterPods = made.plan.withClaims(kinds)
	headroom, err := made.headroom(ctx, reserved)
	if err != nil {
		return Decision{}, err
	}
	end := made.plan.withClaims(kinds)
	reported, err := end.report(ctx, kinds)
	if err != nil {
		return Decision{}, err
	}
	return Decision{Growth: made.growth(), Kinds: reported, Headroom: headroom, Budgets: end.budgeted(kinds)}, nil
}

// planner is what all plans of a snapshot share: facts that were read from it, and caches.
type planner struct {
	cluster *fit.Cluster
	claims  claims
	// groups are sorted by name.
	groups []*group
	// live hosts are sorted by name. coming hosts are grouped; the key nil is for hosts without a group.
	live   []*host
	coming map[*group][]*host
	// budgets are sorted by name.
	budgets []*budget
	samples []*sample
	// waiting has the kinds of pending pods.
	waiting map[string]bool

	fillings map[emptied]*filling
	// rests are the free units of machines.
	rests map[*fit.Machine]int
}

// newPlanner first reads all that is to be placed, and then the nodes: package fit distinguishes nodes only by what
// pods ask for.
func newPlanner(s Snapshot) (*planner, []*kind, []reserve) {
	p := &planner{
		cluster:  fit.New(fit.Facts{Classes: s.Classes, Claims: s.Claims, Slices: s.Slices, Pods: s.pods(), Selectors: s.Selectors}),
		claims:   newClaims(s),
		fillings: map[emptied]*filling{},
		rests:    map[*fit.Machine]int{},
		coming:   map[*group][]*host{},
		budgets:  readBudgets(s.Budgets),
		waiting:  map[string]bool{},
	}
	kinds := p.kinds(s)
	for _, k := range kinds {
		p.waiting[k.id] = true
	}
	reserved := p.reserves(s.Headroom)
	p.samples = p.readSamples(s.Replicas)
	p.groups = p.readGroups(s.Groups)
	p.readHosts(s)
	return p, kinds, reserved
}

// pods are all pods of the snapshot.
func (s *Snapshot) pods() []*corev1.Pod {
	pods := slices.Clone(s.Pending)
	for _, node := range s.Nodes {
		pods = append(pods, node.Pods...)
	}
	for _, group := range s.Groups {
		pods = append(pods, group.Pods...)
	}
	for i := range s.Replicas {
		if pod := s.Replicas[i].Pod; pod != nil {
			pods = append(pods, pod)
		}
		for _, member := range s.Replicas[i].Gang {
			pods = append(pods, member.Pod)
		}
	}
	return pods
}

// start is the plan before any pod is placed.
func (p *planner) start(s Snapshot) *plan {
	made := &plan{planner: p, shared: p.cluster.Shared(), opened: make([]int, len(p.groups)), spent: make([]spent, len(p.budgets))}
	hosts := slices.Clone(p.live)
	for _, coming := range p.coming {
		hosts = append(hosts, coming...)
		made.idle += len(coming)
	}
	machines := make([]*fit.Machine, len(hosts))
	for _, h := range hosts {
		machines[h.index] = h.machine
	}
	made.machines = vectorOf(machines)
	return made.chargeHosts(s, hosts)
}
