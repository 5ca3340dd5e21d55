package pair

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/mica-gpu/mica/api/v1alpha1"
	"github.com/mica-gpu/mica/pkg/scaleout/headroom"
	"github.com/mica-gpu/mica/pkg/scaleout/view"
)

// Reasons for protecting a node.
const (
	forClaim    = "claim"
	forHeadroom = "headroom"
	forUse      = "use"
)

const (
	// unclaimed is how long a complete node is kept for a claim. The scheduler needs seconds.
	unclaimed = 10 * time.Minute
	// maxRenewals bounds the renewals of leases per pass: nodes that came together have leases that end together.
	maxRenewals = 200
)

// protections keep Cluster Autoscaler from removing nodes that wait for the claim that they were asked for, hold headroom or
// are busy, and let it remove others that we protected.
func protections(s *Situation) []Action {
	wanted := reasons(s)
	var actions, renewals []Action
	for _, node := range s.View.Nodes {
		why := wanted[node.Object.Name]
		ours := node.Object.Annotations[v1alpha1.AnnotationProtected]
		action := protect{Node: node.Object.Name, For: why, Now: s.Now}
		switch {
		case ours == "" && protected(node.Object):
		case why != ours:
			actions = append(actions, action)
		case why != "" && view.HoldLapses(node.Object, s.Now):
			renewals = append(renewals, action)
		}
	}
	return append(actions, renewals[:min(len(renewals), maxRenewals)]...)
}

// reasons are why nodes are protected, by name. Nodes of observed groups are not.
func reasons(s *Situation) map[string]string {
	wanted := map[string]string{}
	for node := range headroom.Nodes(s.Decision.Headroom) {
		wanted[node] = forHeadroom
	}
	for i := range s.View.GroupStates {
		group := &s.View.GroupStates[i]
		mode, asked := modeFor(group), map[string]bool{}
		if mode == (direct{}) {
			asked = askedFor(group)
		}
		for j := range group.Nodes {
			node := &group.Nodes[j]
			switch name := node.Object.Name; {
			case mode == observe{}:
				delete(wanted, name)
			case s.fresh(group, node, asked[name]):
				wanted[name] = forClaim
			case wanted[name] == "" && s.index.taken.busy(node):
				wanted[name] = forUse
			}
		}
	}
	return wanted
}

// askedFor are the nodes that have come for entries in flight.
func askedFor(group *view.Group) map[string]bool {
	names := map[string]bool{}
	for _, u := range scaleUps(group) {
		for _, node := range u.nodes {
			names[node.Object.Name] = true
		}
	}
	return names
}

// fresh reports whether a node that was asked for, or is protected for a claim, still waits for the claim.
func (s *Situation) fresh(group *view.Group, node *view.NodeState, asked bool) bool {
	if !asked && node.Object.Annotations[v1alpha1.AnnotationProtected] != forClaim {
		return false
	}
	if node.Complete() {
		return age(s.Now, node.CompleteSince()) < unclaimed && !s.index.taken.Any(node)
	}
	return age(s.Now, node.Object.CreationTimestamp.Time) <= group.Object.ProvisionTimeout()
}

// protected reports whether Cluster Autoscaler may not remove the node.
func protected(node *corev1.Node) bool {
	return node.Annotations[v1alpha1.AnnotationScaleDownDisabled] == "true"
}
