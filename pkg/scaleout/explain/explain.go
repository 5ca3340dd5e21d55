// Package explain finds out why a pod does not fit: the first thing that blocks it on each node group and each kind of
// live nodes. It writes a sentence about it into the pod's condition and Events. It never decides anything.
package explain

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/mica-gpu/mica/api/v1alpha1"
	"github.com/mica-gpu/mica/pkg/excerpt"
	"github.com/mica-gpu/mica/pkg/scaleout"
)

// Explanation says what a pending pod waits for.
type Explanation struct {
	Pod  types.NamespacedName `json:"-"`
	UID  types.UID            `json:"-"`
	Kind string               `json:"kind"`
	// Outcome is the explanation in a word, Summary in a sentence.
	Outcome scaleout.Outcome `json:"outcome"`
	Summary string           `json:"summary"`
	// Node is the live node with room for the pod. Group is that of Node, or of the new node that the pod needs.
	Node  string `json:"node,omitempty"`
	Group string `json:"group,omitempty"`
	// Verdicts has an entry for each group and each kind of live nodes, the nearest miss first. More counts those that are
	// left out. Pods that fit on a node have none.
	Verdicts []Verdict `json:"verdicts"`
	More     int       `json:"more,omitempty"`
}

// Verdict reports whether a pod fits on one kind of nodes.
type Verdict struct {
	// Group is empty for live nodes without one.
	Group string `json:"group,omitempty"`
	// Live reports whether the nodes exist. Nodes is their number, Example one of their names.
	Live    bool   `json:"live"`
	Nodes   int    `json:"nodes,omitempty"`
	Example string `json:"example,omitempty"`
	Fits    bool   `json:"fits"`
	// finding is what blocks the pod. If it fits, it has a text alone.
	finding
}

// maxVerdicts bounds an explanation.
const maxVerdicts = 20

// Pods explains all pods of a plan. Kinds whose pods all fit on nodes get no verdicts.
func Pods(ctx context.Context, p *scaleout.Planner) ([]Explanation, error) {
	d, err := p.Decide(ctx)
	if err != nil {
		return nil, err
	}
	e := newExplainer(p)
	var explained []Explanation
	for _, kind := range d.Kinds {
		var verdicts []Verdict
		if slices.ContainsFunc(kind.Pods, func(p scaleout.PodDecision) bool { return p.Outcome != scaleout.FitsNode }) {
			if verdicts, err = e.kind(ctx, kind); err != nil {
				return nil, err
			}
		}
		for _, pod := range kind.Pods {
			explained = append(explained, explanation(kind, pod, verdicts))
		}
	}
	return explained, nil
}

// Pod explains one pod; false: it is not in the plan.
func Pod(ctx context.Context, p *scaleout.Planner, name types.NamespacedName) (Explanation, bool, error) {
	d, err := p.Decide(ctx)
	if err != nil {
		return Explanation{}, false, err
	}
	for _, kind := range d.Kinds {
		for _, pod := range kind.Pods {
			if pod.Pod != name {
				continue
			}
			verdicts, err := newExplainer(p).kind(ctx, kind)
			return explanation(kind, pod, verdicts), true, err
		}
	}
	return Explanation{}, false, nil
}

func explanation(kind scaleout.Kind, pod scaleout.PodDecision, verdicts []Verdict) Explanation {
	shown := verdicts[:min(len(verdicts), maxVerdicts)]
	return Explanation{
		Pod: pod.Pod, UID: pod.UID, Kind: kind.ID, Outcome: pod.Outcome, Node: pod.Node, Group: pod.Group,
		Summary:  excerpt.Of(summary(kind, pod, verdicts), excerpt.MaxEvent),
		Verdicts: shown, More: len(verdicts) - len(shown),
	}
}

// summary says what the pod waits for. It avoids names of nodes and times: each change of the text is another Event.
func summary(kind scaleout.Kind, pod scaleout.PodDecision, verdicts []Verdict) string {
	switch {
	case kind.Problem != "":
		return kind.Problem
	case pod.Outcome == scaleout.FitsNode:
		return fmt.Sprintf("fits on node %s, which has room now: the scheduler will put it there or elsewhere", pod.Node)
	case pod.Outcome == scaleout.FitsStarting:
		return fmt.Sprintf("waits for %s that is starting or was asked for", aNode(pod.Group))
	case pod.Outcome == scaleout.NeedsNode:
		return fmt.Sprintf("needs a new node of group %s", pod.Group)
	case pod.Outcome == scaleout.Held, pod.Outcome == scaleout.Unused:
		return pod.Why
	case pod.Outcome == scaleout.Advised:
		return fmt.Sprintf("needs a new node of group %s, whose pairing is observe: add a node, or set the pairing to placeholder or direct", pod.Group)
	case pod.Why != "":
		return pod.Why
	case len(verdicts) == 0:
		return "no node fits, and there is no GPUNodeGroup that could grow: create one"
	}
	return blocked(verdicts)
}

func aNode(group string) string {
	if group == "" {
		return "a node"
	}
	return "a node of group " + group
}

// blocked is the summary of the nearest verdict, with the groups whose template is unknown.
func blocked(verdicts []Verdict) string {
	nearest, others := verdicts[0], verdicts[1:]
	aside := unknownAside(others)
	if nearest.Blocker == blockerTemplateUnknown {
		return excerpt.Of(fmt.Sprintf("no node fits, and whether a new node of group %s would is unknown: %s", nearest.Group, nearest.Text), excerpt.MaxEvent-len(aside)) + aside
	}
	where := "a node of group " + nearest.Group
	switch {
	case nearest.Live && nearest.Group == "":
		where = "a node that is in no group"
	case nearest.Live:
		where = "a live node of group " + nearest.Group
	}
	if nearest.Fits {
		return where + " fits, but pods before it take the remaining room"
	}
	text := fmt.Sprintf("no node fits and no group can grow for it; nearest is %s: %s", where, nearest.Text)
	if nearest.Hint != "" {
		text += " (" + nearest.Hint + ")"
	}
	return excerpt.Of(text+selectorAside(nearest, others), excerpt.MaxEvent-len(aside)) + aside
}

// selectorAside is the hint on a selector that no such node can match.
func selectorAside(nearest Verdict, others []Verdict) string {
	for _, v := range others {
		if v.Blocker == blockerSelector && v.Hint != "" && v.Hint != nearest.Hint {
			return "; check the selector: " + v.Hint
		}
	}
	return ""
}

// unknownAside names the groups whose template is unknown.
func unknownAside(others []Verdict) string {
	const most = 3
	var unknown []string
	for _, v := range others {
		if v.Blocker == blockerTemplateUnknown {
			unknown = append(unknown, v.Group)
		}
	}
	n := len(unknown)
	if n == 0 {
		return ""
	}
	text := fmt.Sprintf("; groups with an unknown template (see condition %s): %s", v1alpha1.ConditionReady, strings.Join(unknown[:min(n, most)], ", "))
	if n > most {
		text += fmt.Sprintf(" and %d more", n-most)
	}
	return text
}

func nearestFirst(a, b Verdict) int {
	return cmp.Or(
		cmp.Compare(a.Distance, b.Distance),
		cmp.Compare(min(a.Nodes, 1), min(b.Nodes, 1)), // new nodes before live ones
		cmp.Compare(a.Group, b.Group),
		cmp.Compare(a.Example, b.Example),
	)
}
