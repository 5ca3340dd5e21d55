package tracing

import (
	"sync"
	"time"

	"k8s.io/klog/v2"
)

// silence is the time between two log lines about lost spans.
const silence = 10 * time.Minute

// losses logs an error of sending spans, with the number of errors since the last line.
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
		l.log.Error(err, "Traces are lost: check that the collector answers at the endpoint. Nothing else is affected", "failures", l.since)
		l.last, l.since = now, 0
	}
}
