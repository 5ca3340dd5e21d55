package fit

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// vocabulary is what pods name in their conditions on nodes and devices. Nodes that differ only in other things are the
// same machine.
type vocabulary struct {
	// sealed is set when the first machine is made. A later new word is not added and sets late: the machines were not
	// distinguished by it.
	sealed, late bool

	// read are the attributes, without domain, whose values expressions may read. If everything is set, they may read
	// all.
	read       map[string]bool
	everything bool
	// compared are the attributes that constraints compare between devices: it only counts which values are equal.
	compared map[string]bool
	// attributes caches how the attributes of devices count, once there are machines.
	attributes map[resourceapi.QualifiedName]attribute
	// labels of nodes, and names.
	labels map[string]*mention
	names  map[string]bool
	// resources are those that pods request. Their order is that of load.free.
	resources []corev1.ResourceName
	index     map[corev1.ResourceName]int
	// extended are the resources that devices can provide.
	extended []corev1.ResourceName
}

// attribute says how an attribute of devices counts.
type attribute struct {
	id             string
	hash           uint64
	read, compared bool
}

// mention says how pods name a label.
type mention struct {
	// values are those that pods name. All others count as one.
	values map[string]bool
	// ordered reports whether values are compared as numbers, so that each counts.
	ordered bool
}

func newVocabulary() vocabulary {
	return vocabulary{
		read:       map[string]bool{},
		compared:   map[string]bool{},
		attributes: map[resourceapi.QualifiedName]attribute{},
		labels:     map[string]*mention{},
		names:      map[string]bool{},
		index:      map[corev1.ResourceName]int{},
	}
}

// learn adds a word to a set of the vocabulary.
func (v *vocabulary) learn(set map[string]bool, word string) {
	switch {
	case set[word]:
	case v.sealed:
		v.late = true
	default:
		set[word] = true
	}
}

func (v *vocabulary) reading(names []string, everything bool) {
	for _, name := range names {
		v.learn(v.read, name)
	}
	if everything && !v.everything {
		v.everything, v.late = !v.sealed, v.late || v.sealed
	}
}

// label adds a label of nodes, and values that pods compare it with.
func (v *vocabulary) label(key string, ordered bool, values ...string) {
	m := v.labels[key]
	if m == nil {
		if v.sealed {
			v.late = true
			return
		}
		m = &mention{values: map[string]bool{}}
		v.labels[key] = m
	}
	if ordered && !m.ordered {
		m.ordered, v.late = !v.sealed, v.late || v.sealed
	}
	for _, value := range values {
		v.learn(m.values, value)
	}
}

func (v *vocabulary) nodeSelector(selector *corev1.NodeSelector) {
	if selector == nil {
		return
	}
	for _, term := range selector.NodeSelectorTerms {
		for _, r := range term.MatchExpressions {
			ordered := r.Operator == corev1.NodeSelectorOpGt || r.Operator == corev1.NodeSelectorOpLt
			v.label(r.Key, ordered, r.Values...)
		}
		for _, r := range term.MatchFields {
			if r.Key == metav1.ObjectNameField {
				for _, name := range r.Values {
					v.learn(v.names, name)
				}
			}
		}
	}
}

// resource returns the index of a resource in load.free.
func (v *vocabulary) resource(name corev1.ResourceName) int {
	i, ok := v.index[name]
	if ok {
		return i
	}
	if v.sealed {
		v.late = true
		return 0
	}
	v.index[name] = len(v.resources)
	v.resources = append(v.resources, name)
	return len(v.resources) - 1
}

// stand adds a resource that devices can provide.
func (v *vocabulary) stand(name corev1.ResourceName) {
	switch {
	case slices.Contains(v.extended, name):
	case v.sealed:
		v.late = true
	default:
		v.extended = append(v.extended, name)
	}
}

// tooLate reports whether a word came too late since the last call.
func (v *vocabulary) tooLate() bool {
	late := v.late
	v.late = false
	return late
}

// attribute returns how an attribute counts.
func (v *vocabulary) attribute(name resourceapi.QualifiedName) attribute {
	known, ok := v.attributes[name]
	if !ok {
		id := attributeID(name)
		known = attribute{id: id, hash: hashText(string(name)), read: v.everything || v.read[id], compared: v.compared[id]}
		v.attributes[name] = known
	}
	return known
}
