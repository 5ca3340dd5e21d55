// Package view reads the cluster: it makes the Snapshot that the planner decides by, from a
// cache or directly, for the controller and kubectl gpu. A view does not change. It knows
// the nodes of each group, which template counts, and what bounds a group.
// It writes nothing.
package view

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/mica-gpu/mica/api/v1alpha1"
	"github.com/mica-gpu/mica/pkg/devices"
	"github.com/mica-gpu/mica/pkg/scaleout"
	"github.com/mica-gpu/mica/pkg/scaleout/autoscaler"
	"github.com/mica-gpu/mica/pkg/scaleout/template"
)

// Options say how to look.
type Options struct {
	// Driver is our driver's name.
	Driver string
	Now    time.Time
	// Placeholders is the namespace in which the controller creates placeholders. Empty, for a reader that does not
	// know it: any.
	Placeholders string
	// Autoscaler is what Cluster Autoscaler says; nil where that cannot be known.
	Autoscaler *autoscaler.Status
	// EKS describes groups of pairing direct; nil: EKS is not called.
	EKS EKS
	// StartupTaints are those that nodes lose once they have started.
	StartupTaints template.StartupTaints
	// Replicas are those to count room for.
	Replicas []scaleout.Replica
	// Memo keeps what was worked out of nodes and templates for the next Read. Who looks
	// once has none.
	Memo *Memo
}

// View is the cluster at one moment. What is in it may be a cache's own: it is not changed.
type View struct {
	scaleout.Snapshot
	// GroupStates are in the order of Snapshot.Groups.
	GroupStates []Group
	// Headrooms are in the order of Snapshot.Headroom, those that are invalid left out.
	Headrooms []*v1alpha1.GPUHeadroom
	// InvalidHeadrooms has a sentence by name, of RefusedHeadrooms.
	InvalidHeadrooms map[string]string
	// RefusedHeadrooms are those that are invalid.
	RefusedHeadrooms []*v1alpha1.GPUHeadroom
	// BudgetObjects are those of Snapshot.Budgets, in any order.
	BudgetObjects []*v1alpha1.GPUBudget
	// Again is when a schedule begins or ends next, or a node gets too old for a rate; zero: never.
	Again time.Time
	// Nodegroups has what EKS says of groups that were asked for, by name.
	Nodegroups map[string]Nodegroup
	// Placeholders are the pods that the controller has made, whatever their phase.
	Placeholders []*corev1.Pod

	// Nominated are the nominations of pods, also of pods without devices.
	Nominated Nominations

	// Daemons are the DaemonSets of the cluster.
	Daemons []Daemon
}

// Group is what is known of a group.
type Group struct {
	Object *v1alpha1.GPUNodeGroup
	// InstanceType is the one that the spec, or else a node, names.
	InstanceType string
	// Template is that of the snapshot; Predicted is what the catalogue alone says, where it can.
	Template, Predicted *template.Template
	// StartupTaints are those of the snapshot.
	StartupTaints template.StartupTaints
	// Nodes are live ones, by creation.
	Nodes []NodeState
	// ProviderMax is the limit of who makes the group grow, nil where it is not known. Max is the
	// most nodes that it may have, by spec or by that, nil where there is no limit.
	ProviderMax *int32
	// ProviderSize is the size that EKS or EC2 Auto Scaling is to give the group, nil where they are not asked.
	ProviderSize *int32
	// Autoscaler is what Cluster Autoscaler reports of the group, or has last reported; nil: nothing.
	Autoscaler *v1alpha1.AutoscalerReport
	Max        *int
	// Refused says why the group is not planned with at all: its labels are another group's.
	Refused string
	// Withheld says why a new node would offer no GPU: the group's nodes do not.
	Withheld string
	// InFlight is what was asked for and is no node yet.
	InFlight []v1alpha1.InFlight
}

// NodeState is what is known of a node of a group.
type NodeState struct {
	Object *corev1.Node
	// Slices are as published, without what DeviceTaintRules add.
	Slices []*resourceapi.ResourceSlice
	// Missing is what the node lacks of what the template promises; empty: it is complete.
	Missing []string
	// Withheld says that the node offers none of its GPUs, and will not by itself, and why.
	Withheld string
	// Waived is what a node with the startup taint never got of other drivers, and which it
	// is not held to any more: they may have been uninstalled.
	Waived []string
	// Difference is in what the complete node contradicts the template that counted before it.
	Difference string
	// Ready is the node's own condition, ReadySince when it last became so.
	Ready      bool
	ReadySince time.Time

	// version changes with the node or its slices.
	version string
}

