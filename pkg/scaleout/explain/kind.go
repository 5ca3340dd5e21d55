package explain

import (
	"cmp"
	"context"
	"slices"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/mica-gpu/mica/pkg/excerpt"
	"github.com/mica-gpu/mica/pkg/scaleout"
	"github.com/mica-gpu/mica/pkg/scaleout/fit"
)

// Blockers of groups and nodes.
const (
	blockerTemplateUnknown = "TemplateUnknown"
	blockerGroupClosed     = "GroupClosed"
	blockerGroupAtMax      = "GroupAtMax"
	// blockerWithheld: the node offers none of its GPUs.
	blockerWithheld = "Withheld"
	// blockerAborted: the scheduler's allocator gives up on the claims.
	blockerAborted = "Aborted"
)

// Distances of groups, and of the reasons of package fit.
const (
	distanceGroup         = 1
	distanceUnschedulable = 3
	distanceLiveResources = 15
	distancePods          = 16
	distanceClaimNode     = 17
	distanceNodeTaint     = 25
	distanceResources     = 36
	// A node with an unknown template comes after all that may fit.
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

// kind returns the verdicts on a kind, the nearest miss first.
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
	all, called := pod.Claims()
	var claims []podClaim
	for i, claim := range all {
		claims = append(claims, podClaim{claim, called[i]})
	}
	return claims
}

// group is the verdict on an empty new node of a group.
func (e *explainer) group(ctx context.Context, g scaleout.GroupFit, claims []podClaim) Verdict {
	v := Verdict{Group: g.Group}
	group := e.groups[g.Group]
	switch {
	case group.Template == nil:
		v.finding = finding{Blocker: blockerTemplateUnknown, Distance: distanceUnknown, Text: cmp.Or(g.Blocked, group.Unknown)}
	case g.Miss != nil:
		o := offer{slices: group.Template.Slices, imagined: true, allocates: e.allocates(e.planner.NewMachine(g.Group))}
		v.finding = e.miss(ctx, *g.Miss, claims, o)
	case g.Blocked != "" && group.Closed != "":
		v.finding = finding{Blocker: blockerGroupClosed, Distance: distanceGroup, Text: "would fit, but " + g.Blocked}
	case g.Blocked != "":
		v.finding = finding{Blocker: blockerGroupAtMax, Distance: distanceGroup, Text: "would fit, but " + g.Blocked, Hint: "raise max, or wait until devices are free"}
	default:
		v.Fits = true
		v.Text = "a new node has room for " + excerpt.Count(g.PerNode, "such pod")
	}
	return v
}

// onNodes is the verdict on live nodes that are alike.
func (e *explainer) onNodes(ctx context.Context, found scaleout.LiveFit, claims []podClaim) Verdict {
	v := Verdict{Group: found.Group, Live: true, Nodes: len(found.Nodes), Example: found.Nodes[0]}
	switch {
	case found.Miss == nil:
		v.Fits = true
		v.Text = "has room"
	case found.Withheld != "" && found.Miss.Reason == fit.ReasonDevices:
		v.finding = finding{Blocker: blockerWithheld, Distance: distanceUnknown, Text: found.Withheld}
	default:
		m := found.Machine
		v.finding = e.miss(ctx, *found.Miss, claims, offer{slices: m.Slices(), used: m.Used(), allocates: e.allocates(m)})
	}
	return v
}

func (e *explainer) allocates(m *fit.Machine) func(context.Context, bool, ...*resourceapi.ResourceClaim) bool {
	return func(ctx context.Context, unused bool, claims ...*resourceapi.ResourceClaim) bool {
		return e.planner.Allocates(ctx, m, unused, claims...)
	}
}

// miss is the finding for a miss of package fit. If there are too few devices, it is the diagnosis.
func (e *explainer) miss(ctx context.Context, m fit.Miss, claims []podClaim, o offer) finding {
	f := finding{Blocker: string(m.Reason), Text: m.Text}
	switch m.Reason {
	case fit.ReasonDevices:
		found := e.diagnoser.diagnose(ctx, o, claims)
		if m.Aborts && found.Blocker != blockerSelectorError {
			found = finding{Blocker: blockerAborted, Text: m.Text, Distance: distanceError}
		}
		return found
	case fit.ReasonUnschedulable:
		f.Distance, f.Hint = distanceUnschedulable, "run kubectl uncordon, if pods may go there"
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
		if o.imagined {
			f.Distance, f.Hint = distanceResources, "ask for less, or for a larger instance type"
		}
	}
	return f
}
