// Package scaleout decides which node groups have to grow, by how many nodes, so that
// pending pods can run. It is pure: a Snapshot in, a Decision out; no client, no clock, no
// goroutine that outlives the call. It never talks to an autoscaler or a cloud.
package scaleout

import (
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"github.com/mica-gpu/mica/pkg/devices"
	"github.com/mica-gpu/mica/pkg/scaleout/fit"
	"github.com/mica-gpu/mica/pkg/scaleout/template"
)

// Snapshot is all that a decision depends on. What is in it is not changed.
type Snapshot struct {
	// Pending are pods without a node that ask for devices, by claims or extended resources.
	Pending []*corev1.Pod
	// Held are those of them that no node would help now.
	Held map[types.UID]Hold
	// Nominated has, by pod, the name of the node for which the scheduler has nominated it. A name that is not in
	// Nodes does not count.
	Nominated map[types.UID]string
	// Claims, ClaimTemplates, Classes and Slices are all of the cluster; the slices have
	// DeviceTaintRules applied.
	Claims         []*resourceapi.ResourceClaim
	ClaimTemplates []*resourceapi.ResourceClaimTemplate
	Classes        []*resourceapi.DeviceClass
	Slices         []*resourceapi.ResourceSlice
	// Nodes are all that pods could be put on.
	Nodes  []Node
	Groups []Group
	// Headroom is planned after all pods.
	Headroom []Headroom
	// Budgets bound what is asked for.
	Budgets []Budget
	// StartupTaints are those that nodes lose once they have started.
	StartupTaints template.StartupTaints
	// Replicas are counted after all pods and before headroom.
	Replicas []Replica
	// Selectors keeps expressions compiled from one plan to the next, and decides nothing; nil:
	// each plan compiles them.
	Selectors *devices.Selectors
}

// Hold is why no node would help a pod now.
type Hold struct {
	// Why is a sentence for the pod's owner.
	Why string
	// Unused reports that a node had room for the pod, and that it was not put there.
	Unused bool
}

// Node is a live node.
type Node struct {
	Object *corev1.Node
	// Pods that are on it and have not ended.
	Pods []*corev1.Pod
	// Group is its group's name, or empty.
	Group string
	// GPUs is how many it has, or will have. It counts for budgets alone.
	GPUs int
	// Starting reports that the node does not offer yet what its group's template promises: it
	// counts as the template.
	Starting bool
	// Withheld says that the node offers none of its GPUs, and why; empty: it does.
	Withheld string
	// For is the kind of pods for which it was asked for, while it is starting, where that is known.
	For string
}

// Group is a node group that can grow.
type Group struct {
	Name string
	// Template is what a new node has; nil: unknown, and Unknown says why.
	Template *template.Template
	Unknown  string
	// Pods are those that every new node will have, of DaemonSets.
	Pods []*corev1.Pod
	// Upcoming nodes were asked for and do not exist yet.
	Upcoming int
	// UpcomingFor has kinds of pods for which they were asked for, one entry a node, where that
	// is known. With it no pod of another kind takes a node while there is one for itself.
	UpcomingFor []string
	// Foreign nodes are coming that the controller has not asked for, or no longer asks for. They count for
	// budgets alone.
	Foreign int
	// Size counts the nodes that exist and Upcoming. Max is nil where there is no limit.
	Size int
	Max  *int
	// GPUs is how many a new node has. It counts for budgets alone.
	GPUs int
	// PricePerHour; nil: unknown.
	PricePerHour *resource.Quantity
	// Advised reports that only its operator scales the group: it comes after all others.
	Advised bool
	// Closed says why the group may not grow now, such as a backoff; empty: it may.
	Closed string
}

// Headroom is a number of devices that are to be free.
type Headroom struct {
	Name string
	// Claim asks for one of them.
	Claim resourceapi.ResourceClaimSpec
	// Devices is how many.
	Devices int
	// Groups on whose nodes they count; empty: all groups.
	Groups []string
}

// Decision is what has to grow, and what becomes of each pod. It is the same for the same
// snapshot, whatever the order in it.
type Decision struct {
	// Growth has the groups that are to grow, the most urgent first.
	Growth []Growth
	// Kinds has every pending pod once, in groups of pods that are alike.
	Kinds []Kind
	// Headroom is in the snapshot's order.
	Headroom []HeadroomDecision
	// Budgets are by name.
	Budgets []BudgetDecision
	// Supplies are in the order of the snapshot's replicas.
	Supplies []Supply
}

// Growth is what a group needs.
type Growth struct {
	Group string
	// Nodes are those to ask for, one entry each.
	Nodes []NewNode
}

// NewNode is a node to ask for.
type NewNode struct {
	// Pods that it is for. Empty where it is for headroom alone.
	Pods []types.NamespacedName
	// Kinds of the pods, and "headroom/NAME".
	Kinds []string
	// Requests of the pods: cpu, memory, pods and so on, without devices.
	Requests corev1.ResourceList
}

// Kind is a number of pods that are alike.
type Kind struct {
	// ID is the same as long as the pods are.
	ID string
	// Example stands for all; nil where Problem is not empty.
	Example *fit.Pod
	Pods    []PodDecision
	// Problem is why the pods cannot be planned at all: a sentence for their owner.
	Problem string
	// Groups is what the kind finds in an empty node of each group, in the snapshot's order.
	Groups []GroupFit
}

// GroupFit is whether a group could run a pod of a kind.
type GroupFit struct {
	Group string
	// Miss is nil if a pod fits on an empty new node. If the template is unknown, it is nil and Blocked says
	// why.
	Miss *fit.Miss
	// PerNode is how many pods of the kind an empty node has room for.
	PerNode int
	// Blocked is why the group does not grow for it though it fits, or may: at max, closed,
	// template unknown.
	Blocked string
}

// PodDecision is where a pending pod can go.
type PodDecision struct {
	Pod types.NamespacedName
	UID types.UID
	// Outcome is one of the constants.
	Outcome Outcome
	// Node is the live node, of FitsNode.
	Node string
	// Group is the node's, or empty.
	Group string
	// Why is a sentence, where a pod is Held or Unused, or Blocked or OverBudget for what its kind's groups do not tell.
	Why string
}

// Outcome is what a pending pod waits for.
type Outcome string

// Outcomes.
const (
	// FitsNode: a live node has room; the scheduler will see.
	FitsNode Outcome = "FitsNode"
	// FitsStarting: a node that is starting, or was asked for, will have room.
	FitsStarting Outcome = "FitsStarting"
	// NeedsNode: a group has to grow.
	NeedsNode Outcome = "NeedsNode"
	// Advised: a group has to grow that only its operator scales.
	Advised Outcome = "Advised"
	// Blocked: a group would fit and may not grow, or nothing fits.
	Blocked Outcome = "Blocked"
	// Held: the pod waits for something else than a node.
	Held Outcome = "Held"
	// OverBudget: a group would grow for the pod, and a budget does not allow that.
	OverBudget Outcome = "OverBudget"
	// Unused: a node had room for the pod, and it was not put there.
	Unused Outcome = "Unused"
)

// HeadroomDecision is what of a headroom there is.
type HeadroomDecision struct {
	Name string
	// Free devices on live nodes, Coming ones on nodes that are starting or were asked for,
	// Demanded ones on nodes of Growth. Problem is why the rest cannot be had.
	Free, Coming, Demanded int
	Problem                string
	// Nodes are the live ones on which the free devices are.
	Nodes []string
}
