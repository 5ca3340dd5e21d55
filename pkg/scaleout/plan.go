package scaleout

import (
	"context"

	"github.com/mica-gpu/mica/pkg/devices"
)

// Plan decides. The error is of the context alone.
//
// Pods are put, the most urgent and then the hardest first, on nodes that exist, then on those
// that are coming, then on those that the plan has opened for pods before them; only then does
// a group grow, the one that is cheapest for each pod of the kind that its node takes. A pod
// that could preempt others waits for room like any other: what preemption would free is not
// counted.
func Plan(ctx context.Context, snapshot Snapshot) (Decision, error) {
	p := NewPlanner(snapshot)
	decision, err := p.Decide(ctx)
	if err != nil {
		return Decision{}, err
	}
	if decision.Supplies, err = p.Supplies(ctx); err != nil {
		return Decision{}, err
	}
	return decision, nil
}

// Planner is Plan in parts, for those who act on the decision before they ask for the rest. All
// that it gives are values. It is not safe for concurrent use.
type Planner struct {
	// Snapshot is what is planned for.
	Snapshot Snapshot

	plan  *planner
	kinds []*kind
	// countSteps is how much work it is to count supplies once, at most.
	countSteps int
	// start is the plan before a pod is placed, afterPods with the pods and without headroom.
	start, afterPods checkpoint

	decided, counted bool
	decision         Decision
	supplies         []Supply
	// err is of the decision, uncounted of the supplies.
	err, uncounted error
}

// NewPlanner plans nothing yet.
func NewPlanner(snapshot Snapshot) *Planner {
	if snapshot.Selectors == nil {
		snapshot.Selectors = devices.NewSelectors()
	}
	return &Planner{Snapshot: snapshot, countSteps: countSteps}
}

// Decide is Plan without the supplies. It plans once, and then gives the same again, the error, too.
func (p *Planner) Decide(ctx context.Context) (Decision, error) {
	if !p.decided {
		p.decision, p.err = p.decide(ctx)
		p.decided = true
	}
	return p.decision, p.err
}

func (p *Planner) decide(ctx context.Context) (Decision, error) {
	p.plan, p.kinds = newPlanner(p.Snapshot)
	p.start = p.plan.checkpoint()
	if err := p.plan.place(ctx, p.kinds); err != nil {
		return Decision{}, err
	}
	p.afterPods = p.plan.checkpoint()
	headroom, err := p.plan.headroom(ctx, p.plan.reserved)
	if err != nil {
		return Decision{}, err
	}
	kinds, err := p.plan.report(ctx, p.kinds)
	if err != nil {
		return Decision{}, err
	}
	p.plan.noteClaims(p.kinds)
	return Decision{Growth: p.plan.growth(), Kinds: kinds, Headroom: headroom, Budgets: p.plan.budgeted()}, nil
}
