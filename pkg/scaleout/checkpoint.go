package scaleout

import (
	"maps"
	"slices"

	"github.com/mica-gpu/mica/pkg/scaleout/fit"
)

// checkpoint is a plan as it was at a moment.
type checkpoint struct {
	cluster             fit.Checkpoint
	live, used, advised []*host
	idle                map[*group][]*host
	machines            map[*host]*fit.Machine
	opened              map[*group]int
	budgets             []budget
}

// checkpoint notes where the plan is, so that it can be returned to.
func (p *planner) checkpoint() checkpoint {
	m := checkpoint{
		cluster: p.cluster.Checkpoint(),
		live:    slices.Clone(p.live), used: slices.Clone(p.used), advised: slices.Clone(p.advised),
		idle:     make(map[*group][]*host, len(p.idle)),
		machines: make(map[*host]*fit.Machine, len(p.live)+len(p.used)),
		opened:   make(map[*group]int, len(p.groups)),
		budgets:  copyBudgets(p.budgets),
	}
	for g, hosts := range p.idle {
		m.idle[g] = slices.Clone(hosts)
		for _, h := range hosts {
			m.machines[h] = h.machine
		}
	}
	for _, h := range slices.Concat(p.live, p.used, p.advised) {
		m.machines[h] = h.machine
	}
	for _, g := range p.groups {
		m.opened[g] = g.opened
	}
	return m
}

// restore returns to a mark. Pods stay on the hosts on which they were put since: who returns has
// told of them already, or has put none.
func (p *planner) restore(to checkpoint) {
	p.cluster.Restore(to.cluster)
	p.live, p.used, p.advised = slices.Clone(to.live), slices.Clone(to.used), slices.Clone(to.advised)
	p.idle = make(map[*group][]*host, len(to.idle))
	for g, hosts := range to.idle {
		p.idle[g] = slices.Clone(hosts)
	}
	for h, machine := range to.machines {
		h.machine = machine
	}
	for g, opened := range to.opened {
		g.opened = opened
	}
	for i := range to.budgets {
		*p.budgets[i] = to.budgets[i]
		p.budgets[i].hosts = maps.Clone(to.budgets[i].hosts)
	}
}
