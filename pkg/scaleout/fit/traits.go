package fit

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	schedulinghelper "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/klog/v2"
)

// traits are the properties of a node that pods have conditions on, besides devices and room: labels, taints and
// whether it is cordoned. It is immutable.
type traits struct {
	node *corev1.Node
	// offers are the extended resources that the node itself offers, among those that devices can provide.
	offers map[corev1.ResourceName]bool
	// misses caches missOfNode.
	misses map[*Pod]*Miss
}

// traitsOf returns the one value for all nodes that no pod can distinguish.
func (c *Cluster) traitsOf(node *corev1.Node) *traits {
	key := string(c.traitsSignature(node))
	if c.separate {
		key = strconv.Itoa(len(c.traits))
	}
	if known := c.traits[key]; known != nil {
		return known
	}
	h := &traits{node: node, offers: map[corev1.ResourceName]bool{}, misses: map[*Pod]*Miss{}}
	for _, name := range c.words.extended {
		h.offers[name] = offers(node, name)
	}
	c.traits[key] = h
	return h
}

// offers reports whether the node itself offers a resource, so that devices do not provide it.
func offers(node *corev1.Node, name corev1.ResourceName) bool {
	quantity := node.Status.Allocatable[name]
	return quantity.Value() > 0
}

func (c *Cluster) traitsSignature(node *corev1.Node) signature {
	s := make(signature, 0, 256)
	if c.words.names[node.Name] {
		s.text(node.Name)
	} else {
		s.text("")
	}
	for _, key := range slices.Sorted(maps.Keys(c.words.labels)) {
		m := c.words.labels[key]
		value, ok := node.Labels[key]
		s.flag(ok)
		named := ok && (m.ordered || m.values[value])
		s.flag(named)
		if named {
			s.text(value)
		}
	}
	s.flag(node.Spec.Unschedulable)
	for i := range node.Spec.Taints {
		taint := &node.Spec.Taints[i]
		if Repels(taint) {
			s.text(taint.Key)
			s.text(taint.Value)
			s.text(string(taint.Effect))
		}
	}
	s.text("")
	for _, name := range c.words.extended {
		s.flag(offers(node, name))
	}
	_, named := node.Labels[corev1.LabelHostname]
	s.flag(named)
	return s
}

// Repels reports whether pods have to tolerate the taint to be placed on the node.
func Repels(taint *corev1.Taint) bool {
	return taint.Effect == corev1.TaintEffectNoSchedule || taint.Effect == corev1.TaintEffectNoExecute
}

// named reports whether the node has the label that affinity to pods on the same node needs.
func (h *traits) named() bool {
	_, ok := h.node.Labels[corev1.LabelHostname]
	return ok
}

// miss is the miss for a property of the node.
func (h *traits) miss(p *Pod) *Miss {
	if known, ok := h.misses[p]; ok {
		return known
	}
	miss := h.missOfNode(p)
	h.misses[p] = miss
	return miss
}

func (h *traits) missOfNode(p *Pod) *Miss {
	// As in the scheduler, a term that cannot be parsed matches nothing. A cordon comes later: on a node that the pod
	// does not ask for, it is not the reason.
	if ok, _ := p.nodeAffinity.Match(h.node); !ok {
		return &Miss{Reason: ReasonNodeAffinity, Text: h.missOfAffinity(p)}
	}
	if h.node.Spec.Unschedulable && !tolerates(p.tolerations, &corev1.Taint{Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule}) {
		return &Miss{Reason: ReasonUnschedulable, Text: "the node is cordoned"}
	}
	for i := range h.node.Spec.Taints {
		taint := &h.node.Spec.Taints[i]
		if Repels(taint) && !tolerates(p.tolerations, taint) {
			return &Miss{Reason: ReasonTaint, Text: fmt.Sprintf("the node has the taint %s, which the pod does not tolerate", taint.ToString())}
		}
	}
	return nil
}

func tolerates(tolerations []corev1.Toleration, taint *corev1.Taint) bool {
	return schedulinghelper.TolerationsTolerateTaint(klog.Logger{}, tolerations, taint, false)
}

func (h *traits) missOfAffinity(p *Pod) string {
	for _, key := range slices.Sorted(maps.Keys(p.nodeSelector)) {
		want := p.nodeSelector[key]
		switch value, ok := h.node.Labels[key]; {
		case !ok:
			return fmt.Sprintf("the pod's nodeSelector asks for the label %s=%s, and the node has no label %s", key, want, key)
		case value != want:
			return fmt.Sprintf("the pod's nodeSelector asks for the label %s=%s, and the node has %s=%s", key, want, key, value)
		}
	}
	return fmt.Sprintf("the node matches none of the terms of the pod's required node affinity: %s", terms(p.nodeTerms))
}

// terms formats node selector terms.
func terms(all []corev1.NodeSelectorTerm) string {
	var texts []string
	for _, term := range all {
		var parts []string
		for _, r := range slices.Concat(term.MatchExpressions, term.MatchFields) {
			part := fmt.Sprintf("%s %s", r.Key, r.Operator)
			if len(r.Values) > 0 {
				part += " " + strings.Join(r.Values, ",")
			}
			parts = append(parts, part)
		}
		texts = append(texts, strings.Join(parts, " and "))
	}
	return strings.Join(texts, "; or ")
}

// missOfClaims is the miss for a claim that is allocated for other nodes.
func (h *traits) missOfClaims(p *Pod) *Miss {
	for _, b := range p.bound {
		if !b.selector.Match(h.node) {
			return &Miss{Reason: ReasonClaimNode, Text: fmt.Sprintf("claim %q is allocated where this node is not: %s", b.name, terms(b.terms))}
		}
	}
	return nil
}
