package workload

import (
	"context"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/types"
)

// kindClass is that of a Ref under which claims are counted that ask for a class: it has the
// namespace of the claims and the name of the class.
const kindClass = "DeviceClass"

// entry is something that is waited for, under one of the names that it counts for.
type entry struct {
	of Ref
	// wait is the same for all who wait for the same thing in a namespace.
	wait string
}

// tally counts what is waited for. A change costs as much as the pod that it is of, however
// many pods and watchers there are.
type tally struct {
	mu sync.Mutex
	// counts have no zeros.
	counts map[Ref]int
	// pods have what each was counted for last.
	pods map[types.NamespacedName][]entry
	// waiting is how many pods an entry is of: a claim that pods share counts once.
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

// update counts a pod anew. It reads under the lock: of two who update a pod at once, the
// later one has read later, too.
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

// push replaces what a slow reader has not read. Nobody else sends: the lock is held.
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

// watch gives the count at once and when it has changed. The channel is closed when ctx ends.
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
