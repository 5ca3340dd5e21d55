// Package control is the controller's loop: read the cluster, plan, act, report. It owns the order of these steps and the
// statuses of groups, headrooms and budgets. All state is in the API server, so a controller may crash at any point. Statuses
// and pods' conditions are written beside the loop.
//
// A pass never repeats the actions of an earlier one, even if its cache is behind: the client waits until the cache has its
// own writes (controller-runtime's EnableReadYourWritesConsistency). Against a former leader's writes, names are derived from
// their purpose, and statuses are updated from the version that was read, so that the API server refuses the second of two.
package control

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/mica-gpu/mica/api/v1alpha1"
	"github.com/mica-gpu/mica/pkg/scaleout"
	"github.com/mica-gpu/mica/pkg/scaleout/explain"
	"github.com/mica-gpu/mica/pkg/scaleout/handover"
	"github.com/mica-gpu/mica/pkg/scaleout/pair"
	"github.com/mica-gpu/mica/pkg/scaleout/ready"
	"github.com/mica-gpu/mica/pkg/scaleout/template"
	"github.com/mica-gpu/mica/pkg/scaleout/view"
)

// Options of a Loop.
type Options struct {
	// Driver is our driver's name.
	Driver string
	// Client reads its own writes.
	Client client.Client
	// Live reads from the API server instead of a cache.
	Live        client.Reader
	Recorder    events.EventRecorder
	Clock       clock.WithTicker
	Placeholder pair.PlaceholderOptions
	// StartupTaints are those that nodes lose once they have started.
	StartupTaints template.StartupTaints
	// FailClosed keeps pods under a budget from Cluster Autoscaler also while no controller runs.
	FailClosed bool
	// Autoscaler is the ConfigMap with Cluster Autoscaler's status.
	Autoscaler types.NamespacedName
	// Nodegroups calls EKS. Nil: groups of pairing direct do not grow, and say so.
	Nodegroups pair.Nodegroups
	// DiscoverNodes declares the node groups of live nodes.
	DiscoverNodes bool
	// Outdated is a sentence if the CustomResourceDefinitions are older than the controller. May be nil.
	Outdated func() string
	// DiscoveredPairing is the pairing of discovered groups. Empty: observe.
	DiscoveredPairing v1alpha1.Pairing
	// Forecast asks for room for more replicas. May be nil.
	Forecast Forecast
}

// Forecast asks further questions of a plan: see package forecast.
type Forecast interface {
	// Replicas are those for which the next plan counts room.
	Replicas() []scaleout.Replica
	// Planned receives a plan and its input. Failed receives the error of a pass without one.
	Planned(scaleout.Snapshot, scaleout.Decision)
	Failed(error)
}

// noForecast asks for nothing.
type noForecast struct{}

func (noForecast) Replicas() []scaleout.Replica                 { return nil }
func (noForecast) Planned(scaleout.Snapshot, scaleout.Decision) {}
func (noForecast) Failed(error)                                 {}

// Loop runs a pass whenever something has changed. The leader runs it, and its Follower runs in the other replicas.
type Loop struct {
	Options
	memo     *view.Memo
	executor *pair.Executor
	gate     *ready.Gate
	handover *handover.Reporter
	writer   *writer
	waiting  waiting
	// arrivals is nil before the first pass.
	arrivals arrivals
	dirty    chan struct{}
	// leads is closed when this replica begins to lead. looks excludes Loop and Follower.
	leads  chan struct{}
	looks  sync.Mutex
	errors errorLog
	// passing is when the running pass last made progress, in nanoseconds since 1970. 0: none runs.
	passing atomic.Int64
}

