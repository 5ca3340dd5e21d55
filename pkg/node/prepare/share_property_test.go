package prepare

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/mica-gpu/mica/pkg/node/journal"
)

// TestRandomHistoriesOfShares prepares, unprepares and crashes with claims on one GPU,
// placed as the scheduler places them. A GPU is never in two shapes, claims get what
// they were given, and at the end nothing is left.
func TestRandomHistoriesOfShares(t *testing.T) {
	for seed := range uint64(30) {
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
			t.Parallel()
			h := shareHistory{shareRig: newShareRig(t), random: rand.New(rand.NewPCG(seed, 11))}
			h.preparer = h.startShares(t, nil)
			for range 60 {
				h.step(t)
				if t.Failed() {
					break
				}
			}
			h.end(t)
			if t.Failed() {
				for _, line := range h.log {
					t.Log(line)
				}
			}
		})
	}
}

type shareHistory struct {
	*shareRig
	random   *rand.Rand
	preparer *Preparer
	claims   []*historyClaim
	log      []string
}

type historyClaim struct {
	*resourceapi.ResourceClaim
	holds  []holding
	exists bool
}

// placed are the devices that claims of a history get.
var placed = []string{
	whole0, several0, several0, slicedGPU, slicedGPU, servedGPU, servedGPU, small0, small1, big0,
	slicedSmall, slicedSmall, servedBig, servedBig, small1 + "-timeslice", "gpu-0-mig-3g40gb-9-0-mps",
}

func (h *shareHistory) step(t *testing.T) {
	t.Helper()
	existing := slices.DeleteFunc(slices.Clone(h.claims), func(c *historyClaim) bool { return !c.exists })
	switch op := h.random.IntN(12); {
	case op < 4 || len(existing) == 0:
		h.create(t)
	case op < 8:
		h.prepareOne(t, existing[h.random.IntN(len(existing))])
	case op < 10:
		c := h.claims[h.random.IntN(len(h.claims))]
		h.survive(t, "unprepare "+c.Name, func(p *Preparer) error { return p.Unprepare(testContext(t), c.UID) })
	case op < 11:
		c := existing[h.random.IntN(len(existing))]
		h.log = append(h.log, "delete "+c.Name)
		h.api.remove(c.ResourceClaim)
		c.exists = false
	default:
		h.log = append(h.log, "reconcile")
		reconcile(t, h.preparer)
		h.agree(t)
	}
	held, err := h.preparer.Held(testContext(t))
	must(t, err)
	h.oneShape(t, held)
}

// create places a claim beside those that exist.
func (h *shareHistory) create(t *testing.T) {
	t.Helper()
	device := placed[h.random.IntN(len(placed))]
	c := &historyClaim{ResourceClaim: h.sharing(fmt.Sprint("c", len(h.claims)), device), exists: true}
	record, err := h.preparer.plan(c.ResourceClaim, h.preparer.node.Load().Pool)
	must(t, err)
	c.holds = holdings(record)
	for _, other := range h.claims {
		if other.exists && other.holds[0].overlaps(c.holds[0]) && !other.holds[0].coexists(c.holds[0]) {
			h.api.remove(c.ResourceClaim)
			return
		}
	}
	h.log = append(h.log, "create "+c.Name+" with "+device)
	h.claims = append(h.claims, c)
}

// prepareOne may only fail while something is left of what was cut short.
func (h *shareHistory) prepareOne(t *testing.T, c *historyClaim) {
	t.Helper()
	var failure error
	h.survive(t, "prepare "+c.Name, func(p *Preparer) error {
		_, failure = p.Prepare(testContext(t), c.ResourceClaim)
		return nil
	})
	if failure == nil {
		return
	}
	if !h.anyIntent(t) {
		t.Error(failure)
	}
	reconcile(t, h.preparer)
	prepare(t, h.preparer, c.ResourceClaim)
}

func (h *shareHistory) anyIntent(t *testing.T) bool {
	t.Helper()
	found, err := h.preparer.list(testContext(t))
	must(t, err)
	return slices.ContainsFunc(found.records, func(r journal.Record) bool { return r.State == journal.Intent })
}

// survive lets the process crash on the way, as often as not.
func (h *shareHistory) survive(t *testing.T, what string, do func(*Preparer) error) {
	t.Helper()
	m := &moments{left: h.random.IntN(30)} // 0 is never
	p := h.startShares(t, m.tools, func(o *Options) { o.Phases = m })
	defer func() {
		h.preparer = h.startShares(t, nil)
		switch crash := recover().(type) {
		case nil:
		case errMoment:
			h.log = append(h.log, what+", a crash "+string(crash))
		default:
			panic(crash)
		}
	}()
	if err := do(p); err != nil {
		t.Errorf("%s: %v", what, err)
	}
	h.log = append(h.log, what)
}

// agree finds the node as the records say.
func (h *shareHistory) agree(t *testing.T) {
	t.Helper()
	var recorded []*resourceapi.ResourceClaim
	for _, c := range h.claims {
		if slices.Contains(uids(t, h.claimsDir()), string(c.UID)) {
			recorded = append(recorded, c.ResourceClaim)
		}
	}
	h.expectShares(t, h.preparer, recorded...)
}

func (h *shareHistory) end(t *testing.T) {
	t.Helper()
	reconcile(t, h.preparer)
	h.agree(t)
	for _, c := range h.claims {
		unprepare(t, h.preparer, c.ResourceClaim)
	}
	h.expectShares(t, h.preparer)
}
