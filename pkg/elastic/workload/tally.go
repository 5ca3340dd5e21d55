package workload

import (
	"context"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/types"
)

// kindClass is the kind of a Ref that counts claims by DeviceClass: the namespace is the claims', the
// name the class.
const kindClass = "DeviceClass"

// entry is a pending claim under one of the keys that it counts for.
type entry struct {
	of Ref
	// wait is equal for all pods that wait for the same claim.
	wait string
}

// tally counts pending claims. An update costs as much as its pod, independent of the number of pods
// and watchers.
type tally struct {
	mu sync.Mutex
	// counts have no zeros.
	counts map[Ref]int
	// pods have the entries that each was last counted for.
	pods map[types.NamespacedName][]entry
	// waiting counts the pods of each entry: a shared claim counts once.
	waiting  map[entry]int
	watchers map[Ref]map[chan int]struct{}
}

func newTally() *tally {
	return &tally{
		counts:   map[Ref]int{},
		pods:     map[types.NamespacedName][]entry{},
		waiting:  map[entry]int{},
		watchers: map[Ref]map[chan int]struct{}{},
	}
}

// update recounts a pod. It reads under the lock, so that of two concurrent updates the later one
// reads later.
func (t *tally) update(pod types.NamespacedName, read func() ([]entry, error)) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	after, err := read()
	if err != nil {
		return err
	}
	t.set(pod, after)
	return nil
}

func (t *tally) set(pod types.NamespacedName, after []entry) {
	before := t.pods[pod]
	if slices.Equal(before, after) {
		return
	}
	counted := map[Ref]int{}
	for _, e := range slices.Concat(before, after) {
		counted[e.of] = t.counts[e.of]
	}
	for _, e := range before {
		t.remove(e)
	}
	for _, e := range after {
		t.add(e)
	}
	if t.pods[pod] = after; len(after) == 0 {
		delete(t.pods, pod)
	}
	for of, count := range counted {
		if t.counts[of] != count {
			t.push(of)
		}
	}
}

func (t *tally) add(e entry) {
	if t.waiting[e]++; t.waiting[e] == 1 {
		t.counts[e.of]++
	}
}

func (t *tally) remove(e entry) {
	if t.waiting[e]--; t.waiting[e] > 0 {
		return
	}
	delete(t.waiting, e)
	if t.counts[e.of]--; t.counts[e.of] == 0 {
		delete(t.counts, e.of)
	}
}

// push replaces a value that a slow reader has not received. The lock is held, so there is no other
// sender.
func (t *tally) push(of Ref) {
	for w := range t.watchers[of] {
		select {
		case <-w:
		default:
		}
		w <- t.counts[of]
	}
}

func (t *tally) count(of Ref) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.counts[of]
}

// watch sends the count at once and after each change. It closes the channel when ctx ends.
func (t *tally) watch(ctx context.Context, of Ref) <-chan int {
	t.mu.Lock()
	defer t.mu.Unlock()
	w := make(chan int, 1)
	w <- t.counts[of]
	if t.watchers[of] == nil {
		t.watchers[of] = map[chan int]struct{}{}
	}
	t.watchers[of][w] = struct{}{}
	context.AfterFunc(ctx, func() { t.forget(of, w) })
	return w
}

func (t *tally) forget(of Ref, w chan int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if delete(t.watchers[of], w); len(t.watchers[of]) == 0 {
		delete(t.watchers, of)
	}
	close(w)
}
