// Package view reads the cluster, from a cache or directly, and makes the planner's Snapshot, for the controller and
// kubectl gpu. It knows the nodes, the template and the limits of each group. A view is immutable. Package view writes
// nothing.
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

// Options are for Read.
type Options struct {
	// Driver is the name of Mica's driver.
	Driver string
	Now    time.Time
	// Placeholders is the namespace in which the controller creates placeholders; empty: unknown, any counts.
	Placeholders string
	// Autoscaler is Cluster Autoscaler's status; nil: unknown.
	Autoscaler *autoscaler.Status
	// EKS describes groups of pairing direct; nil: EKS is not called.
	EKS EKS
	// StartupTaints are those that a node loses once it has started.
	StartupTaints template.StartupTaints
	Replicas      []scaleout.Replica
	// Memo caches results for the next Read; nil: no cache.
	Memo *Memo
}

// View is the cluster at one moment. Its objects may belong to a cache: do not change them.
type View struct {
	scaleout.Snapshot
	// GroupStates are in the order of Snapshot.Groups.
	GroupStates []Group
	// Headrooms are the valid ones, in the order of Snapshot.Headroom.
	Headrooms []*v1alpha1.GPUHeadroom
	// InvalidHeadrooms has a sentence for each of RefusedHeadrooms, by name.
	InvalidHeadrooms map[string]string
	// RefusedHeadrooms are the invalid ones.
	RefusedHeadrooms []*v1alpha1.GPUHeadroom
	// BudgetObjects are those of Snapshot.Budgets, in any order.
	BudgetObjects []*v1alpha1.GPUBudget
	// Again is the next time at which a View changes by itself, such as by a schedule; zero: never.
	Again time.Time
	// Nodegroups has the answers of EKS by the name of the group.
	Nodegroups map[string]Nodegroup
	// Placeholders are the pods that the controller has created, in any phase.
	Placeholders []*corev1.Pod

	// Nominated has the nominations of all pods, also of those without devices.
	Nominated Nominations

	// Daemons are the DaemonSets of the cluster.
	Daemons []Daemon
}

// Group is the state of a group.
type Group struct {
	Object *v1alpha1.GPUNodeGroup
	// InstanceType is that of the spec, or else of a node.
	InstanceType string
	// Template is that of the snapshot. Predicted is that of the catalogue alone, if it knows enough.
	Template, Predicted *template.Template
	// StartupTaints are those of the snapshot.
	StartupTaints template.StartupTaints
	// Nodes are the live ones, by creation.
	Nodes []NodeState
	// ProviderMax is the limit of the autoscaler or of EKS; nil: unknown.
	ProviderMax *int32
	// ProviderSize is the desired size at EKS or EC2 Auto Scaling; nil: they were not asked.
	ProviderSize *int32
	// Autoscaler is what Cluster Autoscaler reports of the group, or has last reported; nil: nothing.
	Autoscaler *v1alpha1.AutoscalerReport
	// Max is the lower of the limits in the spec and of the provider; nil: no limit.
	Max *int
	// Refused says why the group is ignored: it selects the same nodes as another group.
	Refused string
	// Withheld says why a new node would offer no GPU, because none of the group's nodes does.
	Withheld string
	// InFlight are the requested nodes that do not exist yet.
	InFlight []v1alpha1.InFlight
}

// NodeState is the state of a node of a group.
type NodeState struct {
	Object *corev1.Node
	// Slices are as published, without taints of DeviceTaintRules.
	Slices []*resourceapi.ResourceSlice
	// Missing is what the node lacks of its template; empty: nothing.
	Missing []string
	// Withheld says why the node offers none of its GPUs; empty: it offers them, or may still do so.
	Withheld string
	// Waived is what a node with the startup taint lacks of other drivers, and no longer needs: they may have been
	// uninstalled.
	Waived []string
	// Difference says how the complete node contradicts the former template.
	Difference string
	// Ready is the node's own condition, ReadySince when it last became so.
	Ready      bool
	ReadySince time.Time

	// version changes with the node or its slices.
	version string
}

// Read reads the cluster, and EKS if Options has it. The error names what could not be listed.
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

// reading is one Read.
type reading struct {
	*objects
	Options
	pods   podsByUse
	slices map[string][]*resourceapi.ResourceSlice
	// withheld has the reasons of nodes that offer none of their GPUs, by name.
	withheld map[string]string
	policies []*v1alpha1.GPUPolicy
	// policyKey changes with any policy.
	policyKey string
	members   membership
	daemons   []Daemon
	nominated Nominations
	// eks has the answers of EKS by the name of the group.
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

// snapshotNodes are the nodes on which pods may be placed, without those that are being deleted or removed.
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
