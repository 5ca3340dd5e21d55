package prepare

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// gone remembers since when claims with a record are known to be gone. A pod that
// was deleted by force leaves the API server before kubelet has stopped its
// containers, so that a claim is not released when it is first seen to be gone.
type gone struct {
	mu    sync.Mutex
	since map[types.UID]time.Time
}

// seen returns for how long the claim is known to be gone, 0 at the first time.
func (g *gone) seen(claim types.UID) time.Duration {
	g.mu.Lock()
	defer g.mu.Unlock()
	if since, known := g.since[claim]; known {
		return time.Since(since)
	}
	if g.since == nil {
		g.since = map[types.UID]time.Time{}
	}
	g.since[claim] = time.Now()
	return 0
}

// forget is for claims that live, or have no record any more.
func (g *gone) forget(claim types.UID) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.since, claim)
}

// keep forgets all claims but these.
func (g *gone) keep(claims map[types.UID]bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for claim := range g.since {
		if !claims[claim] {
			delete(g.since, claim)
		}
	}
}

// longest returns for how long the first of them is known to be gone.
func (g *gone) longest() (age time.Duration, any bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, since := range g.since {
		age, any = max(age, time.Since(since)), true
	}
	return age, any
}
