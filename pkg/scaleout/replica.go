package scaleout

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// replica is a number of Replicas that are alike, for which room is counted once.
type replica struct {
	// kind has one pod, which stands for any number. It is never one of the kinds that wait:
	// what is found out in counting is no news of those.
	kind *kind
	// gang are the pods of a replica that is several, each kind once; kind is one of them. Nil where
	// a replica is one pod.
	gang []part
	// usable says where the pods may go, besides what they ask for themselves.
	usable func(*corev1.Node) bool
	// namespace is the pods', whose budgets count.
	namespace string
	// at are their places in the snapshot.
	at []int
}

// anyNumber is of pods like a replica: more than one, so that the claims which it names are shared.
const anyNumber = 2

// readReplicas tells the replicas apart, those first that are easy to count.
func (p *planner) readReplicas(all []Replica) []*replica {
	known := map[string]*replica{}
	for i := range all {
		read := p.readReplica(&all[i])
		// Pods that are alike may be paid of different budgets.
		id := fmt.Sprint(read.kind.id, "\x00", budgetNames(p.payers(read.namespace)))
		for _, member := range read.gang {
			id += fmt.Sprint("\x00", member.kind.id, member.count)
		}
		if known[id] == nil {
			known[id] = read
		}
		known[id].at = append(known[id].at, i)
	}
	return slices.SortedFunc(maps.Values(known), func(a, b *replica) int {
		return cmp.Or(cmp.Compare(len(a.gang), len(b.gang)), a.kind.size.compare(b.kind.size), cmp.Compare(a.kind.id, b.kind.id), cmp.Compare(a.namespace, b.namespace))
	})
}

func (p *planner) readReplica(s *Replica) *replica {
	everywhere := func(*corev1.Node) bool { return true }
	switch {
	case s.Pod != nil:
		return &replica{kind: p.sampleOf(s.Pod), usable: everywhere, namespace: s.Pod.Namespace}
	case len(s.Gang) > 0:
		gang := p.readGang(s.Gang)
		return &replica{kind: hardest(gang), gang: gang, usable: everywhere, namespace: s.Gang[0].Pod.Namespace}
	case s.Claim != nil:
		made, err := p.claimPod(s.ID, *s.Claim)
		if err != nil {
			return &replica{kind: unplanned(err), usable: everywhere}
		}
		k := &kind{id: "claim/" + made.Kind(), example: made}
		k.measureClaims()
		return &replica{kind: k, usable: func(node *corev1.Node) bool { return systemTaint(node) == "" }}
	}
	return &replica{kind: unplanned(fmt.Errorf("there is neither a pod nor a claim to count room for")), usable: everywhere}
}

// sampleOf is the kind of a pod that somebody might add any number of.
func (p *planner) sampleOf(pod *corev1.Pod) *kind {
	p.claims.namedBy(pod) // they are known from now on
	k := p.kindOf(pod, anyNumber)
	k.pods = []*pending{{pod: pod, kind: k}}
	k.measure()
	return k
}
