package scaleout

import (
	"context"
	"errors"
	"fmt"
	"slices"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/mica-gpu/mica/pkg/scaleout/fit"
)

// countSteps ends the counting of room: pods that wait come first, and their plan is done. It is
// enough for tens of thousands of replicas, and takes some seconds; claims for which the search is
// exponential use it up, but they are counted last.
const countSteps = 1 << 19

// Supplies counts room for the replicas as if nothing but the pods had been placed. What headroom
// has taken since is theirs, too, and told of as kept. The error is of the context alone. It
// counts once, and then gives the same again.
func (p *Planner) Supplies(ctx context.Context) ([]Supply, error) {
	if _, err := p.Decide(ctx); err != nil {
		return nil, err
	}
	if !p.counted && len(p.plan.distinct) > 0 {
		p.supplies, p.uncounted = p.count(ctx)
		p.counted = true
	}
	return p.supplies, p.uncounted
}

func (p *Planner) count(ctx context.Context) ([]Supply, error) {
	var left []Supply
	if len(p.plan.reserved) > 0 {
		left = p.plan.countAll(ctx, p.countSteps, nil)
	}
	p.plan.restore(p.afterPods)
	counted := p.plan.countAll(ctx, p.countSteps, left)
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("count room for %d samples: %w", len(counted), err)
	}
	all := make([]Supply, len(p.plan.replicas))
	for i, s := range p.plan.distinct {
		supply := counted[i]
		if left != nil && supply.Problem == "" {
			supply.Kept = max(supply.Free-left[i].Free, 0)
		}
		for _, at := range s.at {
			all[at] = supply
			all[at].ID = p.plan.replicas[at].ID
		}
	}
	return all, nil
}

// noteClaims notes of claims that one pod alone names where they are: in the plan they were like the
// pod's own, but pods like a replica would share them.
func (p *planner) noteClaims(kinds []*kind) {
	for _, k := range kinds {
		if len(k.named) > 0 {
			continue
		}
		for _, pod := range k.pods {
			if pod.host == nil {
				continue
			}
			for _, claim := range p.claims.namedBy(pod.pod) {
				claim.use(pod.pod)
				claim.host = pod.host
			}
		}
	}
}

// countAll counts for each of the replicas, in their order, within so many steps of work; not for
// those of which known, where it is not nil, has a problem.
func (p *planner) countAll(ctx context.Context, steps int, known []Supply) []Supply {
	p.cluster.Allow(steps)
	defer p.cluster.AllowAll()
	available := p.available()
	all := make([]Supply, len(p.distinct))
	for i, s := range p.distinct {
		if s.kind.example == nil {
			all[i].Problem = s.kind.problem
			continue
		}
		if known != nil && known[i].Problem != "" {
			all[i].Problem = known[i].Problem
			continue
		}
		c := &count{planner: p, replica: s, kind: s.kind, available: available}
		s.kind.aborts = ""
		if err := c.runAll(ctx); err != nil {
			all[i].Problem = uncounted(err)
			continue
		}
		c.supply.Why = c.why(ctx)
		all[i] = c.supply
	}
	return all
}

// uncounted is why there is no count.
func uncounted(err error) string {
	if !errors.Is(err, fit.ErrSpent) {
		return err.Error()
	}
	return "for how many more pods there is room was not found out: there are too many samples, " +
		"or their claims have too many combinations of devices; ask for several devices by the count of one request rather than by several requests"
}

// hostClass is a number of hosts that are alike.
type hostClass struct {
	machine *fit.Machine
	// first is one of them.
	first *host
	hosts int
}

// available is what there is to put pods on. What is advised is not: it may never be.
type available struct{ live, coming []hostClass }

func (p *planner) available() *available {
	coming := slices.Clone(p.used)
	coming = append(coming, p.idle[nil]...)
	for _, g := range p.groups {
		coming = append(coming, p.idle[g]...)
	}
	return &available{live: hostClasses(p.live), coming: hostClasses(coming)}
}

