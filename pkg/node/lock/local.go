package lock

import (
	"context"
	"sync"
)

// local excludes the goroutines of this process from each other, key by key.
type local struct {
	mu    sync.Mutex
	gates map[string]*gate // only keys that are held or waited for
}

// gate is one key's lock: the goroutine that has put a token into the channel holds it.
// Go serves the senders of a channel in the order in which they came.
type gate struct {
	token chan struct{}
	users int // holders and waiters; the gate goes with the last of them
}

func (l *local) take(ctx context.Context, key string) error {
	l.mu.Lock()
	g := l.gates[key]
	if g == nil {
		g = &gate{token: make(chan struct{}, 1)}
		l.gates[key] = g
	}
	g.users++
	l.mu.Unlock()

	// Without this a context that has ended could still win the select.
	if ctx.Err() == nil {
		select {
		case g.token <- struct{}{}:
			return nil
		case <-ctx.Done():
		}
	}
	l.leave(key, g)
	return context.Cause(ctx)
}

func (l *local) give(key string) {
	l.mu.Lock()
	g := l.gates[key]
	l.mu.Unlock()
	<-g.token
	l.leave(key, g)
}

func (l *local) leave(key string, g *gate) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if g.users--; g.users == 0 {
		delete(l.gates, key)
	}
}
