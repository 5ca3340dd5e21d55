package explain

import (
	"cmp"
	"context"
	"slices"

	"github.com/mica-gpu/mica/pkg/scaleout"
	"github.com/mica-gpu/mica/pkg/scaleout/fit"
)

// Blockers of groups that would fit, or may.
const (
	blockerTemplateUnknown = "TemplateUnknown"
	blockerGroupClosed     = "GroupClosed"
	blockerGroupAtMax      = "GroupAtMax"
	// blockerWithheld is of nodes that offer none of their GPUs.
	blockerWithheld = "Withheld"
	// blockerAborted is of claims of which the scheduler's allocator cannot say whether they fit.
	blockerAborted = "Aborted"
)

// Distances of what package fit finds, and of groups.
const (
	distanceGroup         = 1
	distanceUnschedulable = 3
	distanceLiveResources = 15
	distancePods          = 16
	distanceClaimNode     = 17
	distanceNodeTaint     = 25
	distanceResources     = 36
	// Nobody knows how near a group is of which nothing is known: what is known to be
	// near comes first, and what is no such node at all after it.
	distanceUnknown      = 52
	distanceNodeAffinity = 55
)

// explainer explains the kinds of one plan.
type explainer struct {
	planner   *scaleout.Planner
	diagnoser *diagnoser
	groups    map[string]scaleout.Group
}

func newExplainer(p *scaleout.Planner) *explainer {
	e := &explainer{planner: p, diagnoser: newDiagnoser(p.Snapshot.Classes, p.Snapshot.Selectors), groups: map[string]scaleout.Group{}}
	for _, g := range p.Snapshot.Groups {
		e.groups[g.Name] = g
	}
	return e
}

// kind gives the verdicts on a kind, the nearest miss first.
func (e *explainer) kind(ctx context.Context, kind scaleout.Kind) ([]Verdict, error) {
	if kind.Example == nil {
		return nil, nil
	}
	claims := claimsOf(kind.Example)
	var verdicts []Verdict
	for _, g := range kind.Groups {
		verdicts = append(verdicts, e.group(ctx, g, claims))
	}
	fits, err := e.planner.LiveFits(ctx, kind.ID)
	if err != nil {
		return nil, err
	}
	for _, found := range fits {
		verdicts = append(verdicts, e.onNodes(ctx, found, claims))
	}
	slices.SortStableFunc(verdicts, nearestFirst)
	return verdicts, ctx.Err()
}

func claimsOf(pod *fit.Pod) []podClaim {
	called := pod.ClaimNames()
	var claims []podClaim
	for i, claim := range pod.Claims() {
		claims = append(claims, podClaim{claim, called[i]})
	}
	return claims
}

// group is the verdict on an empty new node of a group.
func (e *explainer) group(ctx context.Context, g scaleout.GroupFit, claims []podClaim) Verdict {
	v := Verdict{Group: g.Group}
	of := e.groups[g.Group]
	switch {
	case g.Miss != nil:
		v.finding = e.miss(ctx, *g.Miss, claims, false, func() offer {
			if of.Template == nil {
				return offer{imagined: true}
			}
			return offer{slices: of.Template.Slices, imagined: true}
		})
	case of.Template == nil:
		v.finding = finding{Blocker: blockerTemplateUnknown, Distance: distanceUnknown, Text: cmp.Or(g.Blocked, of.Unknown)}
	case g.Blocked != "" && of.Closed != "":
		v.finding = finding{Blocker: blockerGroupClosed, Distance: distanceGroup, Text: "would fit, but " + g.Blocked}
	case g.Blocked != "":
		v.finding = finding{Blocker: blockerGroupAtMax, Distance: distanceGroup, Text: "would fit, but " + g.Blocked, Hint: "raise max, or wait until devices are free"}
	default:
		v.Fits = true
		v.Text = "a new node has room for " + count(g.PerNode, "such pod")
	}
	return v
}

// onNodes is the verdict on live nodes.
func (e *explainer) onNodes(ctx context.Context, found scaleout.LiveFit, claims []podClaim) Verdict {
	v := Verdict{Group: found.Group, Live: true, Nodes: len(found.Nodes), Example: found.Nodes[0]}
	if found.Miss == nil {
		v.Fits = true
		v.Text = "has room"
		return v
	}
	if found.Withheld != "" && found.Miss.Reason == fit.ReasonDevices {
		v.finding = finding{Blocker: blockerWithheld, Distance: distanceUnknown, Text: found.Withheld}
		return v
	}
	v.finding = e.miss(ctx, *found.Miss, claims, true, func() offer {
		return offer{slices: found.Machine.Slices(), used: found.Machine.Used()}
	})
	return v
}

// miss finds out more where the devices are too few, and else says what package fit says.
func (e *explainer) miss(ctx context.Context, m fit.Miss, claims []podClaim, live bool, offer func() offer) finding {
	f := finding{Blocker: string(m.Reason), Text: m.Text}
	switch m.Reason {
	case fit.ReasonDevices:
		found := e.diagnoser.diagnose(ctx, offer(), claims)
		if m.Aborts && found.Blocker != blockerSelectorError {
			// The search, or what it met, was too much for the allocator: it says so itself.
			found = finding{Blocker: blockerAborted, Text: m.Text, Distance: distanceError}
		}
		return found
	case fit.ReasonUnschedulable:
		f.Distance, f.Hint = distanceUnschedulable, "kubectl uncordon it, if pods may go there"
	case fit.ReasonNodeAffinity:
		f.Distance, f.Hint = distanceNodeAffinity, "change the pod's nodeSelector or affinity, if it may go there"
	case fit.ReasonTaint:
		f.Distance, f.Hint = distanceNodeTaint, "add a toleration to the pod, if it may go there"
	case fit.ReasonPods:
		f.Distance = distancePods
	case fit.ReasonClaimNode:
		f.Distance = distanceClaimNode
	case fit.ReasonResources:
		f.Distance = distanceLiveResources
		if !live {
			f.Distance, f.Hint = distanceResources, "ask for less, or for a larger instance type"
		}
	}
	return f
}