func hostClasses(hosts []*host) []hostClass {
	var all []hostClass
	at := map[*fit.Machine]int{}
	for _, h := range hosts {
		i, known := at[h.machine]
		if !known {
			i = len(all)
			at[h.machine] = i
			all = append(all, hostClass{machine: h.machine, first: h})
		}
		all[i].hosts++
	}
	return all
}

// count is the counting of room for a replica.
type count struct {
	*planner
	*replica
	// kind is that of the pods that are counted; of a gang, of those that end the growth.
	kind      *kind
	available *available
	supply    Supply
	// entangled tells that a pod which is put on one host changes what others have for the next.
	entangled bool
	// because is why there is no more room, where groups are not the cause.
	because string
}

// run counts pods.
func (c *count) run(ctx context.Context) error {
	k := c.kind
	if why := unusableMore(k); why != "" {
		c.because = why
		return nil
	}
	for _, claim := range k.named {
		if claim.host != nil {
			return c.beside(ctx, claim)
		}
	}
	if slices.ContainsFunc(k.named, func(claim *namedClaim) bool { return !claim.allocated() }) {
		return c.together(ctx)
	}
	if err := c.anywhere(ctx); err != nil {
		return err
	}
	// Groups that grow at the expense of one budget leave less of it to each other.
	c.entangled = c.entangled || len(c.payers(c.namespace)) > 0
	if c.entangled {
		if err := c.oneByOne(ctx); err != nil {
			return err
		}
	}
	c.bound(mostSharers(k))
	return nil
}

// unusableMore says why no further pod can use the claims that the pods share, or nothing.
func unusableMore(k *kind) string {
	if len(k.named) == 0 {
		return ""
	}
	return unusable(k.pods[0])
}

// mostSharers is how many more pods can use the claims that they share.
func mostSharers(k *kind) int {
	most := MaxSupply
	for _, claim := range k.named {
		most = min(most, resourceapi.ResourceClaimReservedForMaxSize-claim.users)
	}
	return most
}

// bound takes from the supply what is more than can be used, that which is furthest off first.
func (c *count) bound(most int) {
	if len(c.kind.named) > 0 && c.supply.Total() > most {
		c.because = fmt.Sprintf("no more than %d pods may share claim %s", resourceapi.ResourceClaimReservedForMaxSize, c.kind.named[0].name)
	}
	c.supply.Free = min(c.supply.Free, most)
	c.supply.Coming = min(c.supply.Coming, most-c.supply.Free)
	c.supply.Provisionable = min(c.supply.Provisionable, most-c.supply.Free-c.supply.Coming)
}

// anywhere counts host by host, and group by group.
func (c *count) anywhere(ctx context.Context) error {
	for _, s := range c.available.live {
		end, err := c.add(ctx, s.machine, s.hosts, &c.supply.Free)
		if err != nil {
			return err
		}
		if end != nil {
			c.kind.noteAbort(s.first, end)
		}
	}
	for _, s := range c.available.coming {
		if _, err := c.add(ctx, s.machine, s.hosts, &c.supply.Coming); err != nil {
			return err
		}
	}
	if c.kind.aborts != "" {
		return nil
	}
	for _, g := range c.groups {
		if _, err := c.add(ctx, g.empty, g.growth(), &c.supply.Provisionable); err != nil {
			return err
		}
	}
	return nil
}

// growth is how many more nodes the group may get than the plan asks for.
func (g *group) growth() int {
	switch {
	case g.barred() != "", g.Advised, g.full():
		return 0
	case g.Max == nil:
		return MaxSupply
	}
	return min(*g.Max-g.Size-g.opened, MaxSupply)
}

