// Package control is the controller's loop: look at the cluster, plan, act, report. Each pass
// begins with nothing but what the API server says, so a controller may die at any point. It
// owns the order of things and the status of groups and headrooms; it decides nothing else.
//
// Statuses are written, and pods told, beside the loop: a decision waits for none of that.
//
// A pass never acts twice on what an earlier one has done, though its cache may be behind:
// the client that it is given waits, before it reads, until the cache has seen what was
// written through it (controller-runtime's EnableReadYourWritesConsistency). Another
// controller's last writes, before this one led, are in the cache because it lists anew, or
// because names are made from what they are for and a status is only updated from the version
// that was read: the API server refuses the second of two.
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
	"github.com/mica-gpu/mica/pkg/scaleout/headroom"
	"github.com/mica-gpu/mica/pkg/scaleout/pair"
	"github.com/mica-gpu/mica/pkg/scaleout/ready"
	"github.com/mica-gpu/mica/pkg/scaleout/view"
)

// Options are what a Loop is made of.
type Options struct {
	// Driver is our driver's name.
	Driver string
	// Client reads what it has written.
	Client client.Client
	// Live reads the API server itself.
	Live client.Reader
	// Recorder writes Events.
	Recorder events.EventRecorder
	Clock    clock.WithTicker
	// Placeholder is how placeholders are made.
	Placeholder pair.PlaceholderOptions
	// FailClosed keeps pods under a budget from Cluster Autoscaler also while no controller runs.
	FailClosed bool
	// Autoscaler is the ConfigMap in which Cluster Autoscaler tells its status.
	Autoscaler types.NamespacedName
	// Nodegroups is EKS; nil where it is not to be asked. Groups of pairing direct then do
	// not grow, and say so.
	Nodegroups pair.Nodegroups
	// DiscoverNodes makes groups of live nodes that are of none.
	DiscoverNodes bool
	// Outdated says that the CustomResourceDefinitions are older than the controller, and how to mend it; empty: they
	// are not. Nil: never.
	Outdated func() string
	// DiscoveredPairing is the pairing of those groups. Empty: observe.
	DiscoveredPairing v1alpha1.Pairing
	// Answers are those to the queries of headrooms; nil: those that were given to an earlier process.
	Answers view.Answers
	// Forecast asks for room for more pods, and is told; nil where nobody asks.
	Forecast Forecast
}

// Forecast is what is asked of the plan besides what it is made for: package forecast.
type Forecast interface {
	// Replicas are those that the next plan counts room for.
	Replicas() []scaleout.Replica
	// Tell tells of the plan and what it was made of, Failed of a pass that had none.
	Tell(scaleout.Snapshot, scaleout.Decision)
	Failed(error)
}

// nobody asks for nothing.
type nobody struct{}

func (nobody) Replicas() []scaleout.Replica              { return nil }
func (nobody) Tell(scaleout.Snapshot, scaleout.Decision) {}
func (nobody) Failed(error)                              {}

// silence has no answer.
type silence struct{}

func (silence) Of(*v1alpha1.GPUHeadroom) headroom.Answer { return headroom.Answer{} }

// Loop looks at the cluster whenever something has changed, and acts. One controller of a
// cluster runs it at a time; its Follower runs in the others.
type Loop struct {
	Options
	memo     *view.Memo
	executor *pair.Executor
	gate     *ready.Gate
	handover *handover.Teller
	teller   *teller
	waiting  waiting
	// arrivals is nil before the first pass.
	arrivals arrivals
	dirty    chan struct{}
	// leads is closed when this replica begins to act, and looks is held by whoever of Loop and
	// Follower looks at the cluster.
	leads chan struct{}
	looks sync.Mutex
	// told has the errors of the last pass: each is logged when it is new.
	told map[string]bool
	// passing is when the pass that runs has last made progress, in nanoseconds since 1970; 0: none runs.
	passing atomic.Int64
}

// New prepares a loop; nothing happens before Start.
func New(o Options) *Loop {
	if o.Forecast == nil {
		o.Forecast = nobody{}
	}
	if o.Answers == nil {
		o.Answers = silence{}
	}
	if o.Outdated == nil {
		o.Outdated = func() string { return "" }
	}
	o.DiscoveredPairing = cmp.Or(o.DiscoveredPairing, v1alpha1.PairingObserve)
	l := &Loop{
		Options:  o,
		memo:     view.NewMemo(),
		executor: &pair.Executor{Client: o.Client, Live: o.Live, Nodegroups: o.Nodegroups},
		gate:     &ready.Gate{Driver: o.Driver, Client: o.Client, Recorder: observer{o.Recorder}},
		handover: &handover.Teller{Driver: o.Driver, Client: o.Client},
		waiting:  waiting{},
		dirty:    make(chan struct{}, 1),
		leads:    make(chan struct{}),
	}
	l.teller = &teller{reporter: explain.NewReporter(o.Client, o.Recorder), clock: o.Clock, again: l.Enqueue, news: make(chan news, 1)}
	return l
}

// NeedLeaderElection tells the manager that one replica runs the loop.
func (*Loop) NeedLeaderElection() bool { return true }

// Enqueue says that something has changed. It does not block.
func (l *Loop) Enqueue() {
	select {
	case l.dirty <- struct{}{}:
	default: // a pass is due already
	}
}

// progress notes that one part of a pass is over.
func (l *Loop) progress() { l.passing.Store(l.Clock.Now().UnixNano()) }

// Alive is an error while a pass hangs, for a probe that has the process started anew. A pass that is slow
// in each of its parts does not hang: a new process would list the whole cluster again.
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
	// hangs is longer than any part of a pass: planning, acting and EKS have limits of their own.
	hangs = 5 * time.Minute
	// settle is how long a pass waits after the first change for those that come with it: a
	// Deployment's pods, a node's slices.
	settle = 200 * time.Millisecond
	// rest is the longest pause after a pass: as long as the pass took, so that a cluster in
	// which something changes all the time costs half a core at most, but short enough for
	// the answer to Cluster Autoscaler.
	rest = 500 * time.Millisecond
	// idle is how long nothing happens without a change. Time itself changes things.
	idle = time.Minute
	// overdue is how soon a pass follows another without a change.
	overdue = time.Second
	// retry is how long a pass waits after one that could not read the cluster.
	retry = 2 * time.Second
)

// Start runs until ctx ends. The first pass is at once. It may be called once.
func (l *Loop) Start(ctx context.Context) error {
	close(l.leads)
	var telling sync.WaitGroup
	defer telling.Wait()
	telling.Go(func() { l.teller.run(ctx) })
	return l.run(ctx, l.Pass)
}

// run passes at once, and then whenever something has changed, until ctx ends.
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
		l.logNew(ctx, err)
		next = l.nextPass(again)
		if !l.sleep(ctx, min(l.Clock.Since(begun), rest)) {
			return nil
		}
	}
}

// await returns when a pass is due, or false when ctx has ended.
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
	case <-l.dirty: // it will be seen by the pass that begins now
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

// nextPass is never at once: what is overdue, and stays so, must not become a busy loop.
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
