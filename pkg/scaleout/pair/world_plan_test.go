package pair

import (
	"cmp"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/mica-gpu/mica/pkg/scaleout"
	"github.com/mica-gpu/mica/pkg/scaleout/fit"
	"github.com/mica-gpu/mica/pkg/scaleout/view"
)

// machine is a machine of the simple planner.
type machine struct {
	group, node string
	free        int
	live        bool
	grown       int
}

// plan puts each pod, the largest first, on the first machine with room, and grows the cheapest
// group where there is none.
func (w *world) plan(v *view.View) scaleout.Decision {
	machines := w.machines(v)
	growth := map[string][]scaleout.NewNode{}
	kinds := map[int]*scaleout.Kind{}
	pods := w.pending()
	slices.SortStableFunc(pods, func(a, b *simPod) int { return cmp.Compare(b.needs, a.needs) })
	for _, p := range pods {
		kind := kinds[p.needs]
		if kind == nil {
			kind = &scaleout.Kind{ID: fmt.Sprintf("needs-%d", p.needs)}
			for _, g := range w.groups {
				fits := scaleout.GroupFit{Group: g.name, PerNode: w.known(g) / p.needs}
				if fits.PerNode == 0 {
					fits.Miss = &fit.Miss{Reason: fit.ReasonDevices, Text: fmt.Sprintf("%d devices of %d", w.known(g), p.needs)}
				}
				kind.Groups = append(kind.Groups, fits)
			}
			kinds[p.needs] = kind
		}
		kind.Pods = append(kind.Pods, w.place(p, kind.ID, &machines, v, growth))
	}
	var d scaleout.Decision
	for _, g := range w.groups {
		if len(growth[g.name]) > 0 {
			d.Growth = append(d.Growth, scaleout.Growth{Group: g.name, Nodes: growth[g.name]})
		}
	}
	for _, kind := range kinds {
		d.Kinds = append(d.Kinds, *kind)
	}
	return d
}

// known is how many devices a new node of the group is believed to have.
func (w *world) known(g *simGroup) int {
	if slices.ContainsFunc(g.nodes, func(n *simNode) bool { return n.complete(w.now) }) {
		return g.real
	}
	return g.promised
}

func (w *world) machines(v *view.View) []machine {
	var live, starting []machine
	for i, g := range w.groups {
		for _, n := range g.nodes {
			switch {
			case n.complete(w.now):
				live = append(live, machine{group: g.name, node: n.name, free: w.free(n), live: true})
			case w.now.Sub(n.created) <= g.timeout:
				starting = append(starting, machine{group: g.name, free: w.known(g)})
			}
		}
		for range v.Groups[i].Upcoming {
			starting = append(starting, machine{group: g.name, free: w.known(g)})
		}
	}
	return append(live, starting...)
}

// charged are the devices that are there, coming and asked for.
func (w *world) charged(v *view.View, growth map[string][]scaleout.NewNode) int {
	total := 0
	for i, g := range w.groups {
		total += (len(g.nodes) + v.Groups[i].Upcoming + v.Groups[i].Foreign + len(growth[g.name])) * max(w.known(g), g.real)
	}
	return total
}

func (w *world) place(p *simPod, kind string, machines *[]machine, v *view.View, growth map[string][]scaleout.NewNode) scaleout.PodDecision {
	d := scaleout.PodDecision{Pod: client.ObjectKeyFromObject(p.object), UID: p.object.UID, Outcome: scaleout.Blocked}
	for i := range *machines {
		r := &(*machines)[i]
		if r.free < p.needs {
			continue
		}
		r.free -= p.needs
		d.Group, d.Node = r.group, r.node
		switch {
		case r.grown > 0:
			node := &growth[r.group][r.grown-1]
			node.Pods = append(node.Pods, d.Pod)
			if !slices.Contains(node.Kinds, kind) {
				node.Kinds = append(node.Kinds, kind)
			}
			d.Outcome = scaleout.NeedsNode
		case r.live:
			d.Outcome = scaleout.FitsNode
		default:
			d.Outcome = scaleout.FitsStarting
		}
		return d
	}
	best, over := -1, false
	for i, g := range w.groups {
		size := len(g.nodes) + v.Groups[i].Upcoming + len(growth[g.name])
		full := v.Groups[i].Max != nil && size >= *v.Groups[i].Max
		if w.known(g) < p.needs || v.Groups[i].Closed != "" || full {
			continue
		}
		if w.budget > 0 && w.charged(v, growth)+w.known(g) > w.budget {
			over = true
			continue
		}
		if best < 0 || g.price < w.groups[best].price {
			best = i
		}
	}
	if best < 0 && over {
		d.Outcome = scaleout.OverBudget
	}
	if best < 0 {
		return d
	}
	g := w.groups[best]
	growth[g.name] = append(growth[g.name], scaleout.NewNode{Pods: []types.NamespacedName{d.Pod}, Kinds: []string{kind},
		Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("12")}})
	*machines = append(*machines, machine{group: g.name, free: w.known(g) - p.needs, grown: len(growth[g.name])})
	d.Outcome, d.Group = scaleout.NeedsNode, g.name
	return d
}
