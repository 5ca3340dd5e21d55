package crd

import (
	"context"
	"sync/atomic"
	"time"

	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
)

// period is how often the API server is asked: CustomResourceDefinitions are upgraded by hand.
const period = 10 * time.Minute

// Watcher asks an API server whether its CustomResourceDefinitions are of this version.
type Watcher struct {
	// Read gets the document at Path.
	Read  func(context.Context) ([]byte, error)
	Clock clock.WithTicker

	sentence atomic.Pointer[string]
}

// NeedLeaderElection is false: a replica that begins to lead knows already.
func (*Watcher) NeedLeaderElection() bool { return false }

// Sentence is Sentence of what was lacking when the API server was asked last; empty: nothing, as far as it is known.
func (w *Watcher) Sentence() string {
	if last := w.sentence.Load(); last != nil {
		return *last
	}
	return ""
}

// Start asks until ctx ends.
func (w *Watcher) Start(ctx context.Context) error {
	for {
		w.once(ctx)
		timer := w.Clock.NewTimer(period)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-timer.C():
		}
	}
}

// once keeps what was known if the API server does not answer.
func (w *Watcher) once(ctx context.Context) {
	document, err := w.Read(ctx)
	var missing []string
	if err == nil {
		missing, err = Lacking(document)
	}
	if err != nil {
		klog.FromContext(ctx).V(2).Info("Cannot compare the CustomResourceDefinitions; trying again", "every", period, "err", err)
		return
	}
	sentence := Sentence(missing)
	if sentence != w.Sentence() {
		klog.FromContext(ctx).Info("Compared the CustomResourceDefinitions with this version", "missing", missing, "advice", sentence)
	}
	w.sentence.Store(&sentence)
}
