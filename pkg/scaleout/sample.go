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

// Replica is a replica that a workload might add. The plan counts for how many of them there is room once all
// pending pods are placed; it never grows a group for one.
//
// It shares one thing with pending pods: labels that its required affinity names tell kinds of pods apart.
type Replica struct {
	// ID names the replica's Supply. Two may have the same.
	ID string
	// Pod as it would be created, with a namespace and without a node. Its claims are made of the snapshot's
	// templates; all pods like it share a claim that it names itself. Its priority and its scheduling gates do not
	// count. Nil if Claim or Gang is set.
	Pod *corev1.Pod
	// Gang are the pods of a replica that serves only with all of them: there is room for all, or for none. Each is
	// as Pod.
	Gang []Member
	// Claim is that of a pod that asks for nothing but the claim's devices, and tolerates every taint of a node but
	// those of Kubernetes itself.
	Claim *resourceapi.ResourceClaimSpec
}

// Member is a number of pods of a gang that are alike.
type Member struct {
	Pod   *corev1.Pod
	Count int
}

// Supply is for how many more replicas there is room: package supply counts it.
type Supply = supply.Supply

// sample is a number of Replicas that are alike, for which room is counted once.
type sample struct {
	// kind is the hardest of parts.
	kind *kind
	// parts are the pods of a replica, each kind once. Their kinds are never those that wait: what counting finds
	// out does not change the decision.
	parts []part
	// usable says where the pods may go, besides what they ask for themselves.
	usable func(*corev1.Node) bool
	// payers are the budgets of the pods' namespace; for a claim, those of the cluster.
	payers []*budget
	// at are the replicas' places in the snapshot.
	at []int
}

// part is a number of a replica's pods that are alike.
type part struct {
	kind  *kind
	count int
}

// anyNumber is of pods like a replica: more than one, so that the claims which it names are shared.
const anyNumber = 2

// readSamples tells the replicas apart, those first that are easy to count.
func (p *planner) readSamples(all []Replica) []*sample {
	known := map[string]*sample{}
	for i := range all {
		read := p.readSample(&all[i])
		// Pods that are alike may be paid from different budgets.
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
	p.claims.namedBy(pod) // they are known from now on
	k := p.kindOf(pod, anyNumber)
	k.pods = []*pending{{pod: pod, kind: k}}
	k.measure()
	return k
}

// countSteps ends the counting of room: the pods that wait are planned already. It is enough for tens of
// thousands of replicas, and takes some seconds. Claims for which the search is exponential use it up, but
// they are counted last.
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

// withClaims is the plan with the claims that one pending pod alone names where the pod is: in the plan they
// were like the pod's own, but replicas would share them.
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
