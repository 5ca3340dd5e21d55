package load

import (
	"cmp"
	"fmt"
	"slices"

	"k8s.io/utils/ptr"
)

// Order is by what pods and namespaces are sorted.
type Order string

// The orders that there are. Figures are sorted from the highest, those that are unknown last.
const (
	ByName        Order = "name"
	ByUtilization Order = "utilization"
	ByMemory      Order = "memory"
)

// Check is an error for an order that there is not.
func (o Order) Check() error {
	if has := []Order{ByName, ByUtilization, ByMemory}; !slices.Contains(has, o) {
		return fmt.Errorf("--sort-by %q is no order: choose one of name, utilization, memory", string(o))
	}
	return nil
}

// Sorted is the load in an order.
func (l Load) Sorted(by Order) Load {
	l.Pods, l.Namespaces = slices.Clone(l.Pods), slices.Clone(l.Namespaces)
	slices.SortStableFunc(l.Pods, func(a, b Pod) int { return by.compare(a.Figures, b.Figures) })
	slices.SortStableFunc(l.Namespaces, func(a, b Namespace) int { return by.compare(a.Figures, b.Figures) })
	return l
}

func (o Order) compare(a, b Figures) int {
	const unknown = -1
	switch o {
	case ByUtilization:
		return cmp.Compare(ptr.Deref(b.Utilization, unknown), ptr.Deref(a.Utilization, unknown))
	case ByMemory:
		return cmp.Compare(ptr.Deref(b.MemoryUsedBytes, unknown), ptr.Deref(a.MemoryUsedBytes, unknown))
	}
	return 0
}

// Idle has the pods with a device in which nothing runs, and their namespaces.
func (l Load) Idle() Load {
	l.Pods = slices.DeleteFunc(slices.Clone(l.Pods), func(p Pod) bool { return p.Figures.Idle == 0 })
	l.Namespaces = slices.DeleteFunc(slices.Clone(l.Namespaces), func(n Namespace) bool { return n.Figures.Idle == 0 })
	return l
}
