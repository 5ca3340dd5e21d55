// Package forecast relays between KEDA's requests and the planner: it registers replicas, the loop
// counts room for them in its next plan, and requests get the counts of the last plan. It plans
// nothing itself.
package forecast

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/mica-gpu/mica/pkg/scaleout"
)

const (
	// forgotten is how long a replica stays registered after its last request.
	forgotten = 5 * time.Minute
	// stale is the age at which an answer is refused. The loop makes a plan every minute at least.
	stale = 3 * time.Minute
	// most bounds registered replicas, and so the time for counting.
	most = 4096
)

// Forecast holds registered replicas and the last plan's answers. It is safe for concurrent use.
type Forecast struct {
	changed func()
	clock   clock.PassiveClock

	mu sync.Mutex
	// asked are by the ID that identify derives from a replica's content.
	asked map[string]*question
	// next is closed and replaced with each plan.
	next chan struct{}
	// planned is the time of the last plan, known its pods, and blocked the pods without room in it.
	planned        time.Time
	known, blocked map[types.UID]bool
	// failure is the error of the last pass; nil if it made a plan.
	failure error
}

// question is a registered replica.
type question struct {
	replica scaleout.Replica
	last    time.Time
	// waiting counts callers that wait for the first answer; they keep the replica registered.
	waiting int
	// supply is nil before the first answer, at its time.
	supply *scaleout.Supply
	at     time.Time
}

// New returns a forecast without a plan. It calls changed, which must not block, when it needs a plan
// soon.
func New(changed func(), clock clock.PassiveClock) *Forecast {
	return &Forecast{changed: changed, clock: clock, asked: map[string]*question{}, next: make(chan struct{})}
}

// Supply returns the last plan's count for the replica. For a new replica it waits for the first plan
// with it, until ctx ends. It keeps the replica: do not modify it. It returns an error if the last
// plan is older than three minutes, if ctx ends, or if too many replicas are registered.
func (f *Forecast) Supply(ctx context.Context, replica scaleout.Replica) (scaleout.Supply, error) {
	key, err := identify(replica)
	if err != nil {
		return scaleout.Supply{}, err
	}
	q, isNew, err := f.ask(key, replica)
	if err != nil {
		return scaleout.Supply{}, err
	}
	defer f.leave(q)
	if isNew {
		f.changed()
	}
	for {
		supply, next, err := f.answer(q)
		if err != nil {
			return scaleout.Supply{}, fmt.Errorf("room for more pods like %s: %w", replica.ID, err)
		}
		if supply != nil {
			answer := *supply
			answer.ID = replica.ID
			return answer, nil
		}
		select {
		case <-next:
		case <-ctx.Done():
			return scaleout.Supply{}, fmt.Errorf("room for more pods like %s: no plan has counted it yet%s: %w", replica.ID, f.because(), ctx.Err())
		}
	}
}

// ask finds or registers a replica, and keeps it until leave.
func (f *Forecast) ask(key string, replica scaleout.Replica) (q *question, isNew bool, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	q, known := f.asked[key]
	if !known {
		if len(f.asked) >= most {
			f.forget()
		}
		if len(f.asked) >= most {
			return nil, false, fmt.Errorf("room for more pods like %s: %d other replicas are registered, which is the limit: scale fewer workloads by it", replica.ID, most)
		}
		replica.ID = key
		q = &question{replica: replica}
		f.asked[key] = q
	}
	q.last = f.clock.Now()
	q.waiting++
	return q, !known, nil
}

func (f *Forecast) leave(q *question) {
	f.mu.Lock()
	defer f.mu.Unlock()
	q.waiting--
	q.last = f.clock.Now()
}

// answer returns the supply, or the channel that is closed with the next plan.
func (f *Forecast) answer(q *question) (*scaleout.Supply, <-chan struct{}, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if q.supply == nil {
		return nil, f.next, nil
	}
	if age := f.clock.Since(q.at); age > stale {
		return nil, nil, fmt.Errorf("the last plan is %s old, which is too old%s: see the controller's log",
			age.Truncate(time.Second), f.becauseLocked())
	}
	return q.supply, nil, nil
}

