package scaleout

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// placing is a plan in the making, with the nodes to request.
type placing struct {
	plan *plan
	// asks are the requests for opened hosts.
	asks map[*host]*NewNode
}

// pods places the pods of all kinds, and opens hosts for them.
func (m *placing) pods(ctx context.Context, kinds []*kind) error {
	for _, b := range m.plan.batches(kinds) {
		place := m.batch
		switch {
		case b.on != nil:
			place = m.nominee
		case len(b.kind.named) > 0:
			place = m.sharers
		}
		if err := place(ctx, b); err != nil {
			return err
		}
	}
	return nil
}

// batch is a set of pods that are alike and equally urgent.
type batch struct {
	kind     *kind
	priority int32
	pods     []*pending
	// payers are their budgets.
	payers []*budget
	// on is the node for which the one pod is nominated; nil: the pods are not nominated.
	on *host
}

// batches are the pods in the order of placement, without those that are held or gated.
func (p *planner) batches(kinds []*kind) []batch {
	var all, nominees []batch
	for _, k := range kinds {
		if k.example == nil {
			continue
		}
		for _, pod := range k.pods {
			if pod.why != "" {
				continue
			}
			if on := p.node(pod.nominated); on != nil {
				nominees = append(nominees, p.nominee(pod, on))
				continue
			}
			last := len(all) - 1
			payers := p.payers(pod.pod.Namespace)
			if last < 0 || all[last].kind != k || all[last].priority != priority(pod.pod) || !slices.Equal(all[last].payers, payers) {
				all = append(all, batch{kind: k, priority: priority(pod.pod), payers: payers})
				last++
			}
			all[last].pods = append(all[last].pods, pod)
		}
	}
	all = append(all, nominees...)
	slices.SortFunc(all, nomineesFirst)
	return all
}

// batch places the pods of a batch, and opens hosts for them.
func (m *placing) batch(ctx context.Context, b batch) error {
	search, err := m.plan.search(ctx, b.kind, len(b.pods))
	if err != nil {
		return err
	}
	search.payers = b.payers
	for i, pod := range b.pods {
		f, err := search.next(ctx, m.plan, len(b.pods)-i)
		if err != nil {
			return err
		}
		if f.host == nil {
			for _, rest := range b.pods[i:] {
				rest.why = b.kind.aborts
			}
			return m.plan.holdBack(ctx, b.kind, b.pods[i:], b.payers)
		}
		m.put(f, pod)
	}
	return nil
}

// sharers places pods that may share a claim: the first pod takes the claim to a host, and the others have to go there.
func (m *placing) sharers(ctx context.Context, b batch) error {
	for i, pod := range b.pods {
		f, err := m.plan.hostForSharer(ctx, pod, len(b.pods)-i)
		if err != nil {
			return err
		}
		if f.host != nil {
			m.putSharing(f, pod)
		}
	}
	return nil
}

// putSharing places a pod on the host, with the claims that it names.
func (m *placing) putSharing(f found, pod *pending) {
	m.put(f, pod)
	m.plan = m.plan.use(pod, pod.kind.named, f.host)
}

// put places a pod on the host.
func (m *placing) put(f found, pod *pending) {
	m.plan = f.plan.put(f.host, f.left, f.plan.payers(pod.pod.Namespace))
	pod.host = f.host
	if f.host.stage != opened {
		return
	}
	ask := m.ask(f.host, pod.kind.id)
	ask.Pods = append(ask.Pods, types.NamespacedName{Namespace: pod.pod.Namespace, Name: pod.pod.Name})
	ask.Requests = total(ask.Requests, pod.kind.requests)
}

// ask is the request for an opened host, for which a kind is noted.
func (m *placing) ask(h *host, kind string) *NewNode {
	if m.asks == nil {
		m.asks = map[*host]*NewNode{}
	}
	if m.asks[h] == nil {
		m.asks[h] = &NewNode{}
	}
	if ask := m.asks[h]; !slices.Contains(ask.Kinds, kind) {
		ask.Kinds = append(ask.Kinds, kind)
	}
	return m.asks[h]
}

// total adds up requests.
func total(sum, more corev1.ResourceList) corev1.ResourceList {
	if sum == nil {
		sum = corev1.ResourceList{}
	}
	for name, quantity := range more {
		have := sum[name]
		have.Add(quantity)
		sum[name] = have
	}
	return sum
}
