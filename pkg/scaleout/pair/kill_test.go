package pair

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/mica-gpu/mica/pkg/scaleout/autoscaler"
	"github.com/mica-gpu/mica/test/fixture"
)

// settle ends a history and checks its final state.
func (w *world) settle(t *testing.T, why string) {
	t.Helper()
	for _, g := range w.groups {
		g.broken, g.frozen = false, false
	}
	w.autoscalerDown = false
	w.run(90*time.Minute, 5*time.Second)
	w.placed(t, why)
	w.pods = nil
	w.run(time.Minute, 5*time.Second)
	if left := w.placeholders(); len(left) > 0 {
		t.Errorf("%s: %d placeholders are left that no pod needs\n%s", why, len(left), w.log.String())
	}
}

// A controller that is killed at any of its writes, whether or not the write was done, and is
// started again with nothing but what the API server has, asks for as many nodes as one that
// lives.
func TestKilledAtEveryWrite(t *testing.T) {
	scripts := map[string]struct {
		groups []string
		pods   [][2]int
		nodes  []int
	}{
		"nine pods on two nodes": {[]string{"p5"}, [][2]int{{9, 1}}, []int{2}},
		"three whole nodes":      {[]string{"p5"}, [][2]int{{3, 8}}, []int{3}},
		"the next cheapest":      {[]string{"cheap price=1 broken", "dear price=2"}, [][2]int{{9, 1}}, []int{0, 2}},
		"slower than its clocks": {[]string{"p5 startupTaint slices=10m startup=4m"}, [][2]int{{1, 1}}, []int{1}},
		"never complete":         {[]string{"p5 slices=-1s timeout=10m max=1 caMax=1"}, [][2]int{{1, 1}}, []int{1}},
	}
	for name, script := range scripts {
		t.Run(name, func(t *testing.T) {
			lived := history(t, script.groups, script.pods, 0, false)
			for i, g := range lived.groups {
				if g.made != script.nodes[i] {
					t.Fatalf("without a kill, %d nodes of %s were made, and %d are needed\n%s", g.made, g.name, script.nodes[i], lived.log.String())
				}
			}
			if lived.writes < 2 {
				t.Fatalf("%d writes are none to be killed at", lived.writes)
			}
			for n := 1; n <= lived.writes; n++ {
				for _, after := range []bool{false, true} {
					why := fmt.Sprintf("killed at write %d, done: %v", n, after)
					w := history(t, script.groups, script.pods, n, after)
					for i, g := range w.groups {
						if g.made != script.nodes[i] {
							t.Errorf("%s: %d nodes of %s were made, and %d are needed\n%s", why, g.made, g.name, script.nodes[i], w.log.String())
						}
					}
				}
			}
		})
	}
}

// history runs for 20 minutes. The controller is killed at a write; 0: at none.
func history(t *testing.T, groups []string, pods [][2]int, kill int, after bool) *world {
	var sims []*simGroup
	for _, g := range groups {
		sims = append(sims, parseGroup(t, fixture.ParseLine("group "+g)))
	}
	w := newWorld(t, sims...)
	if after {
		w.killAfter = kill
	} else {
		w.killBefore = kill
	}
	for i, p := range pods {
		w.addPods(fmt.Sprintf("set%d", i), p[0], p[1])
	}
	w.run(20*time.Minute, 5*time.Second)
	writes := w.writes
	w.killBefore, w.killAfter = 0, 0
	w.pods = nil
	w.run(time.Minute, 5*time.Second)
	if left := w.placeholders(); len(left) > 0 {
		t.Errorf("kill at %d: %d placeholders are left\n%s", kill, len(left), w.log.String())
	}
	w.writes = writes
	return w
}

// A group never exceeds its maximum, which the world checks at each step, pods get nodes if a working group fits, and no
// placeholder is left.
func TestRandomHistories(t *testing.T) {
	seeds := uint64(40)
	if testing.Short() {
		seeds = 5
	}
	for seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 5))
			w := newWorld(t, randomGroups(t, random)...)
			for i := range 25 {
				w.disturb(random, i)
				w.run(time.Duration(1+random.IntN(180))*time.Second, 5*time.Second)
			}
			w.settle(t, fmt.Sprintf("seed %d", seed))
			w.enough(t)
		})
	}
}

// placed checks that a pod waits only if no group that fits may grow.
func (w *world) placed(t *testing.T, why string) {
	t.Helper()
	for _, p := range w.pending() {
		for _, g := range w.groups {
			if g.real >= p.needs && len(g.nodes) < g.caMax {
				t.Errorf("%s: pod %s, which needs %d, waits, and %s has %d of %d nodes\n%s",
					why, p.object.Name, p.needs, g.name, len(g.nodes), g.caMax, w.log.String())
				return
			}
		}
	}
}

// enough checks that there were no more nodes than pods.
func (w *world) enough(t *testing.T) {
	made := 0
	for _, g := range w.groups {
		made += g.made
	}
	if made > w.everPods {
		t.Errorf("%d nodes were made for %d pods\n%s", made, w.everPods, w.log.String())
	}
}

func randomGroups(t *testing.T, random *rand.Rand) []*simGroup {
	var groups []*simGroup
	for i := range 1 + random.IntN(3) {
		limit := 1 + random.IntN(4)
		text := fmt.Sprintf("g%d price=%d devices=%d boot=%ds slices=%ds stagger=%ds timeout=10m max=%d caMax=%d",
			i, random.IntN(3), 1<<random.IntN(4), 20+random.IntN(200), random.IntN(240), random.IntN(60), limit, limit)
		if random.IntN(2) == 0 {
			text += " startupTaint"
		}
		if random.IntN(2) == 0 {
			text += " startup=2m provision=5m"
		}
		g := parseGroup(t, fixture.ParseLine("group "+text))
		if random.IntN(4) == 0 {
			g.promised *= 2
		}
		groups = append(groups, g)
	}
	return groups
}

// disturb makes one change.
func (w *world) disturb(random *rand.Rand, i int) {
	g := w.groups[random.IntN(len(w.groups))]
	switch random.IntN(9) {
	case 0, 1, 2:
		w.addPods(fmt.Sprintf("set%d", i), 1+random.IntN(6), 1<<random.IntN(4))
	case 3:
		w.deletePods(fmt.Sprintf("set%d", random.IntN(i+1)))
	case 4:
		w.killAfter = 1 + random.IntN(3)
	case 5:
		w.killBefore = 1 + random.IntN(3)
	case 6:
		g.broken = !g.broken
	case 7:
		g.frozen = !g.frozen
	case 8:
		w.autoscalerDown = !w.autoscalerDown
		if w.autoscalerDown && i%2 == 0 {
			w.autoscaler = autoscaler.Status{} // it has ended, and taken its status away (ExitCleanUp)
		}
	}
}
