package control

import (
	"context"
	"errors"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"

	"github.com/mica-gpu/mica/pkg/scaleout/explain"
)

// teller writes statuses, and tells pods what they wait for, beside the loop: hundreds of writes take
// seconds, in which the loop decides. Of what it is given it has the newest alone, and loses nothing when it is killed:
// who begins to lead finds in the pods' conditions what they were not told.
type teller struct {
	reporter *explain.Reporter
	clock    clock.WithTicker
	// again begins a pass, when there is more to tell.
	again func()
	news  chan news

	lock sync.Mutex
	// err is of the last telling, until the next pass tells of it.
	err error
}

// news is what one pass has found out.
type news struct {
	// statuses writes those of groups, headrooms and budgets.
	statuses  func(context.Context) error
	explained []explain.Explanation
	pods      []*corev1.Pod
	at        time.Time
}

// give does not wait for anything to be told. One goroutine calls it.
func (t *teller) give(n news) {
	select {
	case <-t.news: // what nobody has told yet is outdated
	default:
	}
	t.news <- n
}

// run tells until ctx ends.
func (t *teller) run(ctx context.Context) {
	var more <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case n := <-t.news:
			more = nil
			if wait := t.tell(ctx, n); wait > 0 {
				more = t.clock.After(wait)
			}
		case <-more:
			more = nil
			t.again()
		}
	}
}

// tell gives how long it is until there is more to tell, zero where there is nothing.
func (t *teller) tell(ctx context.Context, n news) time.Duration {
	written := n.statuses(ctx)
	wait, err := t.reporter.Report(ctx, n.explained, n.pods, n.at)
	t.lock.Lock()
	defer t.lock.Unlock()
	t.err = errors.Join(written, err)
	return wait
}

// failure is what went wrong last.
func (t *teller) failure() error {
	t.lock.Lock()
	defer t.lock.Unlock()
	return t.err
}
