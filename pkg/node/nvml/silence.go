package nvml

import (
	"fmt"
	"sync"
	"time"
)

// patience is how long a call for a GPU may block others. A driver that initializes or recovers a GPU
// delays calls for seconds.
const patience = 10 * time.Second

// waits are the calls that have not returned, by name.
type waits struct {
	mu    sync.Mutex
	under map[string]wait
}

type wait struct {
	until    time.Time
	returned chan struct{}
}

// begin registers a call. other is an earlier call of the same name that has not returned.
func (w *waits) begin(what string) (own wait, other *wait) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if earlier, under := w.under[what]; under {
		return wait{}, &earlier
	}
	if w.under == nil {
		w.under = map[string]wait{}
	}
	own = wait{until: time.Now().Add(patience), returned: make(chan struct{})}
	w.under[what] = own
	return own, nil
}

func (w *waits) end(what string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	close(w.under[what].returned)
	delete(w.under, what)
}

// over waits for the call, and reports whether it returned in time.
func (w wait) over() bool {
	late := time.NewTimer(time.Until(w.until))
	defer late.Stop()
	select {
	case <-w.returned:
		return true
	case <-late.C:
		return false
	}
}

// bounded makes a call for a GPU within the caller's session, and waits for patience. After that it
// returns ErrSilent, also for further calls of the same name until the first returns; the session
// lives as long.
func bounded[T any](s *sessions, what string, call func() (T, error)) (answer T, err error) {
	silent := fmt.Errorf("%s: %w within %s", what, ErrSilent, patience)
	own, other := s.waits.begin(what)
	for ; other != nil; own, other = s.waits.begin(what) {
		if !other.over() {
			return answer, silent
		}
	}
	s.use.RLock()
	var returned func() (T, error)
	go func() {
		answer, err := call()
		s.use.RUnlock()
		returned = func() (T, error) { return answer, err }
		s.waits.end(what)
	}()
	if !own.over() {
		return answer, silent
	}
	return returned()
}
