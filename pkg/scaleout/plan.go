package scaleout

import (
	"slices"

	"github.com/mica-gpu/mica/pkg/scaleout/fit"
)

// plan is where pods are so far. It is immutable: each method that places something returns another plan, so a caller
// tries a placement and may drop the result.
type plan struct {
	*planner
	shared fit.Shared
	// machines are what is left of the hosts, by their indexes.
	machines vector[*fit.Machine]
	// taken has the coming hosts with pods, by their indexes; idle counts those without.
	taken vector[bool]
	idle  int
	// used are the coming hosts with pods and the opened hosts, in the order of their first pods. Hosts opened in
	// groups that only an administrator scales are advised instead.
	used, advised vector[*host]
	// opened counts the nodes that the plan requests, by the indexes of groups.
	opened []int
	// spent is what is spent of the budgets, and uses are those of named claims, by their indexes.
	spent []spent
	uses  vector[use]
}

// use is the use of a named claim in the plan.
type use struct {
	// users counts the placed pods that use it.
	users int
	// host is the one on which the plan has allocated it, or nil.
	host *host
}

func (p *plan) machine(h *host) *fit.Machine { return p.machines.at(h.index) }

// put places a pod on the host, at the expense of payers. left is the host's machine with the pod.
func (p *plan) put(h *host, left *fit.Machine, payers []*budget) *plan {
	next := *p
	next.shared = p.shared.Commit(left)
	next.machines = p.machines.with(h.index, left)
	return next.charge(h, payers)
}

// take makes an idle host a used one.
func (p *plan) take(h *host) *plan {
	next := *p
	next.used = p.used.append(h)
	next.taken = p.taken.with(h.index, true)
	next.idle--
	return &next
}

// isIdle reports whether a host is coming and has no pods.
func (p *plan) isIdle(h *host) bool { return h.stage == coming && !p.taken.at(h.index) }

// idleHosts are the idle hosts, group by group.
func (p *plan) idleHosts() []*host {
	var idle []*host
	for _, g := range append([]*group{nil}, p.groups...) {
		for _, h := range p.coming[g] {
			if p.isIdle(h) {
				idle = append(idle, h)
			}
		}
	}
	return idle
}

// open requests a node of the group, at the expense of payers.
func (p *plan) open(g *group, payers []*budget) (*plan, *host) {
	next := *p
	h := &host{index: p.machines.len, stage: opened, object: g.Template.Node, group: g, machine: g.empty, gpus: g.GPUs}
	next.machines = p.machines.append(g.empty)
	next.opened = slices.Clone(p.opened)
	next.opened[g.index]++
	if g.Advised {
		next.advised = p.advised.append(h)
	} else {
		next.used = p.used.append(h)
	}
	return next.chargeAll(h, payers), h
}

// use records that a pod uses named claims on the host.
func (p *plan) use(pod *pending, claims []*namedClaim, h *host) *plan {
	next := *p
	for _, claim := range claims {
		now := next.uses.at(claim.index)
		if !claim.isUser(pod.pod) {
			now.users++
		}
		if !claim.allocated() {
			now.host = h
		}
		next.uses = next.uses.with(claim.index, now)
	}
	return &next
}

// hostOf is the host on which the plan has allocated the claim, or nil.
func (p *plan) hostOf(claim *namedClaim) *host { return p.uses.at(claim.index).host }

// users counts the pods that use a claim.
func (p *plan) users(claim *namedClaim) int {
	return len(claim.object.Status.ReservedFor) + p.uses.at(claim.index).users
}

// full reports whether the group is at its maximum, with the nodes that the plan requests.
func (p *plan) full(g *group) bool { return g.Max != nil && g.Size+p.opened[g.index] >= *g.Max }
