package scaleout

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/mica-gpu/mica/pkg/scaleout/fit"
)

// reserve is a headroom with its kind.
type reserve struct {
	Headroom
	// kind is nil if there is a problem.
	kind    *kind
	problem string
}

// reserves reads the headrooms.
func (p *planner) reserves(all []Headroom) []reserve {
	var read []reserve
	for _, h := range all {
		r := reserve{Headroom: h}
		var err error
		if r.kind, err = p.kindOfClaim("headroom/", h.Name, h.Claim); err != nil {
			r.problem = err.Error()
		}
		read = append(read, r)
	}
	return read
}

// headroom keeps devices free that the pods have left. The headrooms take their turns by name.
func (m *placing) headroom(ctx context.Context, all []reserve) ([]HeadroomDecision, error) {
	if len(all) == 0 {
		return nil, nil
	}
	order := m.plan.busyFirst()
	decisions := make([]HeadroomDecision, len(all))
	turns := make([]int, len(all))
	for i := range turns {
		turns[i] = i
	}
	slices.SortFunc(turns, func(a, b int) int { return cmp.Compare(all[a].Name, all[b].Name) })
	for _, i := range turns {
		d, err := m.keepFree(ctx, all[i], order)
		if err != nil {
			return nil, err
		}
		decisions[i] = d
	}
	return decisions, nil
}

// busyFirst are the live hosts, those in use first: an autoscaler does not remove nodes in use.
func (p *plan) busyFirst() []*host {
	order := slices.Clone(p.live)
	idle := map[*fit.Machine]bool{}
	for _, h := range order {
		m := p.machine(h)
		if _, known := idle[m]; !known {
			idle[m] = !inUse(m)
		}
	}
	slices.SortStableFunc(order, func(a, b *host) int { return falseFirst(idle[p.machine(a)], idle[p.machine(b)]) })
	return order
}

// keepFree keeps the devices of one headroom free. It tries live hosts in this order.
func (m *placing) keepFree(ctx context.Context, r reserve, order []*host) (HeadroomDecision, error) {
	d := HeadroomDecision{Name: r.Name, Problem: r.problem}
	if r.kind == nil {
		return d, nil
	}
	search := &search{kind: r.kind, order: order, exhausted: map[*group]bool{}, payers: m.plan.payers(""),
		allowed: r.allows, usable: func(node *corev1.Node) bool { return systemTaint(node) == "" }}
	for i := range r.Devices {
		f, err := search.next(ctx, m.plan, r.Devices-i)
		if err != nil {
			return d, err
		}
		if f.host == nil {
			d.Problem, err = m.plan.whyLacking(ctx, r, r.Devices-i)
			return d, err
		}
		m.plan = f.plan.put(f.host, f.left, nil)
		d.count(f.host)
		if f.host.stage == opened {
			m.ask(f.host, r.kind.id)
		}
	}
	slices.Sort(d.Nodes)
	return d, nil
}

// allows reports whether devices on nodes of the group count.
func (r reserve) allows(g *group) bool {
	return g != nil && (len(r.Groups) == 0 || slices.Contains(r.Groups, g.Name))
}

// count counts a device that is kept free on a host.
func (d *HeadroomDecision) count(h *host) {
	switch h.stage {
	case live:
		d.Free++
		if !slices.Contains(d.Nodes, h.name) {
			d.Nodes = append(d.Nodes, h.name)
		}
	case coming:
		d.Coming++
	case opened:
		d.Demanded++
	}
}

// systemTaint says why a node takes no pods at all; empty: it takes some. Pods should not tolerate the taints that
// Kubernetes itself puts on nodes.
func systemTaint(node *corev1.Node) string {
	if node.Spec.Unschedulable {
		return "the node is cordoned"
	}
	for i := range node.Spec.Taints {
		t := &node.Spec.Taints[i]
		if t.Effect != corev1.TaintEffectPreferNoSchedule && strings.HasPrefix(t.Key, "node.kubernetes.io/") {
			return fmt.Sprintf("the node has the taint %s, by which Kubernetes itself keeps pods away: headroom on it would be of use to none", t.ToString())
		}
	}
	return ""
}

// whyLacking says why the rest of a headroom cannot be kept free.
func (p *plan) whyLacking(ctx context.Context, h reserve, rest int) (string, error) {
	k := h.kind
	var whys []string
	if k.aborts != "" {
		whys = append(whys, k.aborts)
	}
	for _, g := range p.groups {
		if !h.allows(g) {
			continue
		}
		found, err := p.groupFit(ctx, g, k)
		switch {
		case err != nil:
			return "", err
		case found.Miss != nil:
			whys = append(whys, fmt.Sprintf("group %s: %s", g.Name, found.Miss.Text))
		case found.Blocked != "":
			whys = append(whys, fmt.Sprintf("group %s: %s", g.Name, found.Blocked))
		case systemTaint(g.Template.Node) != "":
			whys = append(whys, fmt.Sprintf("group %s: %s", g.Name, systemTaint(g.Template.Node)))
		default:
			if b, why := p.refused(p.payers(""), g); b != nil {
				whys = append(whys, why)
			}
		}
	}
	for _, name := range h.Groups {
		if !slices.ContainsFunc(p.groups, func(g *group) bool { return g.Name == name }) {
			whys = append(whys, fmt.Sprintf("group %s does not exist", name))
		}
	}
	if len(whys) == 0 {
		whys = []string{"there are no node groups: create a GPUNodeGroup"}
	}
	return fmt.Sprintf("%d of %d devices cannot be kept: %s", rest, h.Devices, strings.Join(whys, "; ")), nil
}
