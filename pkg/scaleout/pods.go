package scaleout

import (
	"context"
	"fmt"
	"slices"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/mica-gpu/mica/pkg/excerpt"
	"github.com/mica-gpu/mica/pkg/scaleout/fit"
	"github.com/mica-gpu/mica/pkg/scaleout/supply"
)

// pods are pods of a sample on a plan. They implement supply.Pods.
type pods struct {
	*plan
	*sample
	kind  *kind
	hosts []hostClass
}

// hostClass is a set of hosts that are alike.
type hostClass struct {
	machine *fit.Machine
	// first is one of them.
	first *host
	hosts int
}

// available are the hosts on which replicas may be, live ones first. Advised hosts are not among them, because they may
// never exist.
func (p *plan) available() []hostClass {
	return append(p.classes(p.live), p.classes(append(p.used.list(), p.idleHosts()...))...)
}

func (p *plan) classes(hosts []*host) []hostClass {
	var all []hostClass
	at := map[*fit.Machine]int{}
	for _, h := range hosts {
		m := p.machine(h)
		i, known := at[m]
		if !known {
			i = len(all)
			at[m] = i
			all = append(all, hostClass{machine: m, first: h})
		}
		all[i].hosts++
	}
	return all
}

func (c *pods) Sharers() (string, int) {
	if len(c.kind.named) == 0 {
		return "", supply.Max
	}
	most := supply.Max
	for _, claim := range c.kind.named {
		most = min(most, resourceapi.ResourceClaimReservedForMaxSize-c.users(claim))
	}
	return c.kind.named[0].name.String(), most
}

func (c *pods) Together(ctx context.Context) (Supply, bool, error) {
	c.kind.aborts = ""
	if len(c.kind.named) == 0 {
		return Supply{}, false, nil
	}
	if why := c.unusable(c.kind.pods[0]); why != "" {
		return Supply{Why: why}, true, nil
	}
	for _, claim := range c.kind.named {
		if h := c.hostOf(claim); h != nil {
			return c.beside(ctx, claim, h)
		}
	}
	if !slices.ContainsFunc(c.kind.named, func(claim *namedClaim) bool { return !claim.allocated() }) {
		return Supply{}, false, nil
	}
	_, most := c.Sharers()
	found, err := c.bestHost(ctx, c.kind, most)
	if err == nil && found.host == nil {
		found, err = c.openBest(ctx, c.kind, most, c.payers, grown)
	}
	if found.host == nil || err != nil {
		return Supply{Why: c.kind.aborts}, true, err
	}
	where := fmt.Sprintf("the pods share claim %s, and so are on one node: %s", c.kind.named[0].name, found.host.describe())
	return c.on(ctx, found.plan, found.host, c.kind, where)
}

// beside is the room next to a pod that uses one of the claims.
func (c *pods) beside(ctx context.Context, claim *namedClaim, h *host) (Supply, bool, error) {
	where := fmt.Sprintf("claim %s is on %s", claim.name, h.describe())
	if h.outcome() == Advised {
		return Supply{Why: where + ", and only its operator scales the group"}, true, nil
	}
	variant, err := c.variant(c.kind)
	if err != nil {
		return Supply{Why: err.Error()}, true, nil
	}
	return c.on(ctx, c.plan, h, &kind{example: variant}, where)
}

// on is the room on one host.
func (c *pods) on(ctx context.Context, p *plan, h *host, k *kind, where string) (Supply, bool, error) {
	filling, err := p.filling(ctx, p.machine(h), k)
	if err != nil {
		return Supply{}, true, err
	}
	if filling.end != nil {
		where += ", where " + filling.end.Text
	}
	s := Supply{Why: where}
	s.Add(c.place(h), filling.pods())
	return s, true, nil
}

// place is that of a host for package supply: hosts that the plan does not have are new.
func (p *plan) place(h *host) supply.Place {
	switch {
	case h.index >= p.machines.len:
		return supply.New
	case h.stage == live:
		return supply.Live
	}
	return supply.Coming
}

