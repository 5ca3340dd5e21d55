package scaleout

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/mica-gpu/mica/pkg/scaleout/fit"
	"github.com/mica-gpu/mica/pkg/scaleout/template"
)

// stage is how near a host is to being ready.
type stage int

// Stages, in the order in which pods are put on hosts.
const (
	live stage = iota
	// coming nodes are starting, or were requested.
	coming
	// opened nodes are those that the plan requests.
	opened
)

// outcome is that of a pod on the host.
func (h *host) outcome() Outcome {
	if h.stage == opened && h.group.Advised {
		return Advised
	}
	return h.stage.outcome()
}

func (s stage) outcome() Outcome {
	return [...]Outcome{live: FitsNode, coming: FitsStarting, opened: NeedsNode}[s]
}

// host is a node for pods. It is immutable: the plan knows what is left of it.
type host struct {
	// index is its index in plan.machines.
	index int
	stage stage
	// name is that of the node; empty if the node does not exist yet.
	name string
	// object is the node, or the group's template.
	object *corev1.Node
	// group is nil for a node without a group.
	group *group
	// machine is the host before any pod is placed.
	machine *fit.Machine
	// gpus is its number of GPUs, for budgets.
	gpus int
	// intended is the kind of pods for which a coming host was requested; empty: unknown.
	intended string
}

// describe names a host in a sentence.
func (h *host) describe() string {
	switch {
	case h.stage == live:
		return "node " + h.name
	case h.name != "":
		return "node " + h.name + ", which is starting"
	case h.stage == coming:
		return "a node of group " + h.group.Name + " that was asked for"
	}
	return "a new node of group " + h.group.Name
}

// readHosts reads the nodes that exist, and those that were requested.
func (p *planner) readHosts(s Snapshot) {
	published := map[string][]*resourceapi.ResourceSlice{}
	for _, slice := range s.Slices {
		if slice.Spec.NodeName != nil {
			published[*slice.Spec.NodeName] = append(published[*slice.Spec.NodeName], slice)
		}
	}
	byName := map[string]*group{}
	for _, g := range p.groups {
		byName[g.Name] = g
	}
	for _, node := range s.Nodes {
		h := p.readHost(node, byName[node.Group], published[node.Object.Name], s.StartupTaints)
		if h.stage == live {
			p.live = append(p.live, h)
		} else {
			p.coming[h.group] = append(p.coming[h.group], h)
		}
	}
	slices.SortFunc(p.live, byHostName)
	for _, starting := range p.coming {
		slices.SortFunc(starting, byHostName)
	}
	for _, g := range p.groups {
		if g.empty == nil {
			continue
		}
		for i := range g.Upcoming {
			h := &host{stage: coming, object: g.Template.Node, group: g, machine: g.empty, gpus: g.GPUs}
			if i < len(g.UpcomingFor) {
				h.intended = g.UpcomingFor[i]
			}
			p.coming[g] = append(p.coming[g], h)
		}
	}
	index := 0
	for _, hosts := range append(slices.Collect(maps.Values(p.coming)), p.live) {
		for _, h := range hosts {
			h.index = index
			index++
		}
	}
}

func byHostName(a, b *host) int { return cmp.Compare(a.name, b.name) }

func (p *planner) readHost(node Node, g *group, published []*resourceapi.ResourceSlice, startup template.StartupTaints) *host {
	h := &host{stage: live, name: node.Object.Name, object: node.Object, group: g, gpus: node.GPUs, intended: node.For}
	made := fit.Node{Object: node.Object, Slices: published, Pods: node.Pods}
	if node.Starting {
		h.stage = coming
		if g != nil && g.Template != nil {
			made = g.started(node, published, startup)
			h.object = made.Object
		}
	}
	h.machine = p.cluster.Machine(made)
	return h
}

// started is a starting node as it will be.
func (g *group) started(node Node, published []*resourceapi.ResourceSlice, startup template.StartupTaints) fit.Node {
	object := node.Object.DeepCopy()
	labels := maps.Clone(g.Template.Node.Labels)
	if labels == nil {
		labels = map[string]string{}
	}
	labels[corev1.LabelHostname] = object.Name
	maps.Copy(labels, object.Labels)
	object.Labels = labels
	object.Spec.Taints = startup.Without(object.Spec.Taints)
	allocatable := g.Template.Node.Status.Allocatable.DeepCopy()
	if allocatable == nil {
		allocatable = corev1.ResourceList{}
	}
	maps.Copy(allocatable, object.Status.Allocatable)
	object.Status.Allocatable = allocatable
	return fit.Node{
		Object: object,
		Slices: g.promised(object.Name, published),
		Pods:   append(slices.Clone(node.Pods), g.lacking(node.Pods)...),
	}
}

// promised are the slices of the group's template as the node will publish them. Pools that the node already has keep
// their names, so that their allocated devices stay allocated.
func (g *group) promised(node string, published []*resourceapi.ResourceSlice) []*resourceapi.ResourceSlice {
	theirs := pools(published)
	drivers := pools(g.Template.Slices)
	var promised []*resourceapi.ResourceSlice
	for _, slice := range g.Template.Slices {
		// The devices are shared with the template.
		own := &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: node + "-" + slice.Name}, Spec: slice.Spec}
		own.Spec.NodeName = &node
		driver := slice.Spec.Driver
		if len(drivers[driver]) == 1 && len(theirs[driver]) == 1 {
			own.Spec.Pool.Name = theirs[driver][0]
		} else {
			own.Spec.Pool.Name = strings.ReplaceAll(slice.Spec.Pool.Name, g.Template.Node.Name, node)
		}
		promised = append(promised, own)
	}
	for _, slice := range published {
		if drivers[slice.Spec.Driver] == nil {
			promised = append(promised, slice)
		}
	}
	return promised
}

// pools are the names of pools by driver.
func pools(published []*resourceapi.ResourceSlice) map[string][]string {
	found := map[string][]string{}
	for _, slice := range published {
		driver, pool := slice.Spec.Driver, slice.Spec.Pool.Name
		if !slices.Contains(found[driver], pool) {
			found[driver] = append(found[driver], pool)
		}
	}
	return found
}

// lacking are the pods of DaemonSets that the node does not have yet.
func (g *group) lacking(have []*corev1.Pod) []*corev1.Pod {
	owners := map[types.UID]bool{}
	for _, pod := range have {
		if owner := metav1.GetControllerOf(pod); owner != nil {
			owners[owner.UID] = true
		}
	}
	var lacking []*corev1.Pod
	for _, pod := range g.Pods {
		if owner := metav1.GetControllerOf(pod); owner == nil || !owners[owner.UID] {
			lacking = append(lacking, pod)
		}
	}
	return lacking
}
