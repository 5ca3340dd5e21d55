package crd

import (
	"context"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"
)

// period is long, because administrators upgrade CustomResourceDefinitions by hand.
const period = 10 * time.Minute

// Watcher checks the API server's CustomResourceDefinitions against this version.
type Watcher struct {
	// Read gets the document at Path.
	Read func(context.Context) ([]byte, error)

	sentence atomic.Pointer[string]
}

// NeedLeaderElection is false, so that a new leader has the result at once.
func (*Watcher) NeedLeaderElection() bool { return false }

// Sentence describes what the last check found; empty if nothing, or if no check has ended yet.
func (w *Watcher) Sentence() string {
	if last := w.sentence.Load(); last != nil {
		return *last
	}
	return ""
}

// Start checks periodically until ctx ends.
func (w *Watcher) Start(ctx context.Context) error {
	wait.UntilWithContext(ctx, w.once, period)
	return nil
}

// once keeps the last result if the API server does not answer.
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
