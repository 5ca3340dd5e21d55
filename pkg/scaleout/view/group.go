package view

import (
	"math"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/mica-gpu/mica/api/v1alpha1"
	"github.com/mica-gpu/mica/pkg/scaleout"
)

// group reads the state of a group.
func (r *reading) group(object *v1alpha1.GPUNodeGroup) Group {
	group := Group{Object: object, StartupTaints: r.StartupTaints, Refused: r.members.refused[object.Name]}
	group.ProviderMax = r.providerMax(object)
	group.ProviderSize = r.providerSize(object)
	group.Autoscaler = Report(object, r.Autoscaler, r.Now)
	group.Max = group.most()
	if group.Refused != "" {
		return group
	}
	nodes := r.members.nodes[object.Name]
	group.InstanceType = instanceType(object, nodes)
	for _, node := range nodes {
		group.Nodes = append(group.Nodes, newNodeState(node, r.slices[node.Name], r.withheld[node.Name]))
	}
	r.chooseTemplate(&group)
	group.Withheld = withheld(group.Nodes)
	group.InFlight = inFlight(object, nodes, r.pods.placeholders)
	return group
}

// snapshotGroup is the group for the planner.
func (r *reading) snapshotGroup(group Group) scaleout.Group {
	object := group.Object
	out := scaleout.Group{
		Name:         object.Name,
		Template:     group.Template,
		Upcoming:     upcoming(group.InFlight),
		UpcomingFor:  askedFor(group.InFlight),
		PricePerHour: object.Spec.PricePerHour,
		Advised:      object.Spec.Pairing == v1alpha1.PairingObserve,
		Max:          group.Max,
		Closed:       group.Refused,
	}
	desired := math.MaxInt // unknown: all nodes that are leaving count
	if answer, asked := r.eks[object.Name]; asked && answer.Err == nil {
		desired = answer.Desired
	}
	out.Size = group.SizeWith(out.Upcoming, desired)
	out.Foreign = max(group.Target(r.Now)-out.Size, 0)
	if out.Closed == "" {
		out.Closed = Closed(object, r.Autoscaler, r.Now)
	}
	if out.Closed == "" {
		out.Closed = group.Withheld
	}
	if group.Template == nil {
		out.Unknown = r.unknown(group)
		return out
	}
	out.Pods = daemonPods(r.daemons, group.Template.Node)
	return out
}

// unknown says why the group has no template.
func (r *reading) unknown(group Group) string {
	if group.Refused != "" {
		return group.Refused
	}
	if err := r.predict(group).err; err != nil {
		return err.Error()
	}
	return "no template"
}

// instanceType is that of the spec, or else of the newest node, or else the last known one.
func instanceType(object *v1alpha1.GPUNodeGroup, nodes []*corev1.Node) string {
	if object.Spec.InstanceType != "" {
		return object.Spec.InstanceType
	}
	for _, node := range slices.Backward(nodes) {
		if name := node.Labels[corev1.LabelInstanceTypeStable]; name != "" {
			return name
		}
	}
	return object.Status.InstanceType
}

func newNodeState(node *corev1.Node, slices []*resourceapi.ResourceSlice, withheld string) NodeState {
	state := NodeState{Object: node, Slices: slices, Withheld: withheld, version: versionOf(node) + ":" + versionsOf(slices)}
	if c := readyCondition(node); c != nil {
		state.Ready, state.ReadySince = c.Status == corev1.ConditionTrue, c.LastTransitionTime.Time
	}
	return state
}

// IsReady reports whether kubelet has set the node's condition Ready.
func IsReady(node *corev1.Node) bool {
	c := readyCondition(node)
	return c != nil && c.Status == corev1.ConditionTrue
}

func readyCondition(node *corev1.Node) *corev1.NodeCondition {
	at := slices.IndexFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool { return c.Type == corev1.NodeReady })
	if at < 0 {
		return nil
	}
	return &node.Status.Conditions[at]
}

// Complete reports whether a node is ready and has all that its template promises.
func (s NodeState) Complete() bool {
	return s.Ready && len(s.Missing) == 0 && s.Object.DeletionTimestamp == nil
}

// CompleteSince estimates when a complete node became complete, by when it became ready and when its slices were
// created.
func (s NodeState) CompleteSince() time.Time {
	since := s.ReadySince
	for _, slice := range s.Slices {
		if created := slice.CreationTimestamp.Time; created.After(since) {
			since = created
		}
	}
	return since
}

// Starting reports whether the node is starting, also if it lacks only another agent. It then counts as its template. A
// node that is not complete within the group's provision timeout counts as what it offers, so that pods do not wait for
// it forever.
func (g Group) Starting(state NodeState, now time.Time) bool {
	if state.Object.DeletionTimestamp != nil || state.Withheld != "" || now.Sub(state.Object.CreationTimestamp.Time) > g.Object.ProvisionTimeout() {
		return false
	}
	return !state.Complete() || slices.ContainsFunc(state.Object.Spec.Taints, g.StartupTaints.Has)
}

// HasStartupTaint reports whether the node has Mica's own startup taint.
func HasStartupTaint(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Spec.Taints, func(taint corev1.Taint) bool { return taint.Key == v1alpha1.TaintStartup })
}

// slicesByNode leaves out slices that do not belong to one node.
func slicesByNode(all []resourceapi.ResourceSlice) map[string][]*resourceapi.ResourceSlice {
	byNode := map[string][]*resourceapi.ResourceSlice{}
	for i := range all {
		if name := all[i].Spec.NodeName; name != nil {
			byNode[*name] = append(byNode[*name], &all[i])
		}
	}
	for _, of := range byNode {
		slices.SortFunc(of, func(a, b *resourceapi.ResourceSlice) int { return strings.Compare(a.Name, b.Name) })
	}
	return byNode
}
