//go:build e2e

package e2e

import (
	"testing"

	"golang.org/x/sync/semaphore"
)

// reservations keep tests that run at once from waiting for each other's GPUs in the
// scheduler, where they would look like failures.
type reservations struct {
	all  int
	free *semaphore.Weighted
}

func newReservations(all int) *reservations {
	return &reservations{all: all, free: semaphore.NewWeighted(int64(all))}
}

// reserve waits for count GPUs and returns what gives them back. Who wants none does not wait behind
// a test that waits for all.
func (r *reservations) reserve(t testing.TB, count int) (release func()) {
	t.Helper()
	if count == 0 {
		return func() {}
	}
	if count > r.all {
		skip(t, "it needs %d GPUs and the node has %d", count, r.all)
	}
	if err := r.free.Acquire(t.Context(), int64(count)); err != nil {
		t.Fatalf("reserve %d of %d GPUs: %v", count, r.all, err)
	}
	return func() { r.free.Release(int64(count)) }
}
