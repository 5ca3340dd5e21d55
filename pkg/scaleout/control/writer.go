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

// writer writes statuses and pods' conditions beside the loop, because hundreds of writes take seconds. It keeps the newest
// report only. A crash loses nothing: the next leader compares the pods' conditions with its own report.
type writer struct {
	reporter *explain.Reporter
	clock    clock.WithTicker
	// again begins a pass, when the reporter has more to write.
	again   func()
	reports chan report

	lock sync.Mutex
	// err is the last write's, for the next pass.
	err error
}

// report is a pass's result.
type report struct {
	// statuses writes those of groups, headrooms and budgets.
	statuses  func(context.Context) error
	explained []explain.Explanation
	pods      []*corev1.Pod
	at        time.Time
}

// submit replaces an unwritten report. It does not block. Only one goroutine may call it.
func (w *writer) submit(r report) {
	select {
	case <-w.reports:
	default:
	}
	w.reports <- r
}

// run writes until ctx ends.
func (w *writer) run(ctx context.Context) {
	var more <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case r := <-w.reports:
			more = nil
			if wait := w.write(ctx, r); wait > 0 {
				more = w.clock.After(wait)
			}
		case <-more:
			more = nil
			w.again()
		}
	}
}

// write returns how long the reporter waits before it writes more, or zero.
func (w *writer) write(ctx context.Context, r report) time.Duration {
	written := r.statuses(ctx)
	wait, err := w.reporter.Report(ctx, r.explained, r.pods, r.at)
	w.lock.Lock()
	defer w.lock.Unlock()
	w.err = errors.Join(written, err)
	return wait
}

// failure is the last write's error.
func (w *writer) failure() error {
	w.lock.Lock()
	defer w.lock.Unlock()
	return w.err
}
