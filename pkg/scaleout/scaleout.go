// Package scaleout decides which node groups have to grow, and by how many nodes, so that pending pods can run. It is
// pure: a Snapshot in, a Decision out, without a client, a clock or goroutines. It never talks to an autoscaler or a
// cloud.
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

// Snapshot is all that a decision depends on. The planner does not change it.
type Snapshot struct {
	// Pending are pods without a node that ask for devices, by claims or extended resources.
	Pending []*corev1.Pod
	// Held are those of them for which no node would help now.
	Held map[types.UID]Hold
	// Nominated has the name of the node for which the scheduler has nominated a pod. A node that is not in Nodes does
	// not count.
	Nominated map[types.UID]string
	// Claims, ClaimTemplates, Classes and Slices are all of the cluster; the slices have
	// DeviceTaintRules applied.
	Claims         []*resourceapi.ResourceClaim
	ClaimTemplates []*resourceapi.ResourceClaimTemplate
	Classes        []*resourceapi.DeviceClass
	Slices         []*resourceapi.ResourceSlice
	// Nodes are those on which pods may be placed.
	Nodes  []Node
	Groups []Group
	// Headroom is kept free of what all pods leave.
	Headroom []Headroom
	// Budgets limit the nodes that the plan requests.
	Budgets []Budget
	// StartupTaints are those that a node loses once it has started.
	StartupTaints template.StartupTaints
	// Replicas are those to count room for, after all pods and before headroom.
	Replicas []Replica
	// Selectors caches compiled expressions from one plan to the next; nil: the plan compiles them.
	Selectors *devices.Selectors
}

// Hold says why no node would help a pod now.
type Hold struct {
	// Why is a sentence for the pod's owner.
	Why string
	// Unused reports whether a node had room for the pod and the scheduler did not use it.
	Unused bool
}

// Node is a live node.
type Node struct {
	Object *corev1.Node
	// Pods are on it and have not ended.
	Pods []*corev1.Pod
	// Group is its group's name, or empty.
	Group string
	// GPUs is the number that it has or will have, for budgets.
	GPUs int
	// Starting reports whether the node does not offer yet what its group's template promises. It counts as the
	// template.
	Starting bool
	// Withheld says why the node offers none of its GPUs; empty: it offers them.
	Withheld string
	// For is the kind of pods for which a starting node was requested; empty: unknown.
	For string
}

// Group is a node group that can grow.
type Group struct {
	Name string
	// Template is a new node; nil: unknown, and Unknown says why.
	Template *template.Template
	Unknown  string
	// Pods are those of DaemonSets that every new node will have.
	Pods []*corev1.Pod
	// Upcoming is the number of requested nodes that do not exist yet.
	Upcoming int
	// UpcomingFor has the kinds of pods for which they were requested, one entry per node, as far as known. A pod of
	// another kind takes such a node only if there is none for itself.
	UpcomingFor []string
	// Foreign is the number of coming nodes that the controller has not requested, or no longer requests. They count
	// for budgets only.
	Foreign int
	// Size is the number of existing nodes and Upcoming. Max is nil if there is no limit.
	Size int
	Max  *int
	// GPUs is the number that a new node has, for budgets.
	GPUs int
	// PricePerHour; nil: unknown.
	PricePerHour *resource.Quantity
	// Advised reports whether only an administrator scales the group. It comes after all others.
	Advised bool
	// Closed says why the group may not grow now, such as a backoff; empty: it may.
	Closed string
}

// Headroom is a number of devices to keep free.
type Headroom struct {
	Name string
	// Claim asks for one of them.
	Claim resourceapi.ResourceClaimSpec
	// Devices is the number to keep free.
	Devices int
	// Groups are those on whose nodes free devices count; empty: all groups.
	Groups []string
}

// Decision says what has to grow, and where each pod goes. It does not depend on the order of lists in the snapshot.
type Decision struct {
	// Growth has the groups that have to grow, the most urgent first.
	Growth []Growth
	// Kinds has every pending pod once, with pods that are alike.
	Kinds []Kind
	// Headroom is in the snapshot's order.
	Headroom []HeadroomDecision
	// Budgets are by name.
	Budgets []BudgetDecision
	// Supplies are in the order of the snapshot's replicas.
	Supplies []Supply
}

// Growth is the nodes that a group needs.
type Growth struct {
	Group string
	// Nodes has an entry per node to request.
	Nodes []NewNode
}

// NewNode is a node to request.
type NewNode struct {
	// Pods are those that it is for. Empty if it is for headroom alone.
	Pods []types.NamespacedName
	// Kinds of the pods, and "headroom/NAME".
	Kinds []string
	// Requests of the pods: cpu, memory, pods and so on, without devices.
	Requests corev1.ResourceList
}

// Kind is a set of pods that are alike.
type Kind struct {
	// ID depends only on what the pods ask for.
	ID string
	// Example stands for all pods; nil if there is a Problem.
	Example *fit.Pod
	Pods    []PodDecision
	// Problem says why the pods cannot be planned, in a sentence for their owner.
	Problem string
	// Groups are in the snapshot's order.
	Groups []GroupFit
}

// GroupFit reports whether a group could run a pod of a kind.
type GroupFit struct {
	Group string
	// Miss is nil if a pod fits on an empty new node. If the template is unknown, it is nil and Blocked says
	// why.
	Miss *fit.Miss
	// PerNode is the number of pods of the kind that fit on an empty node.
	PerNode int
	// Blocked says why the group does not grow although the pod fits or may fit: it is at its maximum, closed, or its
	// template is unknown.
	Blocked string
}

// PodDecision is where a pending pod can go.
type PodDecision struct {
	Pod types.NamespacedName
	UID types.UID
	// Outcome is one of the constants.
	Outcome Outcome
	// Node is the live node, if Outcome is FitsNode.
	Node string
	// Group is that of the node, or empty.
	Group string
	// Why is a sentence if the pod is Held or Unused, or if GroupFit does not say why it is Blocked or OverBudget.
	Why string
}

// Outcome is what a pending pod waits for.
type Outcome string

// Outcomes.
const (
	// FitsNode: a live node has room; the scheduler may choose another.
	FitsNode Outcome = "FitsNode"
	// FitsStarting: a node that is starting, or was requested, will have room.
	FitsStarting Outcome = "FitsStarting"
	// NeedsNode: a group has to grow.
	NeedsNode Outcome = "NeedsNode"
	// Advised: a group has to grow that only an administrator scales.
	Advised Outcome = "Advised"
	// Blocked: a group would fit and may not grow, or nothing fits.
	Blocked Outcome = "Blocked"
	// Held: the pod waits for something other than a node.
	Held Outcome = "Held"
	// OverBudget: a group would grow for the pod, and a budget does not allow that.
	OverBudget Outcome = "OverBudget"
	// Unused: a node had room for the pod, and the scheduler did not use it.
	Unused Outcome = "Unused"
)

// HeadroomDecision says how much of a headroom there is.
type HeadroomDecision struct {
	Name string
	// Free devices are on live nodes, Coming ones on nodes that are starting or were requested, Demanded ones on nodes
	// of Growth. Problem says why the rest cannot be kept free.
	Free, Coming, Demanded int
	Problem                string
	// Nodes are the live ones on which the free devices are.
	Nodes []string
}
