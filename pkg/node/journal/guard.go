package journal

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/mica-gpu/mica/pkg/node/lock"
)

// guard keeps those who add files (shared) and those who remove files that they
// take for bad or left over (exclusive) apart, between processes by a flock of
// the directory. Readers need it not: they see a whole file or none.
type guard struct {
	dir string
	// local lets an exclusive waiter in between writers that never pause; flock
	// alone would let it starve.
	local sync.RWMutex
}

// exclusiveWait bounds the wait for a process that hangs in the middle of a Put.
const exclusiveWait = time.Second

var errBusy = errors.New("another plugin process is writing to the journal")

func (g *guard) shared(ctx context.Context) (release func(), err error) {
	g.local.RLock()
	unlock, err := g.flock(ctx, lock.Shared)
	if err != nil {
		g.local.RUnlock()
		return nil, err
	}
	return func() { unlock(); g.local.RUnlock() }, nil
}

// exclusive fails with errBusy when another process keeps writing.
func (g *guard) exclusive() (release func(), err error) {
	ctx, cancel := context.WithTimeoutCause(context.Background(), exclusiveWait, errBusy)
	defer cancel()
	g.local.Lock()
	unlock, err := g.flock(ctx, lock.Exclusive)
	if err != nil {
		g.local.Unlock()
		return nil, err
	}
	return func() { unlock(); g.local.Unlock() }, nil
}

func (g *guard) flock(ctx context.Context, mode lock.Mode) (unlock func(), err error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	dir, err := os.Open(g.dir)
	if err != nil {
		return nil, err
	}
	if err := lock.File(ctx, dir, mode); err != nil {
		dir.Close()
		return nil, fmt.Errorf("waiting for the lock of the journal: %w", err)
	}
	return func() {
		_ = lock.Unlock(dir)
		_ = dir.Close()
	}, nil
}