// because returns why there is no new plan, if known.
func (f *Forecast) because() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.becauseLocked()
}

func (f *Forecast) becauseLocked() string {
	if f.failure == nil {
		return ""
	}
	return fmt.Sprintf(" (the last pass over the cluster has failed: %v)", f.failure)
}

// forget drops replicas without recent requests.
func (f *Forecast) forget() {
	now := f.clock.Now()
	maps.DeleteFunc(f.asked, func(_ string, q *question) bool {
		return q.waiting == 0 && now.Sub(q.last) > forgotten
	})
}

// Replicas returns the registered replicas for the next plan, with the forecast's own IDs.
func (f *Forecast) Replicas() []scaleout.Replica {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.forget()
	replicas := make([]scaleout.Replica, 0, len(f.asked))
	for _, key := range slices.Sorted(maps.Keys(f.asked)) {
		replicas = append(replicas, f.asked[key].replica)
	}
	return replicas
}

// Planned stores the answers of a plan, and the pods of its snapshot.
func (f *Forecast) Planned(s scaleout.Snapshot, d scaleout.Decision) {
	known := pods(s)
	f.mu.Lock()
	defer f.mu.Unlock()
	now := f.clock.Now()
	f.known = known
	for i := range d.Supplies {
		if q := f.asked[d.Supplies[i].ID]; q != nil {
			q.supply, q.at = &d.Supplies[i], now
		}
	}
	f.planned, f.failure = now, nil
	f.blocked = map[types.UID]bool{}
	for _, kind := range d.Kinds {
		for _, pod := range kind.Pods {
			switch pod.Outcome {
			case scaleout.Blocked, scaleout.Advised, scaleout.Held, scaleout.Unused, scaleout.OverBudget:
				f.blocked[pod.UID] = true
			}
		}
	}
	close(f.next)
	f.next = make(chan struct{})
}

// Failed records that a pass ended without a plan.
func (f *Forecast) Failed(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.failure = err
}

// Blocked reports whether the last plan found no room for a pending pod, or room only in a group that
// does not grow by itself. It is false if the plan is stale.
func (f *Forecast) Blocked(pod types.UID) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.blocked[pod] && f.clock.Since(f.planned) <= stale
}

// Known reports whether the last plan included the pod. Supplies do not account for devices of pods
// that it lacks.
func (f *Forecast) Known(pod types.UID) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.known[pod]
}

// pods lists all pods of a snapshot.
func pods(s scaleout.Snapshot) map[types.UID]bool {
	known := make(map[types.UID]bool, len(s.Pending))
	for _, pod := range s.Pending {
		known[pod.UID] = true
	}
	for i := range s.Nodes {
		for _, pod := range s.Nodes[i].Pods {
			known[pod.UID] = true
		}
	}
	return known
}

// identify hashes a replica's ID and content.
func identify(replica scaleout.Replica) (string, error) {
	sum := sha256.New()
	fmt.Fprintf(sum, "%q", replica.ID)
	var failed error
	add := func(name string, marshal func() ([]byte, error)) {
		wire, err := marshal()
		if err != nil {
			failed = fmt.Errorf("room for more pods like %s: cannot encode its %s: %w", replica.ID, name, err)
		}
		fmt.Fprintf(sum, "%s %d %s", name, len(wire), wire)
	}
	if replica.Pod != nil {
		add("pod", replica.Pod.Marshal)
	}
	if replica.Claim != nil {
		add("claim", replica.Claim.Marshal)
	}
	for _, member := range replica.Gang {
		add(fmt.Sprintf("member times %d", member.Count), member.Pod.Marshal)
	}
	return hex.EncodeToString(sum.Sum(nil)[:16]), failed
}
