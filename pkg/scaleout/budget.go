package scaleout

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mica-gpu/mica/pkg/devices"
)

// Budget bounds what a plan may ask for: it asks for no node with which there would be more than
// the budget allows. Nodes count that exist, that were asked for, by whomever, and that the plan
// asks for, each in full. What is over a budget already stays.
type Budget struct {
	Name string
	// Namespaces whose nodes count: those of which their claims have devices, and those that the
	// plan gives to their pods. Empty: all nodes count, for all pods and for headroom.
	Namespaces []string
	// GPUs and PricePerHour are the most that there may be; nil: any number. Under a price, no
	// group grows of which it is not known.
	GPUs         *int
	PricePerHour *resource.Quantity
	// Rate is the most nodes that may come in a period; nil: any number.
	Rate *Rate
}

// Binds tells whether nodes for pods of the namespace are paid of the budget.
func (b *Budget) Binds(namespace string) bool {
	return len(b.Namespaces) == 0 || slices.Contains(b.Namespaces, namespace)
}

// Rate is a number of nodes in a time. Nodes count that are younger, and those that are coming.
type Rate struct {
	Nodes int
	// Period is for people; Since is when it began.
	Period string
	Since  metav1.Time
}

// BudgetDecision is what there is of a budget, with what is coming and what the plan asks for.
type BudgetDecision struct {
	Name         string
	GPUs         int
	PricePerHour resource.Quantity
	// Nodes are those of its rate; 0 without one.
	Nodes int
	// Held are the pods for which no node is asked for because of the budget.
	Held int
}

// budget is a budget, with what is spent of it.
type budget struct {
	*Budget
	gpus, nodes int
	price       resource.Quantity
	// hosts are those that are charged, of a budget of namespaces.
	hosts map[*host]bool
	held  int
}

func readBudgets(all []Budget) []*budget {
	var read []*budget
	for i := range all {
		read = append(read, &budget{Budget: &all[i], hosts: map[*host]bool{}})
	}
	slices.SortFunc(read, func(a, b *budget) int { return strings.Compare(a.Name, b.Name) })
	return read
}

// chargeHosts charges what there is.
func (p *planner) chargeHosts(s Snapshot) {
	if len(p.budgets) == 0 {
		return
	}
	hosts := slices.Clone(p.live)
	for _, idle := range p.idle {
		hosts = append(hosts, idle...)
	}
	for _, b := range p.budgets {
		if len(b.Namespaces) == 0 {
			for _, h := range hosts {
				b.charge(h)
			}
			for _, g := range p.groups {
				for range g.Foreign {
					b.charge(&host{group: g, gpus: g.GPUs})
				}
			}
		}
	}
	at := poolsOf(hosts, s.Slices)
	for _, claim := range s.Claims {
		for result := range devices.Results(claim.Status.Allocation) {
			if h := at[devices.PoolID{Driver: result.Driver, Name: result.Pool}]; h != nil {
				p.charge(h, p.payers(claim.Namespace))
			}
		}
	}
}

// poolsOf finds the host of a pool.
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

// payers are the budgets of which a node for a pod of the namespace is paid; of headroom, which
// has no namespace, those of the cluster.
func (p *planner) payers(namespace string) []*budget {
	var payers []*budget
	for _, b := range p.budgets {
		if b.Binds(namespace) {
			payers = append(payers, b)
		}
	}
	return payers
}

// budgetNames tell budgets apart.
func budgetNames(all []*budget) []string {
	var names []string
	for _, b := range all {
		names = append(names, b.Name)
	}
	return names
}

// charge charges a host that is given to the payers. The cluster pays for all hosts, whoever has them.
func (p *planner) charge(h *host, payers []*budget) {
	for _, b := range payers {
		if len(b.Namespaces) > 0 {
			b.charge(h)
		}
	}
}

// chargeOpened charges a host that is opened for the payers.
func (p *planner) chargeOpened(h *host, payers []*budget) {
	for _, b := range payers {
		b.charge(h)
	}
}

func (b *budget) charge(h *host) {
	if b.hosts[h] || h.group == nil && h.gpus == 0 {
		return
	}
	b.hosts[h] = true
	b.gpus += h.gpus
	if h.group != nil && h.group.PricePerHour != nil {
		b.price = sum(b.price, *h.group.PricePerHour)
	}
	if b.Rate != nil && (h.name == "" || h.object.CreationTimestamp.After(b.Rate.Since.Time)) {
		b.nodes++
	}
}

