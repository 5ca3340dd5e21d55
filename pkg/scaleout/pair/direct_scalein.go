package pair

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mica-gpu/mica/pkg/scaleout/view"
)

const (
	// defaultScaleInAfter is Cluster Autoscaler's default of --scale-down-unneeded-time.
	defaultScaleInAfter = 10 * time.Minute
	// cordonSettles is how long after a cordon a pod may still arrive that the scheduler had bound before.
	cordonSettles = time.Minute
	// mostEnding bounds how many nodes of a group end at a time, as Cluster Autoscaler's --max-scale-down-parallelism does.
	mostEnding = 10
)

// shrinking ends nodes of a group that have been empty for long. It evicts nothing. A node passes the steps of its mark.
// Anything that needs the node takes it back before AWS is asked; for later, see endNode.
type shrinking struct {
	*growing
	after time.Duration
	// asked are the nodes that have come for entries in flight.
	asked map[string]bool
	// spare counts the nodes that the group can do without, ending those that end already.
	spare, ending int

	status  ScaleIn
	actions []Action
}

func newShrinking(g *growing) *shrinking {
	s := &shrinking{growing: g, after: scaleInAfter(g.s, g.group), asked: askedFor(g.group)}
	s.status.After = s.after
	s.spare = g.group.Staying() - max(int(g.group.Object.Spec.Min), g.eks.Min)
	for i := range g.group.Nodes {
		switch view.MarkOf(g.group.Nodes[i].Object).Step {
		case view.StepEnding:
			s.ending++
			s.status.Ending = true
		case view.StepCordoned:
			s.ending++
			s.spare--
		}
	}
	return s
}

// scaleInAfter is how long a node of the group must be empty. Zero: nodes stay, as beside a Cluster Autoscaler.
func scaleInAfter(s *Situation, group *view.Group) time.Duration {
	switch after := group.Object.Spec.ScaleInAfter; {
	case after != nil:
		return after.Duration
	case s.Autoscaler.Absent() && group.Autoscaler == nil:
		return defaultScaleInAfter
	}
	return 0
}

// decide begins with the nodes that have been empty for longest.
func (s *shrinking) decide() {
	nodes := make([]*view.NodeState, len(s.group.Nodes))
	for i := range s.group.Nodes {
		nodes[i] = &s.group.Nodes[i]
	}
	slices.SortStableFunc(nodes, func(a, b *view.NodeState) int {
		return cmp.Compare(view.MarkOf(a.Object).Since.Unix(), view.MarkOf(b.Object).Since.Unix())
	})
	for _, node := range nodes {
		s.step(node)
	}
}

func (s *shrinking) step(node *view.NodeState) {
	mark := view.MarkOf(node.Object)
	switch empty := s.after > 0 && s.empty(node); {
	case mark.Cordons() && (s.after == 0 || !node.Object.Spec.Unschedulable):
		s.mark(node, "") // it stays, even if AWS was asked before
	case mark.Step == view.StepEnding:
		s.end(node)
	case !empty && mark.Step != "":
		s.mark(node, "")
	case !empty:
	case mark.Step == "":
		s.mark(node, view.StepEmpty)
	case mark.Step == view.StepCordoned && (!s.quiet || s.spare < 0):
		s.mark(node, view.StepEmpty)
		s.spare++
	case mark.Step == view.StepCordoned:
		if s.over(mark, cordonSettles) {
			s.end(node)
		}
	case s.over(mark, s.after) && s.quiet && s.spare > 0 && s.ending < min(max(len(s.group.Nodes)/10, 1), mostEnding):
		s.cordon(node)
	}
}

// over reports whether a step has lasted for so long. If not, the decision is repeated then.
func (s *shrinking) over(mark view.Mark, lasts time.Duration) bool {
	if age(s.s.Now, mark.Since) >= lasts {
		return true
	}
	s.again = sooner(s.again, mark.Since.Add(lasts))
	return false
}

func (s *shrinking) mark(node *view.NodeState, step view.Step) {
	s.actions = append(s.actions, markNode{Node: node.Object, Mark: view.Mark{Step: step, Since: s.s.Now.Truncate(time.Second)}, Now: s.s.Now})
}

// cordon begins the end of a node, if it is an EC2 instance.
func (s *shrinking) cordon(node *view.NodeState) {
	if instanceID(node.Object) == "" {
		s.status.Problem = fmt.Sprintf("node %s has been empty for long and does not end, because its spec.providerID %q is no EC2 instance: end it yourself, or set spec.scaleInAfter to 0s",
			node.Object.Name, node.Object.Spec.ProviderID)
		return
	}
	s.mark(node, view.StepCordoned)
	s.spare--
	s.ending++
}

// end asks AWS, and renews the hold: a lifecycle hook can delay the end for hours. A node that endNode takes back has lost
// its mark, and is not renewed.
func (s *shrinking) end(node *view.NodeState) {
	s.actions = append(s.actions, endNode{Group: s.group.Object, Node: node.Object, Instance: instanceID(node.Object), Now: s.s.Now, Outdated: s.s.View.Nominated.Outdated})
	if mark := view.MarkOf(node.Object); mark.Step == view.StepEnding && view.HoldLapses(node.Object, s.s.Now) {
		s.actions = append(s.actions, markNode{Node: node.Object, Mark: mark, Now: s.s.Now})
	}
	s.again = sooner(s.again, s.s.Now.Add(pollNodes))
}

// empty reports whether nothing uses the node, or will. Nodes that others have cordoned or protected are theirs.
func (s *shrinking) empty(node *view.NodeState) bool {
	object := node.Object
	switch {
	case !node.Complete() || view.Leaving(object) || protected(object):
		return false
	case object.Spec.Unschedulable && !view.MarkOf(object).Cordons():
		return false
	case s.s.index.used[object.Name] || s.s.fresh(s.group, node, s.asked[object.Name]):
		return false
	}
	return !slices.ContainsFunc(s.s.index.podsOn[object.Name], needsNode) && !s.s.index.taken.Any(node)
}

// needsNode reports whether a pod keeps its node: not if it has ended, or belongs to a DaemonSet or the node itself.
func needsNode(pod *corev1.Pod) bool {
	if pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
		return false
	}
	owner := metav1.GetControllerOfNoCopy(pod)
	return owner == nil || owner.Kind != "DaemonSet" && owner.Kind != "Node"
}

// instanceID is a node's EC2 instance. Empty: none.
func instanceID(node *corev1.Node) string {
	path, is := strings.CutPrefix(node.Spec.ProviderID, "aws:///")
	id := path[strings.LastIndex(path, "/")+1:]
	if !is || !strings.HasPrefix(id, "i-") {
		return ""
	}
	return id
}

// strayMarks removes marks from nodes that no group of pairing direct has, so that their cordons end.
func strayMarks(s *Situation) []Action {
	var actions []Action
	unmark := func(node *corev1.Node) {
		if view.MarkOf(node).Step != "" {
			actions = append(actions, markNode{Node: node})
		}
	}
	for i := range s.View.GroupStates {
		if group := &s.View.GroupStates[i]; modeFor(group) != (direct{}) {
			for j := range group.Nodes {
				unmark(group.Nodes[j].Object)
			}
		}
	}
	for i := range s.View.Nodes {
		if s.View.Nodes[i].Group == "" {
			unmark(s.View.Nodes[i].Object)
		}
	}
	return actions
}
