package scaleout

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/mica-gpu/mica/pkg/scaleout/supply"
)

// Replica is a replica that a workload might add. The planner counts the room for it once all pending pods are placed,
// and grows no group for it.
//
// It affects pending pods in one way: labels in its required affinity distinguish kinds of pods.
type Replica struct {
	// ID is that of its Supply. It need not be unique.
	ID string
	// Pod is as it would be created, with a namespace and without a node. Its claims are made from the snapshot's
	// templates; all replicas share a claim that it names itself. Its priority and scheduling gates do not count. Nil
	// if Claim or Gang is set.
	Pod *corev1.Pod
	// Gang are the pods of a replica that needs all of them: there is room for all or for none. Each is like Pod.
	Gang []Member
	// Claim is that of a pod that asks for the claim's devices alone. The pod tolerates all taints of nodes but those
	// of Kubernetes itself.
	Claim *resourceapi.ResourceClaimSpec
}

// Member is a set of pods of a gang that are alike.
type Member struct {
	Pod   *corev1.Pod
	Count int
}

// Supply is the number of replicas for which there is room. Package supply counts it.
type Supply = supply.Supply

// sample is a set of Replicas that are alike. Room is counted once for all of them.
type sample struct {
	// kind is the hardest of parts.
	kind *kind
	// parts are the pods of a replica, each kind once. These kinds are separate from those of pending pods, so that
	// counting does not change the decision.
	parts []part
	// usable reports whether the pods may go to a node, besides what they ask for.
	usable func(*corev1.Node) bool
	// payers are the budgets of the pods' namespace; for a claim, those of the cluster.
	payers []*budget
	// at are the indexes of the replicas in the snapshot.
	at []int
}

// part is a set of a replica's pods that are alike.
type part struct {
	kind  *kind
	count int
}

// anyNumber is the number of pods like a replica. It is more than one, so that they share the claims that they name.
const anyNumber = 2

// readSamples groups replicas that are alike. Samples that are easy to count come first.
func (p *planner) readSamples(all []Replica) []*sample {
	known := map[string]*sample{}
	for i := range all {
		read := p.readSample(&all[i])
		// Different budgets may pay for pods that are alike.
		id := read.kind.id
		for _, b := range read.payers {
			id += "\x00" + b.Name
		}
		for _, part := range read.parts {
			id += fmt.Sprint("\x00", part.kind.id, part.count)
		}
		if known[id] == nil {
			known[id] = read
		}
		known[id].at = append(known[id].at, i)
	}
	return slices.SortedFunc(maps.Values(known), func(a, b *sample) int {
		return cmp.Or(cmp.Compare(len(a.parts), len(b.parts)), a.kind.size.compare(b.kind.size), cmp.Compare(a.kind.id, b.kind.id), cmp.Compare(a.at[0], b.at[0]))
	})
}

func (p *planner) readSample(r *Replica) *sample {
	read := &sample{usable: anywhere, payers: p.payers("")}
	members := r.Gang
	if r.Pod != nil {
		members = []Member{{Pod: r.Pod, Count: 1}}
	}
	for _, member := range members {
		read.add(p.kindOfReplica(member.Pod), member.Count)
		read.payers = p.payers(member.Pod.Namespace)
	}
	switch {
	case len(members) > 0:
	case r.Claim == nil:
		read.add(unplanned(fmt.Errorf("there is neither a pod nor a claim to count room for")), 1)
	default:
		k, err := p.kindOfClaim("claim/", r.ID, *r.Claim)
		if err != nil {
			k = unplanned(err)
		} else {
			k.id = "claim/" + k.example.Kind()
		}
		read.usable = func(node *corev1.Node) bool { return systemTaint(node) == "" }
		read.add(k, 1)
	}
	read.kind = slices.MaxFunc(read.parts, func(a, b part) int {
		return cmp.Or(falseFirst(a.kind.example == nil, b.kind.example == nil), a.kind.size.compare(b.kind.size))
	}).kind
	return read
}

func anywhere(*corev1.Node) bool { return true }

func (s *sample) add(k *kind, count int) {
	if i := slices.IndexFunc(s.parts, func(known part) bool { return known.kind.id == k.id }); i >= 0 {
		s.parts[i].count += count
		return
	}
	s.parts = append(s.parts, part{k, count})
}

// kindOfReplica is the kind of any number of pods like this one.
func (p *planner) kindOfReplica(pod *corev1.Pod) *kind {
	p.claims.namedBy(pod) // adds them to the named claims
	k := p.kindOf(pod, anyNumber)
	k.pods = []*pending{{pod: pod, kind: k}}
	k.measure()
	return k
}

// countSteps limits the counting of room. It suffices for tens of thousands of replicas, and takes a few seconds.
// Claims with an exponential search exhaust it, but they are counted last.
const countSteps = 1 << 19

// Supplies counts room for the replicas as if only the pods had been placed: replicas also get the devices that headroom
// keeps. The only error is that of the context.
func (p *Planner) Supplies(ctx context.Context) ([]Supply, error) {
	if _, err := p.Decide(ctx); err != nil || len(p.samples) == 0 {
		return nil, err
	}
	on := p.afterPods
	defer on.cluster.Allow(p.countSteps)()
	hosts := on.available()
	samples := make([]supply.Sample, len(p.samples))
	for i, s := range p.samples {
		samples[i] = supply.Sample{Problem: s.kind.problem, Trial: func() supply.Trial { return &trial{start: on, plan: on} }}
		for _, part := range s.parts {
			samples[i].Members = append(samples[i].Members, supply.Member{Pods: &pods{plan: on, sample: s, kind: part.kind, hosts: hosts}, Count: part.count})
		}
	}
	counted := supply.Count(ctx, samples)
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("count room for %d samples: %w", len(counted), err)
	}
	all := make([]Supply, len(p.Snapshot.Replicas))
	for i, s := range p.samples {
		for _, at := range s.at {
			all[at] = counted[i]
			all[at].ID = p.Snapshot.Replicas[at].ID
		}
	}
	return all, nil
}

// withClaims is the plan with the claims that only one pending pod names, on the host of the pod. The plan treated them
// as the pod's own, but replicas would share them.
func (p *plan) withClaims(kinds []*kind) *plan {
	for _, k := range kinds {
		for _, pod := range k.pods {
			if pod.host != nil && len(k.named) == 0 {
				if claims := p.claims.namedBy(pod.pod); len(claims) > 0 {
					p = p.use(pod, claims, pod.host)
				}
			}
		}
	}
	return p
}
