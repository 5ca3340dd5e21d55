package fit

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// neighborhood knows what affinity between pods reads: a pod's namespace, the labels that terms name, and its own
// required anti-affinity on one node.
type neighborhood struct {
	// asked reports whether any pod has required affinity or anti-affinity. labels are those that their terms name.
	asked  bool
	labels map[string]bool
	known  map[string]*neighbor
	// somewhere has the neighbors on all machines.
	somewhere map[*neighbor]bool
}

// neighbor stands for all pods that affinity cannot distinguish. It is immutable.
type neighbor struct {
	serial    int
	namespace string
	labels    labels.Set
	repels    []term
}

// term is a required affinity or anti-affinity to pods on the same node.
type term struct {
	everywhere bool
	namespaces []string
	selector   labels.Selector
	text       string
}

func newNeighborhood(pods []*corev1.Pod) neighborhood {
	n := neighborhood{labels: map[string]bool{}, known: map[string]*neighbor{}, somewhere: map[*neighbor]bool{}}
	for _, pod := range pods {
		n.readTerms(pod)
	}
	return n
}

// readTerms adds the labels that the pod's terms name.
func (n *neighborhood) readTerms(pod *corev1.Pod) {
	for _, t := range slices.Concat(required(pod), repelled(pod)) {
		n.asked = true
		if t.LabelSelector == nil {
			continue
		}
		for key := range t.LabelSelector.MatchLabels {
			n.labels[key] = true
		}
		for _, r := range t.LabelSelector.MatchExpressions {
			n.labels[r.Key] = true
		}
	}
}

// required are the pod's required affinity terms, repelled its anti-affinity terms.
func required(pod *corev1.Pod) []corev1.PodAffinityTerm {
	if pod.Spec.Affinity == nil || pod.Spec.Affinity.PodAffinity == nil {
		return nil
	}
	return pod.Spec.Affinity.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution
}

func repelled(pod *corev1.Pod) []corev1.PodAffinityTerm {
	if pod.Spec.Affinity == nil || pod.Spec.Affinity.PodAntiAffinity == nil {
		return nil
	}
	return pod.Spec.Affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution
}

// of returns the neighbor of a pod; nil if no pod has affinities.
func (n *neighborhood) of(pod *corev1.Pod) *neighbor {
	if !n.asked {
		return nil
	}
	known := labels.Set{}
	for key := range n.labels {
		if value, ok := pod.Labels[key]; ok {
			known[key] = value
		}
	}
	var s signature
	s.text(pod.Namespace)
	for _, key := range slices.Sorted(maps.Keys(known)) {
		s.text(key)
		s.text(known[key])
	}
	s.text("")
	anti := repelled(pod)
	for i := range anti {
		s.message(&anti[i])
	}
	key := string(s)
	if n.known[key] == nil {
		n.known[key] = &neighbor{serial: len(n.known), namespace: pod.Namespace, labels: known, repels: understood(pod, anti)}
	}
	return n.known[key]
}

// notePods records the pods of a node.
func (c *Cluster) notePods(pods []*corev1.Pod) {
	for _, pod := range pods {
		if which := c.neighbors.of(pod); which != nil && !Ended(pod) {
			c.neighbors.somewhere[which] = true
		}
	}
}

// understood are the terms of a running pod that depend on one node alone. Its anti-affinity to pods in its zone, or in
// namespaces by their labels, is left to the scheduler.
func understood(pod *corev1.Pod, all []corev1.PodAffinityTerm) []term {
	var terms []term
	for i := range all {
		if t, err := newTerm(pod, &all[i]); err == nil {
			terms = append(terms, t)
		}
	}
	return terms
}

// errOtherNodes says why some terms are not supported.
var errOtherNodes = errors.New("it depends on what runs on other nodes, which is not planned here; use the topology key kubernetes.io/hostname, or make it preferred")

func newTerm(pod *corev1.Pod, t *corev1.PodAffinityTerm) (term, error) {
	if t.TopologyKey != corev1.LabelHostname {
		return term{}, fmt.Errorf("the topology key is %q: %w", t.TopologyKey, errOtherNodes)
	}
	selector, err := metav1.LabelSelectorAsSelector(t.LabelSelector)
	if err != nil {
		return term{}, fmt.Errorf("its label selector is not valid: %w", err)
	}
	parsed := term{selector: selector, namespaces: t.Namespaces, text: metav1.FormatLabelSelector(t.LabelSelector)}
	switch s := t.NamespaceSelector; {
	case s == nil && len(t.Namespaces) == 0:
		parsed.namespaces = []string{pod.Namespace}
	case s == nil:
	case len(s.MatchLabels) == 0 && len(s.MatchExpressions) == 0:
		parsed.everywhere = true
	default:
		return term{}, errors.New("it selects namespaces by their labels, which are not known here; list the namespaces instead")
	}
	return parsed, nil
}

func (t *term) matches(n *neighbor) bool {
	return n != nil && (t.everywhere || slices.Contains(t.namespaces, n.namespace)) && t.selector.Matches(n.labels)
}

func matchesAll(terms []term, n *neighbor) bool {
	for i := range terms {
		if !terms[i].matches(n) {
			return false
		}
	}
	return true
}

// pastNeighbors is the miss for a taken port, or for the affinity of the pod or of pods on the machine.
func (s Shared) pastNeighbors(m *Machine, p *Pod) *Miss {
	if miss := m.load.missOfPorts(p); miss != nil {
		return miss
	}
	if p.self == nil {
		return nil
	}
	if len(p.affinity) > 0 && !s.attracted(m, p) {
		return &Miss{Reason: ReasonPods, Text: fmt.Sprintf("the pod has to be on a node with a pod that matches %s, and this has none", p.affinity[0].text)}
	}
	if !m.traits.named() {
		return nil // the node counts for no affinity
	}
	for _, n := range m.load.neighbors {
		for i := range p.antiAffinity {
			if p.antiAffinity[i].matches(n) {
				return &Miss{Reason: ReasonPods, Text: fmt.Sprintf("the pod must not be on a node with a pod that matches %s, and this has one", p.antiAffinity[i].text)}
			}
		}
		for i := range n.repels {
			if n.repels[i].matches(p.self) {
				return &Miss{Reason: ReasonPods, Text: fmt.Sprintf("a pod on the node must not be with pods that match %s", n.repels[i].text)}
			}
		}
	}
	return nil
}

// attracted reports whether the pod's affinity allows the machine. The first of pods that have to be together may be
// anywhere.
func (s Shared) attracted(m *Machine, p *Pod) bool {
	if !m.traits.named() {
		return false
	}
	for _, n := range m.load.neighbors {
		if matchesAll(p.affinity, n) {
			return true
		}
	}
	if !matchesAll(p.affinity, p.self) {
		return false
	}
	for n := range s.somewhere {
		if matchesAll(p.affinity, n) {
			return false
		}
	}
	return true
}
