package control

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/mica-gpu/mica/pkg/scaleout"
	"github.com/mica-gpu/mica/pkg/scaleout/autoscaler"
	"github.com/mica-gpu/mica/pkg/scaleout/explain"
	"github.com/mica-gpu/mica/pkg/scaleout/pair"
	"github.com/mica-gpu/mica/pkg/scaleout/view"
	"github.com/mica-gpu/mica/pkg/tracing"
)

const (
	// actTimeout ends acting. The next pass decides about the rest.
	actTimeout = 2 * time.Minute
	// planTimeout ends a plan whose search is exponential because of a claim.
	planTimeout = time.Minute
)

// Pass reads, plans, acts and reports once. It returns the time of the next pass without a change, or zero. A failed part does
// not stop the others.
func (l *Loop) Pass(ctx context.Context) (time.Time, error) {
	begun := l.Clock.Now()
	defer func() { passSeconds.Observe(l.Clock.Since(begun).Seconds()) }()
	ctx, span := tracing.Begin(ctx, "scale-out pass")
	again, err := l.pass(ctx, begun)
	span.End(err)
	return again, err
}

func (l *Loop) pass(ctx context.Context, begun time.Time) (time.Time, error) {
	situation, planner, err := l.consider(ctx, begun)
	if err != nil {
		return begun.Add(retry), err
	}
	result := pair.Decide(situation)
	logActions(ctx, result.Actions)
	v := situation.View
	l.progress()
	done, gateAgain, opened := l.act(ctx, v, &result, begun)
	l.progress()
	counted := l.tellSupplies(ctx, situation, planner)
	reports, read := l.groupReports(ctx, situation, result)
	explained, unexplained := l.explain(ctx, situation, planner)
	l.writer.submit(report{
		statuses: func(ctx context.Context) error {
			return errors.Join(l.writeGroups(ctx, reports), l.reportHeadrooms(ctx, situation), l.reportBudgets(ctx, situation), l.handover.Act(ctx, situation.Now))
		},
		explained: explained, pods: v.Pending, at: situation.Now,
	})
	failures := []error{done, opened, counted, read, unexplained, l.writer.failure()}
	if l.DiscoverNodes {
		failures = append(failures, l.discover(ctx, v))
	}
	l.measure(v, situation.Decision)
	return earliest(result.Again, v.Again, gateAgain, nextTimeout(v, begun)), errors.Join(failures...)
}

// act executes the actions, and opens complete nodes. It returns when to look at a node again, and the errors of both.
func (l *Loop) act(ctx context.Context, v *view.View, result *pair.Result, now time.Time) (done error, again time.Time, opened error) {
	ctx, cancel := context.WithTimeout(ctx, actTimeout)
	defer cancel()
	ctx, span := tracing.Begin(ctx, "act")
	span.Count("mica.actions", len(result.Actions))
	done = l.executor.Do(ctx, result)
	span.End(done)
	again, opened = l.gate.Act(ctx, v, now)
	return done, again, opened
}

// consider reads and plans. It reports an error to the forecast, too.
func (l *Loop) consider(ctx context.Context, now time.Time) (pair.Situation, *scaleout.Planner, error) {
	var planner *scaleout.Planner
	situation, err := l.look(ctx, now)
	if err == nil {
		planner, err = l.plan(ctx, &situation)
	}
	if err != nil {
		l.Forecast.Failed(err)
	}
	return situation, planner, err
}

// look reads the input of a decision.
func (l *Loop) look(ctx context.Context, now time.Time) (_ pair.Situation, err error) {
	ctx, span := tracing.Begin(ctx, "look")
	defer func() { span.End(err) }()
	status, err := autoscaler.Read(ctx, l.Client, l.Autoscaler)
	if err != nil {
		return pair.Situation{}, err
	}
	triggers, err := l.triggers(ctx)
	if err != nil {
		return pair.Situation{}, err
	}
	o := view.Options{Driver: l.Driver, Now: now, Placeholders: l.Placeholder.Namespace, Autoscaler: &status, Replicas: l.Forecast.Replicas(), StartupTaints: l.StartupTaints, Memo: l.memo}
	if l.Nodegroups != nil {
		o.EKS = l.Nodegroups
	}
	v, err := view.Read(ctx, l.Client, o)
	if err != nil {
		return pair.Situation{}, err
	}
	return pair.Situation{Now: now, View: v, Triggers: triggers, Autoscaler: status, Placeholder: l.Placeholder, FailClosed: l.FailClosed}, nil
}

