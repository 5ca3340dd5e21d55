package nvml

import (
	"fmt"
	"sync"
	"time"
)

// patience is how long a call about a GPU may take that others wait for. A driver that wakes a
// GPU up, or recovers one, holds calls up for seconds.
const patience = 10 * time.Second

// waits are the calls that have not returned, by what they do.
type waits struct {
	mu    sync.Mutex
	under map[string]bool
}

// begin is false while an earlier call that does the same has not returned.
func (w *waits) begin(what string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.under[what] {
		return false
	}
	if w.under == nil {
		w.under = map[string]bool{}
	}
	w.under[what] = true
	return true
}

func (w *waits) end(what string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.under, what)
}

// bounded makes a call about a GPU within the caller's session, and waits for it as long as a GPU
// may take. Then it is ErrSilent, also for further calls that do the same, until the first returns;
// its session lasts as long.
func bounded[T any](s *sessions, what string, call func() (T, error)) (answer T, err error) {
	silent := fmt.Errorf("%s: %w within %s", what, ErrSilent, patience)
	if !s.waits.begin(what) {
		return answer, silent
	}
	s.use.RLock()
	returned := make(chan func() (T, error), 1)
	go func() {
		answer, err := call()
		s.use.RUnlock()
		s.waits.end(what)
		returned <- func() (T, error) { return answer, err }
	}()
	late := time.NewTimer(patience)
	defer late.Stop()
	select {
	case result := <-returned:
		return result()
	case <-late.C:
		return answer, silent
	}
}