// Read looks at the cluster, and at EKS where it may. The error names what could not be listed.
func Read(ctx context.Context, reader client.Reader, o Options) (*View, error) {
	all, err := list(ctx, reader)
	if err != nil {
		return nil, err
	}
	if o.Memo == nil {
		o.Memo = NewMemo()
	}
	defer o.Memo.endRead()
	r := newReading(all, o)
	r.eks = r.askEKS(ctx)
	return r.view(), nil
}

// reading is one look.
type reading struct {
	*objects
	Options
	pods   podsByUse
	slices map[string][]*resourceapi.ResourceSlice
	// withheld has the nodes that offer none of their GPUs, with the reason.
	withheld map[string]string
	policies []*v1alpha1.GPUPolicy
	// policyKey changes with any policy.
	policyKey string
	members   membership
	daemons   []Daemon
	nominated Nominations
	// eks has answers of EKS by the group's name.
	eks map[string]Nodegroup
}

func newReading(all *objects, o Options) *reading {
	r := &reading{objects: all, Options: o, policies: pointers(all.policies.Items)}
	r.pods = sortPods(all.pods.Items, extendedResources(all.classes.Items), o.Placeholders)
	r.slices = slicesByNode(all.slices.Items)
	r.withheld = r.withheldNodes()
	r.policyKey = versionsOf(r.policies)
	r.members = members(living(all.groups.Items), all.nodes.Items)
	r.daemons = DaemonsOf(all.daemonSets.Items)
	r.nominated = r.nominations()
	return r
}

func (r *reading) view() *View {
	v := &View{
		Snapshot: scaleout.Snapshot{
			Pending:        r.pods.pending,
			Held:           r.held(),
			Nominated:      r.nominated.Nodes,
			Claims:         pointers(r.claims.Items),
			ClaimTemplates: pointers(r.claimTemplates.Items),
			Classes:        pointers(r.classes.Items),
			Slices:         devices.WithTaintRules(pointers(r.objects.slices.Items), r.taintRules.Items),
			Selectors:      r.Memo.selectors,
			Replicas:       r.Replicas,
			StartupTaints:  r.StartupTaints,
		},
		Nodegroups:   r.eks,
		Placeholders: r.pods.placeholders,
		Daemons:      r.daemons,
		Nominated:    r.nominated,
		Again:        r.nominated.again,
	}
	starting := map[string]bool{}
	for _, object := range r.members.groups {
		group := r.group(object)
		v.GroupStates = append(v.GroupStates, group)
		v.Groups = append(v.Groups, r.snapshotGroup(group))
		for _, state := range group.Nodes {
			starting[state.Object.Name] = group.Starting(state, r.Now)
		}
	}
	v.Nodes = r.snapshotNodes(starting)
	r.addHeadroom(v)
	r.addBudgets(v)
	return v
}

// snapshotNodes are those on which pods could be put: one that is being deleted, or ended, is none.
func (r *reading) snapshotNodes(starting map[string]bool) []scaleout.Node {
	nodes := make([]scaleout.Node, 0, len(r.nodes.Items))
	askedFor := map[string]string{}
	for _, pod := range r.pods.placeholders {
		askedFor[pod.Spec.NodeName] = pod.Labels[v1alpha1.LabelKind]
	}
	for i := range r.nodes.Items {
		node := planned(&r.nodes.Items[i])
		if node == nil {
			continue
		}
		nodes = append(nodes, scaleout.Node{
			Object:   node,
			Pods:     r.pods.bound[node.Name],
			Group:    r.members.ofNode[node.Name],
			Starting: starting[node.Name],
			For:      askedFor[node.Name],
			Withheld: r.withheld[node.Name],
		})
	}
	return nodes
}

func pointers[T any](items []T) []*T {
	out := make([]*T, len(items))
	for i := range items {
		out[i] = &items[i]
	}
	return out
}
