package tracing

import (
	"sync"
	"time"

	"k8s.io/klog/v2"
)

// silence is between two lines about spans that are lost.
const silence = 10 * time.Minute

// losses log what goes wrong with spans, and how often it did meanwhile. It implements
// otel.ErrorHandler.
type losses struct {
	log klog.Logger

	mu    sync.Mutex
	last  time.Time
	since int
}

// Handle implements otel.ErrorHandler.
func (l *losses) Handle(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.since++
	if now := time.Now(); l.last.IsZero() || now.Sub(l.last) >= silence {
		l.log.Error(err, "Traces are lost: see that the collector answers at the endpoint. Nothing else is affected", "failures", l.since)
		l.last, l.since = now, 0
	}
}
