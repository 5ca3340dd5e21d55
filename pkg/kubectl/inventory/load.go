package inventory

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/ptr"

	"github.com/mica-gpu/mica/pkg/elastic/usage"
	"github.com/mica-gpu/mica/pkg/fleet"
)

// idleBelow is the utilization below which a device is idle: a health check now and then is no work.
const idleBelow = 0.01

// Load is how busy the devices of pods are. It is the output of kubectl gpu top as JSON and YAML.
type Load struct {
	Pods []Pod `json:"pods"`
	// Namespaces count each device once.
	Namespaces []Namespace `json:"namespaces"`
	// NotSeen has a sentence for each thing that is missing.
	NotSeen []string `json:"notSeen,omitempty"`
}

// Figures summarize devices. A figure that no device reports is absent.
type Figures struct {
	// Utilization is the mean of the devices that report it, 0 to 1, over the last 15 seconds.
	Utilization *float64 `json:"utilization,omitempty"`
	// MemoryUsedBytes and MemoryTotalBytes are sums over devices, each once. A shared device counts
	// what all its processes use.
	MemoryUsedBytes  *float64 `json:"memoryUsedBytes,omitempty"`
	MemoryTotalBytes *float64 `json:"memoryTotalBytes,omitempty"`
	// Idle counts devices on which nothing runs, Untold those that report no utilization.
	Idle   int `json:"idle"`
	Untold int `json:"untold"`
}

// Pod is a pod with devices, or a claim with devices and no pod.
type Pod struct {
	Namespace string `json:"namespace"`
	// Name is empty for a claim without a pod.
	Name    string   `json:"name,omitempty"`
	Claims  []string `json:"claims"`
	Node    string   `json:"node"`
	Devices []Device `json:"devices"`
	Figures
}

// Device is a device of a pod.
type Device struct {
	Name string `json:"name"`
	// Shared reports that the figures include other pods that share the device.
	Shared      bool       `json:"shared,omitempty"`
	Utilization *float64   `json:"utilization,omitempty"`
	Sampled     *time.Time `json:"sampled,omitempty"`
}

// Namespace summarizes the claims of a namespace.
type Namespace struct {
	Name    string `json:"name"`
	Pods    int    `json:"pods"`
	Devices int    `json:"devices"`
	Figures
}

// NewLoad joins the devices that claims hold with what the nodes' plugins measured.
func NewLoad(held []fleet.Holding, measured usage.Fleet) Load {
	l := Load{Pods: []Pod{}, Namespaces: []Namespace{}, NotSeen: failures(held, measured)}
	for _, g := range grouped(held, podKeys) {
		l.Pods = append(l.Pods, newPod(g, measured))
	}
	for _, g := range grouped(held, func(h fleet.Holding) []string { return []string{h.Namespace} }) {
		pods := sets.New[string]()
		for _, h := range g.held {
			pods.Insert(h.Pods...)
		}
		devices, figures := summarize(g.held, measured)
		l.Namespaces = append(l.Namespaces, Namespace{Name: g.key, Pods: pods.Len(), Devices: len(devices), Figures: figures})
	}
	return l
}

// podKeys are NAMESPACE/POD for each pod of the claim. A claim without a pod has a key of its own.
func podKeys(h fleet.Holding) []string {
	if len(h.Pods) == 0 {
		return []string{h.Namespace + "/ " + h.Claim}
	}
	keys := make([]string, len(h.Pods))
	for i, pod := range h.Pods {
		keys[i] = h.Namespace + "/" + pod
	}
	return keys
}

type group struct {
	key  string
	held []fleet.Holding
}

// grouped returns the holdings that take something, by key, sorted.
func grouped(held []fleet.Holding, keys func(fleet.Holding) []string) []group {
	var groups []group
	at := map[string]int{}
	for _, h := range held {
		if h.Admin {
			continue
		}
		for _, key := range keys(h) {
			i, known := at[key]
			if !known {
				i = len(groups)
				at[key] = i
				groups = append(groups, group{key: key})
			}
			groups[i].held = append(groups[i].held, h)
		}
	}
	slices.SortFunc(groups, func(a, b group) int { return cmp.Compare(a.key, b.key) })
	return groups
}

