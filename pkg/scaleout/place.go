package scaleout

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/mica-gpu/mica/pkg/scaleout/fit"
)

// place puts the pods of all kinds on hosts, and opens hosts for them.
func (p *planner) place(ctx context.Context, kinds []*kind) error {
	for _, b := range p.batches(kinds) {
		place := p.placeBatch
		switch {
		case b.on != nil:
			place = p.placeNominee
		case len(b.kind.named) > 0:
			place = p.placeSharing
		}
		if err := place(ctx, b); err != nil {
			return err
		}
	}
	return nil
}

// batch is a number of pods that are alike and equally urgent.
type batch struct {
	kind     *kind
	priority int32
	pods     []*pending
	// payers are their budgets.
	payers []*budget
	// on is the node for which the one pod is nominated; nil: the pods are not nominated.
	on *host
}

// batches are the pods in the order in which they are put on hosts, without those that are
// not to be scheduled yet, or held.
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

// placeBatch puts the pods of a batch on hosts, and opens hosts for them.
func (p *planner) placeBatch(ctx context.Context, b batch) error {
	search, err := p.search(ctx, b.kind, len(b.pods))
	if err != nil {
		return err
	}
	search.payers = b.payers
	for i, pod := range b.pods {
		h, left, err := search.next(ctx, len(b.pods)-i)
		if err != nil {
			return err
		}
		if h == nil {
			for _, rest := range b.pods[i:] {
				rest.why = b.kind.aborts
			}
			return p.holdBack(ctx, b.kind, b.pods[i:], b.payers)
		}
		p.put(h, pod, b.kind.example, left)
	}
	return nil
}

// placeSharing puts pods on hosts that name claims which others may name, too: the first pod
// takes the claim somewhere, and those after it have to go there.
func (p *planner) placeSharing(ctx context.Context, b batch) error {
	for i, pod := range b.pods {
		h, left, err := p.hostForSharer(ctx, pod, len(b.pods)-i)
		if err != nil {
			return err
		}
		if left == nil {
			continue
		}
		as, err := p.variant(b.kind)
		if err != nil {
			as = b.kind.example
		}
		p.putSharing(h, pod, as, left)
	}
	return nil
}

// putSharing puts a pod on the host, and the claims that it names with it.
func (p *planner) putSharing(h *host, pod *pending, as *fit.Pod, left *fit.Machine) {
	p.put(h, pod, as, left)
	for _, claim := range pod.kind.named {
		claim.use(pod.pod)
		if !claim.allocated() {
			claim.host = h
		}
	}
}

// put puts a pod, which is read as a variant of its kind, on the host, of which left is left.
func (p *planner) put(h *host, pod *pending, as *fit.Pod, left *fit.Machine) {
	p.order = append(p.order, placed{pod: pod, as: as, before: h.machine, after: left})
	p.cluster.Commit(left)
	h.machine = left
	pod.host = h
	p.charge(h, p.payers(pod.pod.Namespace))
	if h.stage != opened {
		return
	}
	h.ask.Pods = append(h.ask.Pods, types.NamespacedName{Namespace: pod.pod.Namespace, Name: pod.pod.Name})
	h.ask.Requests = total(h.ask.Requests, pod.kind.requests)
	h.noteKind(pod.kind.id)
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
