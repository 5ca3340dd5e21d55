// Package explain finds out why a pod does not fit: the first thing that blocks it on each
// node group and each class of live nodes, with its numbers, and says it in sentences. It
// writes them into Events and pod conditions, without repeating itself. It never decides
// anything.
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

// Explanation is what a pending pod is told.
type Explanation struct {
	Pod  types.NamespacedName `json:"-"`
	UID  types.UID            `json:"-"`
	Kind string               `json:"kind"`
	// Outcome and Summary are the whole in one word and one sentence.
	Outcome scaleout.Outcome `json:"outcome"`
	Summary string           `json:"summary"`
	// Verdicts has an entry for each group and each class of live nodes, the nearest miss
	// first. Those beyond a bound are only counted, in More. Pods that fit on a node have none.
	Verdicts []Verdict `json:"verdicts"`
	More     int       `json:"more,omitempty"`
}

// Verdict is what a pod finds on one kind of node.
type Verdict struct {
	// Group is empty for live nodes that are of none.
	Group string `json:"group,omitempty"`
	// Live tells that the verdict is on nodes that exist, Nodes of them.
	Live  bool `json:"live"`
	Nodes int  `json:"nodes,omitempty"`
	// Example is one of the nodes.
	Example string `json:"example,omitempty"`
	Fits    bool   `json:"fits"`
	// finding is what blocks the pod, or where it fits, a text alone.
	finding
}

// maxVerdicts bounds an explanation.
const maxVerdicts = 20

// Pods explains all pods of a plan. Kinds of which every pod fits on a node get no verdicts: there
// is nothing to explain, and the controller asks each time it plans.
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

// Pod explains one pod; false where the plan does not know it.
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

// explanation is what one pod of a kind is told.
func explanation(kind scaleout.Kind, pod scaleout.PodDecision, verdicts []Verdict) Explanation {
	shown := verdicts[:min(len(verdicts), maxVerdicts)]
	return Explanation{
		Pod: pod.Pod, UID: pod.UID, Kind: kind.ID, Outcome: pod.Outcome,
		Summary:  excerpt.Of(summary(kind, pod, verdicts), excerpt.MaxEvent),
		Verdicts: shown, More: len(verdicts) - len(shown),
	}
}

// summary says what the pod waits for. It names no node and no time where it can do without:
// a text that changes is told again.
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
		return fmt.Sprintf("needs a new node of group %s, which nobody adds by itself: its pairing is observe; add one, or choose placeholder or direct", pod.Group)
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

// blocked speaks of the nearest verdict, and of what may be nearer and is not known.
func blocked(verdicts []Verdict) string {
	nearest, others := verdicts[0], verdicts[1:]
	aside := unknownAside(others)
	if nearest.Blocker == blockerTemplateUnknown {
		return excerpt.Of(fmt.Sprintf("no node fits, and whether a new one of group %s would is not known: %s", nearest.Group, nearest.Text), excerpt.MaxEvent-len(aside)) + aside
	}
	where := "a node of group " + nearest.Group
	switch {
	case nearest.Live && nearest.Group == "":
		where = "a node that is in no group"
	case nearest.Live:
		where = "a live node of group " + nearest.Group
	}
	if nearest.Fits {
		return where + " fits, and pods before it take the room that is left"
	}
	text := fmt.Sprintf("no node fits and no group can grow for it; nearest is %s: %s", where, nearest.Text)
	if nearest.Hint != "" {
		text += " (" + nearest.Hint + ")"
	}
	return excerpt.Of(text+selectorAside(nearest, others), excerpt.MaxEvent-len(aside)) + aside
}

// selectorAside is about a selector that matches by no means: that is the owner's to mend,
// however near other nodes are.
func selectorAside(nearest Verdict, others []Verdict) string {
	for _, v := range others {
		if v.Blocker == blockerSelector && v.Hint != "" && v.Hint != nearest.Hint {
			return "; mind the selector: " + v.Hint
		}
	}
	return ""
}

// unknownAside names the groups of which nobody can say whether they fit.
func unknownAside(others []Verdict) string {
	const most = 3
	var unknown []string
	for _, v := range others {
		if v.Blocker == blockerTemplateUnknown {
			unknown = append(unknown, v.Group)
		}
	}
	switch n := len(unknown); {
	case n == 0:
		return ""
	case n == 1:
		return fmt.Sprintf("; what nodes of group %s have is not known: see its condition %s", unknown[0], v1alpha1.ConditionReady)
	case n > most:
		unknown = append(unknown[:most], fmt.Sprintf("%d more", n-most))
	}
	last := len(unknown) - 1
	return fmt.Sprintf("; what nodes of groups %s and %s have is not known: see their condition %s",
		strings.Join(unknown[:last], ", "), unknown[last], v1alpha1.ConditionReady)
}

func nearestFirst(a, b Verdict) int {
	return cmp.Or(
		cmp.Compare(a.Distance, b.Distance),
		compareBool(a.Live, b.Live),
		cmp.Compare(a.Group, b.Group),
		cmp.Compare(a.Example, b.Example),
	)
}

func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}