// sum leaves alone what it adds: a Quantity is changed by Add, also in its copies.
func sum(a, b resource.Quantity) resource.Quantity {
	a = a.DeepCopy()
	a.Add(b)
	return a
}

// refuses says why a node of the group is over the budget, or nothing.
func (b *budget) refuses(g *group) string {
	switch {
	case b.GPUs != nil && b.gpus+g.GPUs > *b.GPUs:
		return fmt.Sprintf("budget %s allows %d GPUs, of which %d are %s, and a node of group %s has %d: raise spec.gpus, or wait until nodes are gone",
			b.Name, *b.GPUs, b.gpus, b.where(), g.Name, g.GPUs)
	case b.PricePerHour != nil && g.PricePerHour == nil:
		return fmt.Sprintf("budget %s has a price per hour, and that of group %s is not known: set its spec.pricePerHour", b.Name, g.Name)
	case b.PricePerHour != nil && b.over(g):
		return fmt.Sprintf("budget %s allows %s per hour, of which %s is spent, and a node of group %s costs %s: raise spec.pricePerHour, or wait until nodes are gone",
			b.Name, Price(*b.PricePerHour), Price(b.price), g.Name, Price(*g.PricePerHour))
	case b.Rate != nil && b.nodes+1 > b.Rate.Nodes:
		return fmt.Sprintf("budget %s allows %s in %s, and as many have come or are coming: it goes on when they are older",
			b.Name, nodes(b.Rate.Nodes), b.Rate.Period)
	}
	return ""
}

// where are the GPUs that count. Of a node that is shared, people would expect a part.
func (b *budget) where() string {
	if len(b.Namespaces) == 0 {
		return "there or coming"
	}
	return "on nodes that its namespaces use or have asked for, each counted in full"
}

func (b *budget) over(g *group) bool {
	with := sum(b.price, *g.PricePerHour)
	return with.Cmp(*b.PricePerHour) > 0
}

// Price is one for people, who do not write 4600m for 4.6, nor 9.200000000000001 for 9.2.
func Price(q resource.Quantity) string {
	text := q.AsDec().String()
	if strings.Contains(text, ".") {
		text = strings.TrimRight(strings.TrimRight(text, "0"), ".")
	}
	return text
}

// refused says which of the payers refuses a node of the group, and why; nil: none does.
func refused(payers []*budget, g *group) (*budget, string) {
	for _, b := range payers {
		if why := b.refuses(g); why != "" {
			return b, why
		}
	}
	return nil, ""
}

// overBudget says which budget keeps the group from growing that would grow first for pods of a
// kind; nil: it is no budget.
func (p *planner) overBudget(ctx context.Context, k *kind, count int, payers []*budget) (*budget, string, error) {
	if len(payers) == 0 || k.aborts != "" {
		return nil, "", nil
	}
	ranked, err := p.ranked(ctx, k, count)
	if err != nil {
		return nil, "", err
	}
	for _, g := range ranked {
		if g.barred() != "" || g.full() {
			continue
		}
		offered, err := p.offer(ctx, g, k, count)
		if err != nil {
			return nil, "", err
		}
		if offered.takes == 0 {
			continue
		}
		if b, why := refused(payers, g); b != nil {
			return b, why, nil
		}
	}
	return nil, "", nil
}

// holdBack notes of pods that a budget is why they get no node.
func (p *planner) holdBack(ctx context.Context, k *kind, pods []*pending, payers []*budget) error {
	b, why, err := p.overBudget(ctx, k, len(pods), payers)
	if b == nil || err != nil {
		return err
	}
	b.held += len(pods)
	for _, pod := range pods {
		pod.why, pod.overBudget = why, true
	}
	return nil
}

// budgeted is what became of the budgets, by name.
func (p *planner) budgeted() []BudgetDecision {
	var all []BudgetDecision
	for _, b := range p.budgets {
		all = append(all, BudgetDecision{Name: b.Name, GPUs: b.gpus, PricePerHour: b.price, Nodes: b.nodes, Held: b.held})
	}
	return all
}

func copyBudgets(all []*budget) []budget {
	var copies []budget
	for _, b := range all {
		c := *b
		c.hosts = maps.Clone(b.hosts)
		copies = append(copies, c)
	}
	return copies
}
