package scaleout

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/mica-gpu/mica/pkg/devices"
	"github.com/mica-gpu/mica/pkg/scaleout/fit"
)

// Plan decides. The error is of the context alone.
//
// Pods are put, the most urgent and then the hardest first, on nodes that exist, then on those
// that are coming, then on those that the plan has opened for pods before them; only then does
// a group grow, the one that is cheapest for each pod of the kind that its node takes. A pod
// that could preempt others waits for room like any other: what preemption would free is not
// counted.
func Plan(ctx context.Context, snapshot Snapshot) (Decision, error) {
	p := NewPlanner(snapshot)
	decision, err := p.Decide(ctx)
	if err != nil {
		return Decision{}, err
	}
	if decision.Supplies, err = p.Supplies(ctx); err != nil {
		return Decision{}, err
	}
	return decision, nil
}

// Planner is Plan in parts, for those who act on the decision before they ask for the rest. All
// that it gives are values. It is not safe for concurrent use.
type Planner struct {
	// Snapshot is what is planned for.
	Snapshot Snapshot

	plan  *planner
	kinds []*kind
	// start is the plan before a pod is placed, placed with the pods and without headroom.
	start, afterPods checkpoint

	decided, counted bool
	decision         Decision
	supplies         []Supply
	// err is of the decision, uncounted of the supplies.
	err, uncounted error
}

// NewPlanner reads the snapshot. Nothing is placed yet.
func NewPlanner(snapshot Snapshot) *Planner {
	if snapshot.Selectors == nil {
		snapshot.Selectors = devices.NewSelectors()
	}
	plan, kinds := newPlanner(snapshot)
	return &Planner{Snapshot: snapshot, plan: plan, kinds: kinds, start: plan.checkpoint()}
}

// Decide is Plan without the supplies. It plans once, and then gives the same again, the error, too.
func (p *Planner) Decide(ctx context.Context) (Decision, error) {
	if !p.decided {
		p.decision, p.err = p.decide(ctx)
		p.decided = true
	}
	return p.decision, p.err
}

func (p *Planner) decide(ctx context.Context) (Decision, error) {
	for _, batch := range batches(p.kinds) {
		if err := p.plan.place(ctx, batch); err != nil {
			return Decision{}, err
		}
	}
	p.afterPods = p.plan.checkpoint()
	headroom, err := p.plan.headroom(ctx, p.plan.reserved)
	if err != nil {
		return Decision{}, err
	}
	decision := Decision{Growth: p.plan.growth(), Headroom: headroom}
	for _, k := range p.kinds {
		reported, err := p.plan.report(ctx, k)
		if err != nil {
			return Decision{}, err
		}
		decision.Kinds = append(decision.Kinds, reported)
	}
	p.plan.noteClaims(p.kinds)
	return decision, nil
}

// planner is a plan in the making.
type planner struct {
	cluster *fit.Cluster
	claims  claims
	// groups are by name, whatever their order in the snapshot.
	groups []*group
	// live hosts are by name. used are those coming that pods were put on, and those opened, in
	// that order, without those opened in groups that nobody makes grow, which are advised. idle
	// are the others coming, by group, nil for none.
	live, used, advised []*host
	idle                map[*group][]*host
	reserved            []reserve
	// replicas are those that room is counted for, distinct the same without those alike.
	replicas []Replica
	distinct []*replica
	// countSteps is how much work it is to count once, at most.
	countSteps int
	// waiting are the kinds of pods that wait.
	waiting  map[string]bool
	fillings map[emptied]*filling
	// rests are what is free of machines.
	rests map[*fit.Machine]int
}

// newPlanner reads the snapshot: first all that is to be placed, and then what it is placed on,
// which fit tells apart by what is asked of it.
func newPlanner(s Snapshot) (*planner, []*kind) {
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
	}
	p := &planner{
		cluster:  fit.New(fit.Facts{Classes: s.Classes, Claims: s.Claims, Slices: s.Slices, Pods: pods, Selectors: s.Selectors}),
		claims:   newClaims(s),
		fillings: map[emptied]*filling{},
		rests:    map[*fit.Machine]int{},
		idle:     map[*group][]*host{},

		countSteps: countSteps,
	}
	kinds := p.kinds(s.Pending)
	p.waiting = map[string]bool{}
	for _, k := range kinds {
		p.waiting[k.id] = true
	}
	p.reserved = p.reserves(s.Headroom)
	p.replicas, p.distinct = s.Replicas, p.readReplicas(s.Replicas)
	p.groups = p.readGroups(s.Groups)
	p.readHosts(s)
	return p, kinds
}

// place puts the pods of a batch on hosts, and opens hosts for them.
func (p *planner) place(ctx context.Context, b batch) error {
	if len(b.kind.named) > 0 {
		return p.placeSharing(ctx, b)
	}
	search, err := p.search(ctx, b.kind, len(b.pods))
	if err != nil {
		return err
	}
	for i, pod := range b.pods {
		h, left, err := search.next(ctx, len(b.pods)-i)
		if err != nil {
			return err
		}
		if h == nil {
			for _, rest := range b.pods[i:] {
				rest.why = b.kind.aborts
			}
			return nil
		}
		p.put(h, pod, left)
	}
	return nil
}

// put puts a pod on the host, of which left is left.
func (p *planner) put(h *host, pod *pending, left *fit.Machine) {
	p.cluster.Commit(left)
	h.machine = left
	pod.host = h
	if h.stage != opened {
		return
	}
	h.ask.Pods = append(h.ask.Pods, types.NamespacedName{Namespace: pod.pod.Namespace, Name: pod.pod.Name})
	h.ask.Requests = total(h.ask.Requests, pod.kind.requests)
	h.noteKind(pod.kind.id)
}

// growth are the nodes that were opened, the most urgent groups first.
func (p *planner) growth() []Growth {
	var growth []Growth
	at := map[*group]int{}
	for _, h := range slices.Concat(p.used, p.advised) {
		if h.stage != opened {
			continue
		}
		i, known := at[h.group]
		if !known {
			i = len(growth)
			at[h.group] = i
			growth = append(growth, Growth{Group: h.group.Name})
		}
		growth[i].Nodes = append(growth[i].Nodes, h.ask)
	}
	return growth
}

// report is what became of a kind.
func (p *planner) report(ctx context.Context, k *kind) (Kind, error) {
	reported := Kind{ID: k.id, Example: k.example, Problem: k.problem}
	for _, pod := range k.pods {
		reported.Pods = append(reported.Pods, pod.decision())
	}
	if k.example == nil {
		return reported, nil
	}
	reported.Groups = make([]GroupFit, len(p.groups))
	for _, g := range p.groups {
		found, err := p.groupFit(ctx, g, k)
		if err != nil {
			return Kind{}, err
		}
		reported.Groups[g.index] = found
	}
	return reported, nil
}

// decision is where the pod goes.
func (p *pending) decision() PodDecision {
	d := PodDecision{
		Pod: types.NamespacedName{Namespace: p.pod.Namespace, Name: p.pod.Name}, UID: p.pod.UID,
		Outcome: Blocked, Why: p.why,
	}
	if p.host == nil {
		return d
	}
	d.Outcome = p.host.outcome()
	if p.host.stage == live {
		d.Node = p.host.name
	}
	if p.host.group != nil {
		d.Group = p.host.group.Name
	}
	return d
}

// total adds up requests.
func total(sum, more corev1.ResourceList) corev1.ResourceList {
	if sum == nil {
		sum = corev1.ResourceList{}
	}
	for name, quantity := range more {
		have := sum[name]
		have.Add(quantity)
		sum[name] = have
	}
	return sum
}
