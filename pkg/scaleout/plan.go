package scaleout

import (
	"context"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

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
	decision, count, err := Decide(ctx, snapshot)
	if err != nil {
		return Decision{}, err
	}
	if decision.Rooms, err = count(ctx); err != nil {
		return Decision{}, err
	}
	return decision, nil
}

// Counting counts the rooms of a decision, once. The error is of the context alone.
type Counting func(context.Context) ([]Room, error)

// Decide is Plan for those who act on the decision before they count: a sample that takes long,
// or does not end in time, costs the pods that wait nothing.
func Decide(ctx context.Context, snapshot Snapshot) (Decision, Counting, error) {
	p, kinds := newPlanner(snapshot)
	for _, batch := range batches(kinds) {
		if err := p.place(ctx, batch); err != nil {
			return Decision{}, nil, err
		}
	}
	placed := p.mark()
	headroom, err := p.headroom(ctx, p.reserved)
	if err != nil {
		return Decision{}, nil, err
	}
	decision := Decision{Growth: p.growth(), Headroom: headroom}
	for _, k := range kinds {
		reported, err := p.report(ctx, k)
		if err != nil {
			return Decision{}, nil, err
		}
		decision.Kinds = append(decision.Kinds, reported)
	}
	count := func(ctx context.Context) ([]Room, error) { return p.rooms(ctx, kinds, placed) }
	return decision, count, nil
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
	// asked are the samples that room is counted for, samples the same without those alike.
	asked   []Sample
	samples []*sample
	// countLimit is the time for counting once.
	countLimit time.Duration
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
	for i := range s.Samples {
		if pod := s.Samples[i].Pod; pod != nil {
			pods = append(pods, pod)
		}
	}
	p := &planner{
		cluster:  fit.New(fit.Facts{Classes: s.Classes, Claims: s.Claims, Slices: s.Slices, Pods: pods, Selectors: s.Selectors}),
		claims:   newClaims(s),
		fillings: map[emptied]*filling{},
		rests:    map[*fit.Machine]int{},
		idle:     map[*group][]*host{},

		countLimit: countLimit,
	}
	kinds := p.kinds(s.Pending)
	p.waiting = map[string]bool{}
	for _, k := range kinds {
		p.waiting[k.id] = true
	}
	p.reserved = p.reserves(s.Headroom)
	p.asked, p.samples = s.Samples, p.readSamples(s.Samples)
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
	h.note(pod.kind.id)
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
	reported := Kind{ID: k.id, Sample: k.sample, Problem: k.problem}
	for _, pod := range k.pods {
		reported.Pods = append(reported.Pods, pod.decision())
	}
	if k.sample == nil {
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
