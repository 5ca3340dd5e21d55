// Package load says how busy the devices are that pods have, by pod and by namespace, from what claims
// hold and what plugins have measured. It measures nothing, and leaves out what nobody has told it.
package load

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/mica-gpu/mica/pkg/elastic/usage"
)

// idleBelow is the utilization below which a device is idle: a health check now and then is no work.
const idleBelow = 0.01

// Held is a device, or a share of one, that a claim has.
type Held struct {
	Claim types.NamespacedName
	// Pods may use it, none where the claim waits for its pod.
	Pods []string
	// Node is that whose plugin measures the device.
	Node, Device string
	// Share tells that others may have parts of the device, too.
	Share bool
}

// Load is how busy what pods have is. It is printed as JSON and YAML as it is.
type Load struct {
	Pods []Pod `json:"pods"`
	// Namespaces are the same devices, each once.
	Namespaces []Namespace `json:"namespaces"`
	// NotSeen has sentences that say what is missing.
	NotSeen []string `json:"notSeen,omitempty"`
}

// Figures are of some devices together. What none of them tells is absent.
type Figures struct {
	// Utilization is the mean over the devices that tell it, 0 to 1, of the last 15 seconds.
	Utilization *float64 `json:"utilization,omitempty"`
	// MemoryUsedBytes and MemoryTotalBytes are sums over the devices that tell them, each device once:
	// of one in shares, it is what all who share it use.
	MemoryUsedBytes  *float64 `json:"memoryUsedBytes,omitempty"`
	MemoryTotalBytes *float64 `json:"memoryTotalBytes,omitempty"`
	// Idle counts devices in which nothing runs, Untold those of which nobody tells whether.
	Idle   int `json:"idle"`
	Untold int `json:"untold"`
}

// Pod is one that has devices, or a claim that has them and no pod.
type Pod struct {
	Namespace string `json:"namespace"`
	// Name is empty for a claim without a pod.
	Name    string   `json:"name,omitempty"`
	Claims  []string `json:"claims"`
	Node    string   `json:"node"`
	Devices []Device `json:"devices"`
	Figures
}

// Device is one of a pod's.
type Device struct {
	Name string `json:"name"`
	// Shared tells that its figures are those of all who share it.
	Shared      bool       `json:"shared,omitempty"`
	Utilization *float64   `json:"utilization,omitempty"`
	Sampled     *time.Time `json:"sampled,omitempty"`
}

// Namespace is the sum of its claims.
type Namespace struct {
	Name    string `json:"name"`
	Pods    int    `json:"pods"`
	Devices int    `json:"devices"`
	Figures
}

// Of joins what claims hold with what plugins tell of the nodes.
func Of(held []Held, told usage.Fleet) Load {
	l := Load{Pods: []Pod{}, Namespaces: []Namespace{}, NotSeen: silent(held, told)}
	for _, group := range grouped(held, podsOf) {
		l.Pods = append(l.Pods, podOf(group, told))
	}
	for _, group := range grouped(held, func(h Held) []string { return []string{h.Claim.Namespace} }) {
		names := map[string]bool{}
		for _, h := range group.held {
			for _, pod := range h.Pods {
				names[pod] = true
			}
		}
		devices, figures := measured(group.held, told)
		l.Namespaces = append(l.Namespaces, Namespace{Name: group.key, Pods: len(names), Devices: len(devices), Figures: figures})
	}
	return l
}

// podsOf are keys for the pods that have what is held, or for the claim that has no pod.
func podsOf(h Held) []string {
	if len(h.Pods) == 0 {
		return []string{h.Claim.Namespace + "/ " + h.Claim.Name}
	}
	keys := make([]string, len(h.Pods))
	for i, pod := range h.Pods {
		keys[i] = h.Claim.Namespace + "/" + pod
	}
	return keys
}

type group struct {
	key  string
	held []Held
}

// grouped is in the order of the keys.
func grouped(held []Held, keys func(Held) []string) []group {
	var groups []group
	at := map[string]int{}
	for _, h := range held {
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

func podOf(g group, told usage.Fleet) Pod {
	first := g.held[0]
	pod := Pod{Namespace: first.Claim.Namespace, Node: first.Node}
	if len(first.Pods) > 0 {
		pod.Name = g.key[len(pod.Namespace)+1:]
	}
	for _, h := range g.held {
		if !slices.Contains(pod.Claims, h.Claim.Name) {
			pod.Claims = append(pod.Claims, h.Claim.Name)
		}
	}
	slices.Sort(pod.Claims)
	pod.Devices, pod.Figures = measured(g.held, told)
	return pod
}

// measured has each device once, however many shares of it are held.
func measured(held []Held, told usage.Fleet) ([]Device, Figures) {
	type key struct{ node, name string }
	seen := map[key]bool{}
	devices, sum := []Device{}, Figures{}
	var utilization, telling float64
	for _, h := range held {
		if k := (key{h.Node, h.Device}); seen[k] {
			continue
		} else {
			seen[k] = true
		}
		d := Device{Name: h.Device, Shared: h.Share}
		reading, known := told.Nodes[h.Node].Devices[h.Device]
		if known {
			d.Utilization, d.Sampled = reading.Utilization, ptr.To(reading.Sampled)
			sum.MemoryUsedBytes = plus(sum.MemoryUsedBytes, reading.MemoryUsedBytes)
			sum.MemoryTotalBytes = plus(sum.MemoryTotalBytes, reading.MemoryTotalBytes)
		}
		switch {
		case d.Utilization == nil:
			sum.Untold++
		case *d.Utilization < idleBelow:
			sum.Idle++
		}
		if d.Utilization != nil {
			utilization, telling = utilization+*d.Utilization, telling+1
		}
		devices = append(devices, d)
	}
	if telling > 0 {
		sum.Utilization = ptr.To(utilization / telling)
	}
	return devices, sum
}

func plus(sum, more *float64) *float64 {
	if more == nil {
		return sum
	}
	return ptr.To(ptr.Deref(sum, 0) + *more)
}

// silent says which nodes tell nothing, and why.
func silent(held []Held, told usage.Fleet) []string {
	const most = 3
	var sentences []string
	asked := map[string]bool{}
	for _, h := range held {
		node, known := told.Nodes[h.Node]
		if asked[h.Node] || !known || node.Error == "" {
			continue
		}
		asked[h.Node] = true
		sentences = append(sentences, fmt.Sprintf("node %s does not tell how busy its devices are: %s", h.Node, node.Error))
	}
	slices.Sort(sentences)
	if n := len(sentences); n > most {
		sentences = append(sentences[:most], fmt.Sprintf("%d more nodes do not tell how busy their devices are", n-most))
	}
	return sentences
}
