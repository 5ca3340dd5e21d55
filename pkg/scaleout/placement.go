package scaleout

import (
	"context"
	"fmt"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/mica-gpu/mica/pkg/scaleout/fit"
)

// Placement is where the plan has put a pending pod, and what the pod gets there. The scheduler may
// choose another node that fits, and with it other devices.
type Placement struct {
	Pod types.NamespacedName
	// Node is the name of a node that exists; empty for one of Group that does not yet, and then New
	// is its number among those of the group that the plan uses, from 1.
	Node, Group string
	New         int
	Claims      []ClaimPlacement
}

// ClaimPlacement is a claim that a pod gets, or shares with pods before it.
type ClaimPlacement struct {
	// Called is how the pod's owner calls it: claim "gpus", extended resource nvidia.com/gpu.
	Called  string
	Results []resourceapi.DeviceRequestAllocationResult
}

// placed is a pod that was put on a host.
type placed struct {
	pod           *pending
	as            *fit.Pod
	before, after *fit.Machine
}

// Placements tells of each pod that the decision has put somewhere, in that order, which devices it
// gets. It is for those who simulate: Decide does not need it. The error is of the context alone.
func (p *Planner) Placements(ctx context.Context) ([]Placement, error) {
	if _, err := p.Decide(ctx); err != nil {
		return nil, err
	}
	cluster := p.plan.cluster
	now := cluster.Checkpoint()
	cluster.Restore(p.start.cluster)
	defer cluster.Restore(now)
	r := replay{plan: p.plan, numbers: map[*host]int{}, ofGroup: map[*group]int{}, shared: map[types.NamespacedName][]resourceapi.DeviceRequestAllocationResult{}}
	placements := make([]Placement, 0, len(p.plan.order))
	for _, one := range p.plan.order {
		made, err := r.placement(ctx, one)
		if err != nil {
			return nil, err
		}
		placements = append(placements, made)
		cluster.Commit(one.after)
	}
	return placements, nil
}

// replay goes through a plan once more.
type replay struct {
	plan *planner
	// numbers are those of hosts that do not exist yet, ofGroup how many a group has of them.
	numbers map[*host]int
	ofGroup map[*group]int
	// shared has what the claims that pods name themselves were given.
	shared map[types.NamespacedName][]resourceapi.DeviceRequestAllocationResult
}

func (r *replay) placement(ctx context.Context, one placed) (Placement, error) {
	pod, h := one.pod.pod, one.pod.host
	made := Placement{Pod: types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}, Node: h.name}
	if h.group != nil {
		made.Group = h.group.Name
	}
	if h.name == "" {
		made.New = r.number(h)
	}
	given, err := r.plan.cluster.Given(ctx, one.before, one.as, fit.Node{Object: h.object, Slices: h.slices})
	if err != nil {
		return Placement{}, fmt.Errorf("find the devices of pod %s: %w", made.Pod, err)
	}
	for _, g := range given {
		made.Claims = append(made.Claims, ClaimPlacement{Called: g.Called, Results: g.Results})
		r.shared[objectName(g.Claim)] = g.Results
	}
	for _, named := range one.pod.kind.named {
		if claim, has := r.before(one, named); has {
			made.Claims = append(made.Claims, claim)
		}
	}
	return made, nil
}

// number tells nodes of a group apart that have no names.
func (r *replay) number(h *host) int {
	if r.numbers[h] == 0 {
		r.ofGroup[h.group]++
		r.numbers[h] = r.ofGroup[h.group]
	}
	return r.numbers[h]
}

// before is what a claim that the pod names was given before the pod came.
func (r *replay) before(one placed, named *namedClaim) (ClaimPlacement, bool) {
	for _, entry := range one.as.Claims() {
		if objectName(entry) == named.name {
			return ClaimPlacement{}, false // it is given now
		}
	}
	made := ClaimPlacement{Called: fmt.Sprintf("claim %q", calledBy(one.pod, named)), Results: r.shared[named.name]}
	if named.allocated() {
		made.Results = named.object.Status.Allocation.Devices.Results
	}
	return made, true
}

// calledBy is the name of a claim in the pod that names it.
func calledBy(pod *pending, named *namedClaim) string {
	for _, podClaim := range pod.pod.Spec.ResourceClaims {
		if podClaim.ResourceClaimName != nil && *podClaim.ResourceClaimName == named.name.Name {
			return podClaim.Name
		}
	}
	return named.name.Name
}