func (c *pods) Room(ctx context.Context) (supply.Room, error) {
	c.kind.aborts = ""
	// Groups that grow at the expense of the same budget leave less of it for each other.
	room := supply.Room{Entangled: len(c.payers) > 0}
	for _, class := range c.hosts {
		end, err := c.add(ctx, &room, c.place(class.first), class.machine, class.hosts)
		if err != nil {
			return room, err
		}
		if end != nil {
			c.kind.noteAbort(class.first, end)
		}
	}
	room.Aborts = c.kind.aborts
	if room.Aborts != "" {
		return room, nil
	}
	for _, g := range c.groups {
		if _, err := c.add(ctx, &room, supply.New, g.empty, c.growth(g)); err != nil {
			return room, err
		}
	}
	return room, nil
}

// add adds hosts that are alike, and returns why no further pod fits on one of them.
func (c *pods) add(ctx context.Context, room *supply.Room, at supply.Place, m *fit.Machine, hosts int) (*fit.Miss, error) {
	if hosts == 0 || !c.usable(m.Object()) {
		return nil, nil
	}
	filling, err := c.filling(ctx, m, c.kind)
	if err != nil {
		return nil, err
	}
	full := filling.machines[filling.pods()]
	room.Entangled = room.Entangled || filling.pods() > 0 && !full.Apart(m, c.kind.example)
	room.Hosts = append(room.Hosts, supply.Hosts{At: at, Number: hosts, Pods: filling.pods()})
	return filling.end, nil
}

// growth is the number of nodes that the group may get beyond those of the plan.
func (p *plan) growth(g *group) int {
	switch {
	case g.barred() != "", g.Advised, p.full(g):
		return 0
	case g.Max == nil:
		return supply.Max
	}
	return min(*g.Max-g.Size-p.opened[g.index], supply.Max)
}

func (c *pods) Groups(ctx context.Context) []supply.Group {
	var all []supply.Group
	for _, g := range c.groups {
		found := supply.Group{Growth: c.growth(g)}
		found.Why, found.Fits, found.Err = c.whyNoMore(ctx, g)
		all = append(all, found)
	}
	return all
}

// whyNoMore says what ends the room in a group, and reports whether a pod fits on its new nodes, as far as that is
// known.
func (c *pods) whyNoMore(ctx context.Context, g *group) (string, bool, error) {
	name := "group " + g.Name
	if g.empty == nil {
		return name + ": " + g.barred(), true, nil
	}
	filling, err := c.filling(ctx, g.empty, c.kind)
	if err != nil {
		return name + ": ", false, err
	}
	switch {
	case filling.miss != nil:
		return name + " does not fit: " + filling.miss.Text, false, nil
	case !c.usable(g.empty.Object()):
		return name + " does not fit: " + systemTaint(g.empty.Object()), false, nil
	case g.Max != nil && g.Size >= *g.Max:
		return fmt.Sprintf("%s is at its maximum of %s", name, excerpt.Count(*g.Max, "node")), true, nil
	case g.Closed != "":
		return name + " may not grow now: " + g.Closed, true, nil
	case g.Advised:
		return name + " is scaled by its operator only", true, nil
	case c.full(g):
		return fmt.Sprintf("%s is at its maximum of %s, and this plan asks for %d of them", name, excerpt.Count(*g.Max, "node"), c.opened[g.index]), true, nil
	case g.Max == nil:
		return fmt.Sprintf("%s has no maximum, and room is counted up to %d", name, supply.Max), true, nil
	}
	return fmt.Sprintf("%s may grow to its maximum of %s", name, excerpt.Count(*g.Max, "node")), true, nil
}

// trial implements supply.Trial. It places pods on plan, which begins as start.
type trial struct{ start, plan *plan }

func (t *trial) Put(ctx context.Context, these supply.Pods, n int) (Supply, error) {
	c := these.(*pods)
	c.kind.aborts = ""
	var put Supply
	search, err := t.plan.search(ctx, c.kind, n)
	if err != nil {
		return put, err
	}
	search.usable, search.payers = c.usable, c.payers
	for i := range n {
		found, err := search.next(ctx, t.plan, n-i)
		if err != nil {
			return put, err
		}
		if found.host == nil || found.host.outcome() == Advised {
			_, put.Why, err = t.plan.overBudget(ctx, c.kind, n-i, c.payers)
			if put.Why == "" {
				put.Why = c.kind.aborts
			}
			return put, err
		}
		t.plan = found.plan.put(found.host, found.left, c.payers)
		put.Add(t.start.place(found.host), 1)
	}
	return put, nil
}
