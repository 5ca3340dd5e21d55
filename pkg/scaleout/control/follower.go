package control

import (
	"context"
	"time"
)

// Follower plans for the forecast in a replica that does not lead. It does not act, plans only if the forecast has questions,
// and ends when the replica begins to lead.
type Follower struct{ loop *Loop }

// Follower returns the loop's follower.
func (l *Loop) Follower() *Follower { return &Follower{l} }

// NeedLeaderElection: every replica follows.
func (*Follower) NeedLeaderElection() bool { return false }

// Start runs until ctx ends or the loop starts.
func (f *Follower) Start(ctx context.Context) error {
	ctx, end := context.WithCancel(ctx)
	defer end()
	go func() {
		select {
		case <-f.loop.leads:
			end()
		case <-ctx.Done():
		}
	}()
	return f.loop.run(ctx, f.pass)
}

// pass reads, plans and reports to the forecast.
func (f *Follower) pass(ctx context.Context) (time.Time, error) {
	l := f.loop
	if len(l.Forecast.Replicas()) == 0 {
		return time.Time{}, nil
	}
	begun := l.Clock.Now()
	situation, planner, err := l.consider(ctx, begun)
	if err == nil {
		err = l.tellSupplies(ctx, situation, planner)
	}
	if ctx.Err() != nil {
		return time.Time{}, nil
	}
	if err != nil {
		return begun.Add(retry), err
	}
	return situation.View.Again, nil
}
