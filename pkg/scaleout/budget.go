package scaleout

import (
	"context"
	"fmt"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mica-gpu/mica/pkg/devices"
	"github.com/mica-gpu/mica/pkg/excerpt"
)

// Budget is an upper limit for a plan: the plan asks for no node that would exceed it. Existing nodes, nodes that
// anything has asked for, and nodes that the plan asks for count, each in full. Nodes that already exceed a budget
// stay.
type Budget struct {
	Name string
	// Namespaces whose nodes count: those with devices of their claims, and those that the
	// plan gives to their pods. Empty: all nodes count, for all pods and for headroom.
	Namespaces []string
	// GPUs and PricePerHour are the upper limits; nil: no limit. Under a price limit, a group with an unknown price
	// does not grow.
	GPUs         *int
	PricePerHour *resource.Quantity
	// Rate limits the new nodes per period; nil: no limit.
	Rate *Rate
}

// Binds reports whether the budget pays for nodes for pods of the namespace.
func (b *Budget) Binds(namespace string) bool {
	return len(b.Namespaces) == 0 || slices.Contains(b.Namespaces, namespace)
}

// Rate is a number of nodes per period. Nodes that were created within the period count, and coming ones.
type Rate struct {
	Nodes int
	// Period is its length as text; Since is its begin.
	Period string
	Since  metav1.Time
}

// BudgetDecision is what counts for a budget: existing nodes, coming ones and those that the plan asks for.
type BudgetDecision struct {
	Name         string
	GPUs         int
	PricePerHour resource.Quantity
	// Nodes count for its rate; 0 without a rate.
	Nodes int
	// Held are the pods for which no node is asked for because of the budget.
	Held int
}

// budget is a Budget with its index in plan.spent.
type budget struct {
	*Budget
	index int
}

// spent is what is spent of a budget.
type spent struct {
	gpus, nodes int
	price       resource.Quantity
	// hosts that were charged, by their indexes.
	hosts vector[bool]
}

func readBudgets(all []Budget) []*budget {
	var read []*budget
	for i := range all {
		read = append(read, &budget{Budget: &all[i]})
	}
	slices.SortFunc(read, func(a, b *budget) int { return strings.Compare(a.Name, b.Name) })
	for i, b := range read {
		b.index = i
	}
	return read
}

// chargeHosts charges live and coming hosts.
func (p *plan) chargeHosts(s Snapshot, hosts []*host) *plan {
	for _, b := range p.budgets {
		if len(b.Namespaces) > 0 {
			continue
		}
		for _, h := range hosts {
			p = p.chargeAll(h, []*budget{b})
		}
		for _, g := range p.groups {
			for range g.Foreign {
				p.spent[b.index] = p.spent[b.index].with(b, &host{group: g, gpus: g.GPUs})
			}
		}
	}
	if len(p.budgets) == 0 {
		return p
	}
	at := poolsOf(hosts, s.Slices)
	for _, claim := range s.Claims {
		for held := range devices.Holdings(claim.Status.Allocation) {
			if h := at[held.Pool]; h != nil {
				p = p.charge(h, p.payers(claim.Namespace))
			}
		}
	}
	return p
}

// poolsOf maps pools to their hosts.
func poolsOf(hosts []*host, published []*resourceapi.ResourceSlice) map[devices.PoolID]*host {
	byName := map[string]*host{}
	for _, h := range hosts {
		if h.name != "" {
			byName[h.name] = h
		}
	}
	at := map[devices.PoolID]*host{}
	for _, slice := range published {
		if slice.Spec.NodeName != nil {
			at[devices.PoolOf(slice)] = byName[*slice.Spec.NodeName]
		}
	}
	return at
}

// payers are the budgets that pay for a node for a pod of the namespace. Headroom has no namespace: the budgets of the
// cluster pay for it.
func (p *planner) payers(namespace string) []*budget {
	var payers []*budget
	for _, b := range p.budgets {
		if b.Binds(namespace) {
			payers = append(payers, b)
		}
	}
	return payers
}

// charge charges the payers for a host that one of their pods uses. Budgets of the cluster have paid for it when it was
// opened or read.
func (p *plan) charge(h *host, payers []*budget) *plan {
	return p.chargeAll(h, slices.DeleteFunc(slices.Clone(payers), func(b *budget) bool { return len(b.Namespaces) == 0 }))
}

// chargeAll charges a host to those budgets that have not paid for it yet.
func (p *plan) chargeAll(h *host, budgets []*budget) *plan {
	next := p
	for _, b := range budgets {
		if p.spent[b.index].hosts.at(h.index) || h.group == nil && h.gpus == 0 {
			continue
		}
		if next == p {
			changed := *p
			changed.spent = slices.Clone(p.spent)
			next = &changed
		}
		now := next.spent[b.index].with(b, h)
		now.hosts = now.hosts.with(h.index, true)
		next.spent[b.index] = now
	}
	return next
}