// add adds the room of hosts that are alike, and gives what ends it on each of them.
func (c *count) add(ctx context.Context, m *fit.Machine, hosts int, to *int) (*fit.Miss, error) {
	if hosts == 0 || !c.usable(m.Object()) {
		return nil, nil
	}
	filling, err := c.filling(ctx, m, c.kind)
	if err != nil {
		return nil, err
	}
	full := filling.machines[filling.pods()]
	c.entangled = c.entangled || filling.pods() > 0 && !full.Apart(m, c.kind.example)
	*to = min(*to+hosts*filling.pods(), MaxSupply)
	return filling.end, nil
}

// oneByOne counts by putting pods on hosts as the plan would, and takes them back.
func (c *count) oneByOne(ctx context.Context) error {
	before := c.checkpoint()
	defer c.restore(before)
	c.supply = Supply{}
	c.kind.aborts = ""
	search, err := c.search(ctx, c.kind, MaxSupply)
	if err != nil {
		return err
	}
	search.usable, search.payers = c.usable, c.payers(c.namespace)
	for c.supply.Total() < MaxSupply {
		h, left, err := search.next(ctx, MaxSupply-c.supply.Total())
		if err != nil {
			return err
		}
		if h == nil || h.outcome() == Advised {
			break
		}
		c.cluster.Commit(left)
		h.machine = left
		c.charge(h, search.payers)
		*c.numberFor(h, before)++
	}
	if c.supply.Total() < MaxSupply {
		b, why, err := c.overBudget(ctx, c.kind, MaxSupply, search.payers)
		if b != nil || err != nil {
			c.because = why
			return err
		}
	}
	if slices.ContainsFunc(c.groups, func(g *group) bool { return g.growth() > 0 }) {
		c.because = "no further node helps: what the pods need has an end elsewhere, such as devices that nodes share, or the one node on which pods have to be with each other"
	}
	return nil
}

// numberFor is the part of the room that a host's is.
func (c *count) numberFor(h *host, before checkpoint) *int {
	if _, known := before.machines[h]; !known {
		return &c.supply.Provisionable
	}
	if h.stage == live {
		return &c.supply.Free
	}
	return &c.supply.Coming
}

// together counts for pods that share a claim which is nowhere yet: they will be on one host.
func (c *count) together(ctx context.Context) error {
	before := c.checkpoint()
	defer c.restore(before)
	most := mostSharers(c.kind)
	h, err := c.bestHost(ctx, c.kind, most)
	if err == nil && h == nil {
		h, err = c.open(ctx, c.kind, most, c.payers(c.namespace), grown)
	}
	if h == nil || err != nil {
		return err
	}
	filling, err := c.filling(ctx, h.machine, c.kind)
	if err != nil {
		return err
	}
	*c.numberFor(h, before) = filling.pods()
	c.ends(fmt.Sprintf("the pods share claim %s, and so are on one node: %s", c.kind.named[0].name, h.describe()), filling.end)
	c.bound(most)
	return nil
}

// beside counts for pods that share a claim which a pod that is placed has.
func (c *count) beside(ctx context.Context, claim *namedClaim) error {
	h := claim.host
	if h.outcome() == Advised {
		c.because = fmt.Sprintf("claim %s is on %s, and nobody makes the group grow by itself", claim.name, h.describe())
		return nil
	}
	variant, err := c.variant(c.kind)
	if err != nil {
		c.because = err.Error()
		return nil
	}
	filling, err := c.filling(ctx, h.machine, &kind{example: variant})
	if err != nil {
		return err
	}
	switch h.stage {
	case live:
		c.supply.Free = filling.pods()
	default:
		c.supply.Coming = filling.pods()
	}
	c.ends(fmt.Sprintf("claim %s is on %s", claim.name, h.describe()), filling.end)
	c.bound(mostSharers(c.kind))
	return nil
}

// ends notes that a host ends the growth.
func (c *count) ends(where string, end *fit.Miss) {
	c.because = where
	if end != nil {
		c.because += ", where " + end.Text
	}
}