func newPod(g group, measured usage.Fleet) Pod {
	first := g.held[0]
	pod := Pod{Namespace: first.Namespace, Node: first.Pool()}
	if len(first.Pods) > 0 {
		pod.Name = g.key[len(pod.Namespace)+1:]
	}
	claims := sets.New[string]()
	for _, h := range g.held {
		claims.Insert(h.Claim)
	}
	pod.Claims = sets.List(claims)
	pod.Devices, pod.Figures = summarize(g.held, measured)
	return pod
}

// summarize returns each device once, however many shares of it are held.
func summarize(held []fleet.Holding, measured usage.Fleet) ([]Device, Figures) {
	seen := sets.New[string]()
	devices, sum := []Device{}, Figures{}
	var utilization, reported float64
	for _, h := range held {
		if key := h.Pool() + "/" + h.Device; seen.Has(key) {
			continue
		} else {
			seen.Insert(key)
		}
		d := Device{Name: h.Device, Shared: h.Shared()}
		if reading, known := measured.Nodes[h.Pool()].Devices[h.Device]; known {
			d.Utilization, d.Sampled = reading.Utilization, ptr.To(reading.At)
			sum.MemoryUsedBytes = plus(sum.MemoryUsedBytes, reading.MemoryUsed)
			sum.MemoryTotalBytes = plus(sum.MemoryTotalBytes, reading.MemoryTotal)
		}
		switch {
		case d.Utilization == nil:
			sum.Untold++
		case *d.Utilization < idleBelow:
			sum.Idle++
		}
		if d.Utilization != nil {
			utilization, reported = utilization+*d.Utilization, reported+1
		}
		devices = append(devices, d)
	}
	if reported > 0 {
		sum.Utilization = ptr.To(utilization / reported)
	}
	return devices, sum
}

func plus(sum, more *float64) *float64 {
	if more == nil {
		return sum
	}
	return ptr.To(ptr.Deref(sum, 0) + *more)
}

// failures names the nodes of claims whose plugins could not be asked, and why.
func failures(held []fleet.Holding, measured usage.Fleet) []string {
	const most = 3
	sentences := sets.New[string]()
	for _, h := range held {
		if failure := measured.Nodes[h.Pool()].Error; failure != "" {
			sentences.Insert(fmt.Sprintf("node %s does not report how busy its devices are: %s", h.Pool(), failure))
		}
	}
	all := sets.List(sentences)
	if n := len(all); n > most {
		all = append(all[:most], fmt.Sprintf("%d more nodes do not report how busy their devices are", n-most))
	}
	return all
}

// Order is the order of pods and namespaces.
type Order string

// The orders. Figures are sorted from the highest, unknown ones last.
const (
	ByName        Order = "name"
	ByUtilization Order = "utilization"
	ByMemory      Order = "memory"
)

// Check returns an error for an unknown order.
func (o Order) Check() error {
	switch o {
	case ByName, ByUtilization, ByMemory:
		return nil
	}
	return fmt.Errorf("unknown value %q of --sort-by: use one of name, utilization, memory", string(o))
}

// Sorted returns the load in an order.
func (l Load) Sorted(by Order) Load {
	l.Pods, l.Namespaces = slices.Clone(l.Pods), slices.Clone(l.Namespaces)
	slices.SortStableFunc(l.Pods, func(a, b Pod) int { return by.compare(a.Figures, b.Figures) })
	slices.SortStableFunc(l.Namespaces, func(a, b Namespace) int { return by.compare(a.Figures, b.Figures) })
	return l
}

func (o Order) compare(a, b Figures) int {
	const last = -1
	switch o {
	case ByUtilization:
		return cmp.Compare(ptr.Deref(b.Utilization, last), ptr.Deref(a.Utilization, last))
	case ByMemory:
		return cmp.Compare(ptr.Deref(b.MemoryUsedBytes, last), ptr.Deref(a.MemoryUsedBytes, last))
	}
	return 0
}

// Idle returns the pods and namespaces with an idle device.
func (l Load) Idle() Load {
	l.Pods = slices.DeleteFunc(slices.Clone(l.Pods), func(p Pod) bool { return p.Figures.Idle == 0 })
	l.Namespaces = slices.DeleteFunc(slices.Clone(l.Namespaces), func(n Namespace) bool { return n.Figures.Idle == 0 })
	return l
}