// with is what is spent with one more host.
func (s spent) with(b *budget, h *host) spent {
	s.gpus += h.gpus
	if h.group != nil && h.group.PricePerHour != nil {
		s.price = sum(s.price, *h.group.PricePerHour)
	}
	if b.Rate != nil && (h.name == "" || h.object.CreationTimestamp.After(b.Rate.Since.Time)) {
		s.nodes++
	}
	return s
}

// sum copies its arguments: Quantity.Add also changes copies of a Quantity.
func sum(a, b resource.Quantity) resource.Quantity {
	a = a.DeepCopy()
	a.Add(b)
	return a
}

// refuses says why a node of the group would exceed the budget; empty: it would not.
func (b *budget) refuses(s spent, g *group) string {
	switch {
	case b.GPUs != nil && s.gpus+g.GPUs > *b.GPUs:
		return fmt.Sprintf("budget %s allows %d GPUs, %d of them are %s, and a node of group %s has %d: raise spec.gpus, or wait until nodes are gone",
			b.Name, *b.GPUs, s.gpus, b.where(), g.Name, g.GPUs)
	case b.PricePerHour != nil && g.PricePerHour == nil:
		return fmt.Sprintf("budget %s has a price per hour, and that of group %s is not known: set its spec.pricePerHour", b.Name, g.Name)
	case b.PricePerHour != nil && b.over(s, g):
		return fmt.Sprintf("budget %s allows %s per hour, %s of that is spent, and a node of group %s costs %s: raise spec.pricePerHour, or wait until nodes are gone",
			b.Name, Price(*b.PricePerHour), Price(s.price), g.Name, Price(*g.PricePerHour))
	case b.Rate != nil && s.nodes+1 > b.Rate.Nodes:
		return fmt.Sprintf("budget %s allows %s in %s, and as many have come or are coming: wait until they are older",
			b.Name, excerpt.Count(b.Rate.Nodes, "node"), b.Rate.Period)
	}
	return ""
}

// where says which GPUs count. It mentions that shared nodes count in full, because a user would expect a part.
func (b *budget) where() string {
	if len(b.Namespaces) == 0 {
		return "there or coming"
	}
	return "on nodes that its namespaces use or have asked for, each counted in full"
}

func (b *budget) over(s spent, g *group) bool {
	with := sum(s.price, *g.PricePerHour)
	return with.Cmp(*b.PricePerHour) > 0
}

// Price formats a price: 4.6 rather than 4600m, and 9.2 rather than 9.200000000000001.
func Price(q resource.Quantity) string {
	text := q.AsDec().String()
	if strings.Contains(text, ".") {
		text = strings.TrimRight(strings.TrimRight(text, "0"), ".")
	}
	return text
}

// refused is the first payer that refuses a node of the group, and why; nil: none does.
func (p *plan) refused(payers []*budget, g *group) (*budget, string) {
	for _, b := range payers {
		if why := b.refuses(p.spent[b.index], g); why != "" {
			return b, why
		}
	}
	return nil, ""
}

// overBudget returns the budget that keeps the best group for a kind from growing, and the reason; nil: no budget does.
func (p *plan) overBudget(ctx context.Context, k *kind, count int, payers []*budget) (*budget, string, error) {
	if len(payers) == 0 || k.aborts != "" {
		return nil, "", nil
	}
	ranked, err := p.ranked(ctx, k, count)
	if err != nil {
		return nil, "", err
	}
	for _, g := range ranked {
		if g.barred() != "" || p.full(g) {
			continue
		}
		offered, err := p.offer(ctx, g, k, count)
		if err != nil {
			return nil, "", err
		}
		if offered.takes == 0 {
			continue
		}
		if b, why := p.refused(payers, g); b != nil {
			return b, why, nil
		}
	}
	return nil, "", nil
}

// holdBack records that a budget keeps pods from getting a node, if one does.
func (p *plan) holdBack(ctx context.Context, k *kind, pods []*pending, payers []*budget) error {
	b, why, err := p.overBudget(ctx, k, len(pods), payers)
	if b == nil || err != nil {
		return err
	}
	for _, pod := range pods {
		pod.why, pod.overBudget = why, b
	}
	return nil
}

// budgeted is the decision on each budget, by name.
func (p *plan) budgeted(kinds []*kind) []BudgetDecision {
	var all []BudgetDecision
	for _, b := range p.budgets {
		s := p.spent[b.index]
		all = append(all, BudgetDecision{Name: b.Name, GPUs: s.gpus, PricePerHour: s.price, Nodes: s.nodes})
	}
	for _, k := range kinds {
		for _, pod := range k.pods {
			if pod.overBudget != nil {
				all[pod.overBudget.index].Held++
			}
		}
	}
	return all
}