// New makes a loop. Nothing happens before Start.
func New(o Options) *Loop {
	if o.Forecast == nil {
		o.Forecast = noForecast{}
	}
	if o.Outdated == nil {
		o.Outdated = func() string { return "" }
	}
	o.DiscoveredPairing = cmp.Or(o.DiscoveredPairing, v1alpha1.PairingObserve)
	l := &Loop{
		Options:  o,
		memo:     view.NewMemo(),
		executor: &pair.Executor{Client: o.Client, Live: o.Live, Nodegroups: o.Nodegroups},
		gate:     &ready.Gate{Driver: o.Driver, Client: o.Client, Recorder: o.Recorder},
		handover: &handover.Reporter{Driver: o.Driver, Client: o.Client},
		waiting:  waiting{},
		dirty:    make(chan struct{}, 1),
		leads:    make(chan struct{}),
	}
	l.writer = &writer{reporter: explain.NewReporter(o.Client, o.Recorder), clock: o.Clock, again: l.Enqueue, reports: make(chan report, 1)}
	return l
}

// NeedLeaderElection: one replica runs the loop.
func (*Loop) NeedLeaderElection() bool { return true }

// Enqueue requests a pass. It does not block.
func (l *Loop) Enqueue() {
	select {
	case l.dirty <- struct{}{}:
	default: // a pass is due already
	}
}

// progress records the end of a part of a pass.
func (l *Loop) progress() { l.passing.Store(l.Clock.Now().UnixNano()) }

// Alive is an error if a pass hangs. It is for a liveness probe. A slow pass that makes progress does not hang: a new process
// would have to list the whole cluster.
func (l *Loop) Alive() error {
	begun := l.passing.Load()
	if begun == 0 {
		return nil
	}
	if lasts := l.Clock.Since(time.Unix(0, begun)); lasts > hangs {
		return fmt.Errorf("a pass over the cluster has made no progress for %s", lasts.Truncate(time.Second))
	}
	return nil
}

const (
	// hangs is longer than the time limits of a pass's parts.
	hangs = 5 * time.Minute
	// settle is how long a pass waits for further changes: a Deployment's pods, a node's slices.
	settle = 200 * time.Millisecond
	// rest bounds the pause after a pass. The pause is as long as the pass, which limits the loop to half a core.
	rest = 500 * time.Millisecond
	// idle is the time between passes without a change.
	idle = time.Minute
	// overdue is the least time between passes without a change.
	overdue = time.Second
	// retry is the time to the next pass if the cluster cannot be read.
	retry = 2 * time.Second
)

// Start runs until ctx ends. It may be called once.
func (l *Loop) Start(ctx context.Context) error {
	close(l.leads)
	var writing sync.WaitGroup
	defer writing.Wait()
	writing.Go(func() { l.writer.run(ctx) })
	return l.run(ctx, l.Pass)
}

// run runs a pass at once, and then after each change, until ctx ends.
func (l *Loop) run(ctx context.Context, pass func(context.Context) (time.Time, error)) error {
	l.looks.Lock()
	defer l.looks.Unlock()
	l.Enqueue()
	next := l.Clock.Now().Add(idle)
	for {
		if !l.await(ctx, next) {
			return nil
		}
		begun := l.Clock.Now()
		l.passing.Store(begun.UnixNano())
		again, err := pass(ctx)
		l.passing.Store(0)
		l.errors.log(ctx, err, "Part of a pass failed; retrying")
		next = l.nextPass(again)
		if !l.sleep(ctx, min(l.Clock.Since(begun), rest)) {
			return nil
		}
	}
}

// await waits until a pass is due. It returns false if ctx has ended.
func (l *Loop) await(ctx context.Context, next time.Time) bool {
	timer := l.Clock.NewTimer(max(next.Sub(l.Clock.Now()), 0))
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C():
		return true
	case <-l.dirty:
	}
	if !l.sleep(ctx, settle) {
		return false
	}
	select {
	case <-l.dirty: // the pass that begins now sees it
	default:
	}
	return true
}

func (l *Loop) sleep(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	timer := l.Clock.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C():
		return true
	}
}

// nextPass is never now, so that something that stays overdue causes no busy loop.
func (l *Loop) nextPass(again time.Time) time.Time {
	now := l.Clock.Now()
	if again.IsZero() || again.After(now.Add(idle)) {
		return now.Add(idle)
	}
	if soonest := now.Add(overdue); again.Before(soonest) {
		return soonest
	}
	return again
}
