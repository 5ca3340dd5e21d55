package fit

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// vocabulary is what pods ask of nodes and devices. What no pod names cannot make a
// difference, so that machines which differ in nothing else are alike.
type vocabulary struct {
	// sealed is set once there are machines. What is new after that is not added, and late is
	// set: the machines were not told apart by it.
	sealed, late bool

	// read are the attributes, without domain, whose values expressions may read; all of them
	// where everything is set.
	read       map[string]bool
	everything bool
	// compared are the attributes that constraints compare between devices: only which of
	// them are equal counts.
	compared map[string]bool
	// attributes are what is known of those that devices have, once there are machines.
	attributes map[resourceapi.QualifiedName]attribute
	// labels of nodes, and names.
	labels map[string]*mention
	names  map[string]bool
	// resources are those that pods request, in the order of load.free.
	resources []corev1.ResourceName
	index     map[corev1.ResourceName]int
	// extended are the resources that devices can stand for.
	extended []corev1.ResourceName
}

// attribute is how an attribute of devices counts.
type attribute struct {
	id             string
	hash           uint64
	read, compared bool
}

// mention is what is asked of a label.
type mention struct {
	// values that are named: of others only counts that they are others.
	values map[string]bool
	// ordered reports that values are compared as numbers: each counts.
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

// learn adds a word to a set.
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

// label learns that a label is asked for.
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

// resource gives the place of a resource in load.free.
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

// stand learns that devices can stand for a resource.
func (v *vocabulary) stand(name corev1.ResourceName) {
	switch {
	case slices.Contains(v.extended, name):
	case v.sealed:
		v.late = true
	default:
		v.extended = append(v.extended, name)
	}
}

// tooLate tells, once, whether something came too late.
func (v *vocabulary) tooLate() bool {
	late := v.late
	v.late = false
	return late
}

// attribute tells how one counts.
func (v *vocabulary) attribute(name resourceapi.QualifiedName) attribute {
	known, ok := v.attributes[name]
	if !ok {
		id := attributeID(name)
		known = attribute{id: id, hash: hashText(string(name)), read: v.everything || v.read[id], compared: v.compared[id]}
		v.attributes[name] = known
	}
	return known
}
