// Package forecast keeps what is asked of the plan: for how many more pods like a replica there
// is room, now and after all growth. Who asks is answered from the last plan; the loop takes
// the replicas along in the next one. It plans nothing itself.
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
	// forgotten is a replica for which nobody has asked that long.
	forgotten = 5 * time.Minute
	// stale is an answer that old. The loop passes every minute at least: it is broken then.
	stale = 3 * time.Minute
	// most is how many replicas there may be: counting for them has to end.
	most = 4096
)

// Forecast holds the questions for the loop and its answers. It is safe for concurrent use.
type Forecast struct {
	changed func()
	clock   clock.PassiveClock

	mu sync.Mutex
	// asked are by the ID under which the plan gets them, which is another where the content is.
	asked map[string]*question
	// told is closed, and made anew, with each plan.
	told chan struct{}
	// planned is when the last plan was told of, known are the pods that it had, and blocked is
	// what it found no room for.
	planned        time.Time
	known, blocked map[types.UID]bool
	// failure is why the last pass had no plan; nil where it had one.
	failure error
}

// question is a replica that somebody asks for.
type question struct {
	replica scaleout.Replica
	last    time.Time
	// waiting counts those who wait for the first answer: they keep the question.
	waiting int
	// supply is nil before the first answer, which was given at.
	supply *scaleout.Supply
	at     time.Time
}

// New makes a forecast for which nothing was planned yet. It calls changed when a plan is
// wanted soon; changed must not block.
func New(changed func(), clock clock.PassiveClock) *Forecast {
	return &Forecast{changed: changed, clock: clock, asked: map[string]*question{}, told: make(chan struct{})}
}

// Supply is what the last plan has counted for the replica. For one that is new, or of another
// content than before, it waits for the first plan that has it, until ctx ends. The replica is
// kept, and not to be changed. A supply is never older than three minutes: there is an error then,
// and where ctx ends or too many replicas are asked for.
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

// ask finds a question, or notes a new one, and keeps it until its asker leaves.
func (f *Forecast) ask(key string, replica scaleout.Replica) (q *question, isNew bool, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	q, known := f.asked[key]
	if !known {
		if len(f.asked) >= most {
			f.forget()
		}
		if len(f.asked) >= most {
			return nil, false, fmt.Errorf("room for more pods like %s: room is counted for %d other samples already, which is the most: "+
				"let fewer workloads be scaled by it", replica.ID, most)
		}
		replica.ID = key
		q = &question{replica: replica}
		f.asked[key] = q
	}
	q.last = f.clock.Now()
	q.waiting++
	return q, !known, nil
}

// leave ends the asking.
func (f *Forecast) leave(q *question) {
	f.mu.Lock()
	defer f.mu.Unlock()
	q.waiting--
	q.last = f.clock.Now()
}

// answer gives the supply, or the channel that is closed when there is a new plan.
func (f *Forecast) answer(q *question) (*scaleout.Supply, <-chan struct{}, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if q.supply == nil {
		return nil, f.told, nil
	}
	if age := f.clock.Since(q.at); age > stale {
		return nil, nil, fmt.Errorf("the last plan is %s old, so that it is not known any more%s: look at the controller's log",
			age.Truncate(time.Second), f.becauseLocked())
	}
	return q.supply, nil, nil
}

// because is why there is no new plan, as far as that is known.
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

// forget forgets what nobody asks for any more.
func (f *Forecast) forget() {
	now := f.clock.Now()
	maps.DeleteFunc(f.asked, func(_ string, q *question) bool {
		return q.waiting == 0 && now.Sub(q.last) > forgotten
	})
}

// Replicas are those that the next plan is asked for, with IDs of the forecast's own.
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

// Tell tells of a plan that had replicas of the forecast, and of what it was made of.
func (f *Forecast) Tell(s scaleout.Snapshot, d scaleout.Decision) {
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
	close(f.told)
	f.told = make(chan struct{})
}

// Failed tells of a pass that had no plan.
func (f *Forecast) Failed(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.failure = err
}

// Blocked tells of a pending pod that the last plan found no room for, or only in a group that
// nobody makes grow, which is no room for a replica either. It is false where the plan is so old
// that it is not known.
func (f *Forecast) Blocked(pod types.UID) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.blocked[pod] && f.clock.Since(f.planned) <= stale
}

// Known tells whether the last plan had the pod, on a node or pending. What a pod takes that it
// had not is still in the supplies, and is counted twice by who counts both.
func (f *Forecast) Known(pod types.UID) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.known[pod]
}

// pods are all that a plan is made of.
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

// part is something of a replica that tells it from others.
type part struct {
	name  string
	there bool
	write func() ([]byte, error)
}

// identify is a name for a replica's ID and content.
func identify(replica scaleout.Replica) (string, error) {
	sum := sha256.New()
	fmt.Fprintf(sum, "%q", replica.ID)
	parts := []part{
		{"pod", replica.Pod != nil, replica.Pod.Marshal},
		{"claim", replica.Claim != nil, replica.Claim.Marshal},
	}
	for _, member := range replica.Gang {
		parts = append(parts, part{fmt.Sprintf("member times %d", member.Count), true, member.Pod.Marshal})
	}
	for _, p := range parts {
		if !p.there {
			continue
		}
		wire, err := p.write()
		if err != nil {
			return "", fmt.Errorf("room for more pods like %s: its %s cannot be written down to be told from others: %w", replica.ID, p.name, err)
		}
		fmt.Fprintf(sum, "%s %d %s", p.name, len(wire), wire)
	}
	return hex.EncodeToString(sum.Sum(nil)[:16]), nil
}
