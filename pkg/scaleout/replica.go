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
		if known[id] == nil {
			known[id] = read
		}
		known[id].at = append(known[id].at, i)
	}
	return slices.SortedFunc(maps.Values(known), func(a, b *replica) int {
		return cmp.Or(a.kind.size.compare(b.kind.size), cmp.Compare(a.kind.id, b.kind.id), cmp.Compare(a.namespace, b.namespace))
	})
}

func (p *planner) readReplica(s *Replica) *replica {
	everywhere := func(*corev1.Node) bool { return true }
	switch {
	case s.Pod != nil:
		p.claims.namedBy(s.Pod) // they are known from now on
		k := p.kindOf(s.Pod, anyNumber)
		k.pods = []*pending{{pod: s.Pod, kind: k}}
		k.measure()
		return &replica{kind: k, usable: everywhere, namespace: s.Pod.Namespace}
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
