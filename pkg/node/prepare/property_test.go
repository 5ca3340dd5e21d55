package prepare

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
)

// TestRandomHistories holds the preparer against a model that fits on a page:
// which claims exist, which are prepared for kubelet, and which files
// were destroyed.
func TestRandomHistories(t *testing.T) {
	for seed := range uint64(40) {
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
			h := history{rig: newRig(t), random: rand.New(rand.NewPCG(seed, 7)), claims: map[string]*modelClaim{}}
			h.preparer = h.start(t)
			for range 120 {
				h.step(t)
				if t.Failed() {
					for _, line := range h.log {
						t.Log(line)
					}
					return
				}
			}
		})
	}
}

type modelClaim struct {
	*resourceapi.ResourceClaim
	minors []int
	exists bool // for the API server
	// What the node has of it.
	prepared, noRecord, noSpec bool
}

type history struct {
	*rig
	random   *rand.Rand
	preparer *Preparer
	claims   map[string]*modelClaim
	log      []string
	created  int
}

func (h *history) step(t *testing.T) {
	t.Helper()
	switch op := h.random.IntN(11); op {
	case 0, 1:
		h.create()
	case 2, 3, 4:
		h.with(func(c *modelClaim) bool { return c.exists }, "prepare", func(c *modelClaim) {
			prepare(t, h.preparer, c.ResourceClaim)
			h.takeOver(c)
			c.prepared, c.noRecord, c.noSpec = true, false, false
		})
	case 5:
		h.with(func(*modelClaim) bool { return true }, "unprepare", func(c *modelClaim) {
			unprepare(t, h.preparer, c.ResourceClaim)
			c.forget()
		})
	case 6:
		h.with(func(c *modelClaim) bool { return c.exists }, "delete", func(c *modelClaim) {
			h.api.remove(c.ResourceClaim)
			c.exists = false
		})
	case 7:
		h.log = append(h.log, "crash")
		h.preparer = h.start(t)
	case 8:
		h.with(func(c *modelClaim) bool { return c.prepared && !c.noSpec }, "lose the CDI file of", func(c *modelClaim) {
			remove(t, h.spec(c.ResourceClaim))
			c.noSpec = true
		})
	case 9:
		h.with(func(c *modelClaim) bool { return c.prepared && !c.noRecord }, "damage the record of", func(c *modelClaim) {
			h.damage(t, c)
			c.noRecord = true
		})
	case 10:
		h.log = append(h.log, "reconcile")
		reconcile(t, h.preparer)
		for _, c := range h.claims {
			if !c.exists || c.noRecord && c.noSpec {
				c.forget()
			}
			c.noRecord, c.noSpec = false, false
		}
		h.check(t)
	}
}

func (c *modelClaim) forget() { c.prepared, c.noRecord, c.noSpec = false, false, false }

// create allocates as the scheduler does: only GPUs of no existing claim.
func (h *history) create() {
	var free []int
	for minor := range gpuCount {
		if !slices.ContainsFunc(h.sorted(), func(c *modelClaim) bool { return c.exists && slices.Contains(c.minors, minor) }) {
			free = append(free, minor)
		}
	}
	if len(free) == 0 {
		return
	}
	h.random.Shuffle(len(free), func(i, j int) { free[i], free[j] = free[j], free[i] })
	minors := free[:1+h.random.IntN(min(3, len(free)))]
	h.created++
	name := fmt.Sprint("c", h.created)
	h.claims[name] = &modelClaim{ResourceClaim: h.claim(name, minors...), minors: minors, exists: true}
	h.log = append(h.log, fmt.Sprint("create ", name, " with ", minors))
}

// with does something to one of the claims for which it can be done.
func (h *history) with(can func(*modelClaim) bool, what string, do func(*modelClaim)) {
	var candidates []*modelClaim
	for _, c := range h.sorted() {
		if can(c) {
			candidates = append(candidates, c)
		}
	}
	if len(candidates) == 0 {
		return
	}
	c := candidates[h.random.IntN(len(candidates))]
	h.log = append(h.log, what+" "+c.Name)
	do(c)
}

// takeOver forgets the claims that are gone and whose record, or its copy, stood in the way.
func (h *history) takeOver(by *modelClaim) {
	for _, c := range h.claims {
		if c != by && c.prepared && !(c.noRecord && c.noSpec) && slices.ContainsFunc(c.minors, func(minor int) bool { return slices.Contains(by.minors, minor) }) {
			c.forget()
		}
	}
}

func (h *history) damage(t *testing.T, c *modelClaim) {
	t.Helper()
	content := read(t, h.record(c.ResourceClaim))
	switch h.random.IntN(3) {
	case 0:
		must(t, os.Truncate(h.record(c.ResourceClaim), int64(h.random.IntN(len(content)))))
	case 1:
		write(t, h.record(c.ResourceClaim), "garbage")
	default:
		remove(t, h.record(c.ResourceClaim))
	}
}

// check compares the node with the model.
func (h *history) check(t *testing.T) {
	t.Helper()
	var want []*resourceapi.ResourceClaim
	holder := map[int]string{}
	for _, c := range h.sorted() {
		if !c.prepared {
			continue
		}
		want = append(want, c.ResourceClaim)
		for _, minor := range c.minors {
			if other, held := holder[minor]; held {
				t.Errorf("%s and %s both hold gpu-%d", other, c.Name, minor)
			}
			holder[minor] = c.Name
		}
	}
	h.expect(t, want...)
}

// sorted makes a history depend on its seed alone.
func (h *history) sorted() []*modelClaim {
	var all []*modelClaim
	for i := range h.created {
		all = append(all, h.claims[fmt.Sprint("c", i+1)])
	}
	return all
}