// triggers are Cluster Autoscaler's last Events about pods.
func (l *Loop) triggers(ctx context.Context) (map[types.UID]pair.Trigger, error) {
	var list corev1.EventList
	if err := l.Client.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list the Events of Cluster Autoscaler: %w", err)
	}
	return pair.Triggers(list.Items), nil
}

// plan sets the decision, and returns the planner for further questions.
func (l *Loop) plan(ctx context.Context, s *pair.Situation) (_ *scaleout.Planner, err error) {
	ctx, span := tracing.Begin(ctx, "plan")
	defer func() { span.End(err) }()
	span.Count("mica.pending_pods", len(s.View.Pending))
	span.Count("mica.nodes", len(s.View.Nodes))
	span.Count("mica.node_groups", len(s.View.Groups))
	ctx, cancel := context.WithTimeout(ctx, planTimeout)
	defer cancel()
	begun := l.Clock.Now()
	planner := scaleout.NewPlanner(s.View.Snapshot)
	decision, err := planner.Decide(ctx)
	planSeconds.Observe(l.Clock.Since(begun).Seconds())
	if err != nil {
		return nil, fmt.Errorf("plan for %d pending pods on %d nodes and %d groups: %w: look for claims with very many requests or constraints",
			len(s.View.Pending), len(s.View.Nodes), len(s.View.Groups), err)
	}
	s.Decision = decision
	return planner, nil
}

// tellSupplies counts the room for forecast replicas. It runs after acting, since a hard claim can make it take seconds.
func (l *Loop) tellSupplies(ctx context.Context, s pair.Situation, planner *scaleout.Planner) error {
	supplies, err := planner.Supplies(ctx)
	if err != nil {
		l.Forecast.Failed(err)
		return err
	}
	s.Decision.Supplies = supplies
	l.Forecast.Planned(s.View.Snapshot, s.Decision)
	return nil
}

// explain finds out why pods wait.
func (l *Loop) explain(ctx context.Context, s pair.Situation, planner *scaleout.Planner) ([]explain.Explanation, error) {
	within, cancel := context.WithTimeout(ctx, planTimeout)
	defer cancel()
	explained, err := explain.Pods(within, planner)
	if err != nil {
		return nil, fmt.Errorf("explain why %d pending pods wait: %w", len(s.View.Pending), err)
	}
	return explained, nil
}

func logActions(ctx context.Context, actions []pair.Action) {
	logger := klog.FromContext(ctx)
	for _, action := range actions {
		logger.Info("Acting", "action", action.String())
	}
}

// nextTimeout is the next end of a backoff, a target or a node's provisionTimeout.
func nextTimeout(v *view.View, now time.Time) time.Time {
	var next time.Time
	for _, group := range v.GroupStates {
		if backoff := group.Object.Status.Backoff; backoff != nil && backoff.Until.After(now) {
			next = earliest(next, backoff.Until.Time)
		}
		if ends := group.TargetEnds(); ends.After(now) {
			next = earliest(next, ends)
		}
		for _, state := range group.Nodes {
			if group.Starting(state, now) {
				next = earliest(next, state.Object.CreationTimestamp.Add(group.Object.ProvisionTimeout()+time.Second))
			}
		}
	}
	return next
}

// earliest ignores zero times.
func earliest(times ...time.Time) time.Time {
	var first time.Time
	for _, t := range times {
		if first.IsZero() || !t.IsZero() && t.Before(first) {
			first = t
		}
	}
	return first
}
