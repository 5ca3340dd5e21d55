package scaleout

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/mica-gpu/mica/pkg/scaleout/fit"
)

// reserve is a headroom that is read.
type reserve struct {
	Headroom
	// kind is nil where problem says why.
	kind    *kind
	problem string
}

// reserves reads the headrooms.
func (p *planner) reserves(all []Headroom) []reserve {
	var read []reserve
	for _, h := range all {
		kind, err := p.headroomKind(h)
		if err != nil {
			read = append(read, reserve{Headroom: h, problem: err.Error()})
			continue
		}
		read = append(read, reserve{Headroom: h, kind: kind})
	}
	return read
}

// headroom keeps devices free of what the pods have left, each headroom of what those before
// it, by name, have left.
func (p *planner) headroom(ctx context.Context, all []reserve) ([]HeadroomDecision, error) {
	if len(all) == 0 {
		return nil, nil
	}
	p.busyFirst()
	decisions := make([]HeadroomDecision, len(all))
	turns := make([]int, len(all))
	for i := range turns {
		turns[i] = i
	}
	slices.SortFunc(turns, func(a, b int) int { return cmp.Compare(all[a].Name, all[b].Name) })
	for _, i := range turns {
		d, err := p.keepFree(ctx, all[i])
		if err != nil {
			return nil, err
		}
		decisions[i] = d
	}
	return decisions, nil
}

// busyFirst sorts live hosts, so that devices are kept where a node stays for its pods' sake.
func (p *planner) busyFirst() {
	idle := map[*fit.Machine]bool{}
	for _, h := range p.live {
		if _, known := idle[h.machine]; !known {
			idle[h.machine] = !inUse(h.machine)
		}
	}
	slices.SortStableFunc(p.live, func(a, b *host) int { return falseFirst(idle[a.machine], idle[b.machine]) })
}

// keepFree keeps the devices of one headroom.
func (p *planner) keepFree(ctx context.Context, h reserve) (HeadroomDecision, error) {
	d := HeadroomDecision{Name: h.Name, Problem: h.problem}
	if h.kind == nil {
		return d, nil
	}
	search := &search{planner: p, kind: h.kind, order: p.live, exhausted: map[*group]bool{}, payers: p.payers(""),
		allowed: h.allows, usable: func(node *corev1.Node) bool { return systemTaint(node) == "" }}
	for i := range h.Devices {
		host, left, err := search.next(ctx, h.Devices-i)
		if err != nil {
			return d, err
		}
		if host == nil {
			d.Problem, err = p.whyLacking(ctx, h, h.Devices-i)
			return d, err
		}
		p.cluster.Commit(left)
		host.machine = left
		d.count(host, h.kind)
	}
	slices.Sort(d.Nodes)
	return d, nil
}

// allows tells whether devices on nodes of the group count.
func (r reserve) allows(g *group) bool {
	return g != nil && (len(r.Groups) == 0 || slices.Contains(r.Groups, g.Name))
}

// count counts a device that is kept on a host.
func (d *HeadroomDecision) count(h *host, k *kind) {
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
		h.noteKind(k.id)
	}
}

// headroomKind is a pod that asks for one of the devices.
func (p *planner) headroomKind(h Headroom) (*kind, error) {
	example, err := p.claimPod(h.Name, h.Claim)
	if err != nil {
		return nil, err
	}
	return &kind{id: "headroom/" + h.Name, example: example}, nil
}

// claimPod is a pod that asks for a claim and nothing else. It tolerates what pods of the devices
// may: taints of nodes are there to keep others away.
func (p *planner) claimPod(name string, spec resourceapi.ResourceClaimSpec) (*fit.Pod, error) {
	pod := &corev1.Pod{}
	pod.Namespace, pod.Name, pod.UID = "headroom", name, types.UID("headroom/"+name)
	pod.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
	request := "device"
	pod.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: request, ResourceClaimName: &name}}
	claim := &resourceapi.ResourceClaim{Spec: spec}
	claim.Namespace, claim.Name, claim.UID = pod.Namespace, name, pod.UID
	return p.cluster.Pod(pod, []fit.PodClaim{{Name: request, Claim: claim}})
}

// systemTaint says why a node takes no pods at all, or nothing: those taints that Kubernetes itself
// puts on nodes are no pod's to tolerate.
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

// whyLacking says why the rest of a headroom cannot be had.
func (p *planner) whyLacking(ctx context.Context, h reserve, rest int) (string, error) {
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
			if b, why := refused(p.payers(""), g); b != nil {
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
