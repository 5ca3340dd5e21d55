package pair

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/mica-gpu/mica/pkg/scaleout/autoscaler"
)

// Whatever happens, Cluster Autoscaler adds no node over the budget, which the world checks each time
// that it does: for pods that come and go, groups that it knows and does not know, controllers that
// are killed, nodes that end, budgets that are raised, and a status that is away at times.
func TestNoBudgetIsExceededBesideTheAutoscaler(t *testing.T) {
	seeds := uint64(60)
	if testing.Short() {
		seeds = 10
	}
	made, over := 0, 0
	for seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			random, restarts := rand.New(rand.NewPCG(seed, 6)), rand.New(rand.NewPCG(seed, 7))
			w := newWorld(t, randomGroups(t, random)...)
			w.budget, w.admission = 2+random.IntN(24), true
			for i := range 25 {
				if random.IntN(8) == 0 {
					w.budget += random.IntN(8)
				}
				if random.IntN(8) == 0 {
					w.dies(w.groups[random.IntN(len(w.groups))])
				}
				w.disturb(random, i)
				if restarts.IntN(3) == 0 {
					w.restartAutoscaler(time.Duration(5+restarts.IntN(60)) * time.Second)
				}
				w.run(time.Duration(1+random.IntN(180))*time.Second, 5*time.Second)
			}
			for _, g := range w.groups {
				made += g.made
			}
			for _, kind := range w.situation().Decision.Kinds {
				for _, pod := range kind.Pods {
					if pod.Outcome == "OverBudget" {
						over++
					}
				}
			}
			w.budget, w.admission = 0, false // and then nobody is held back
			w.settle(t, fmt.Sprintf("seed %d", seed))
		})
	}
	if made < int(seeds) || over < int(seeds) {
		t.Errorf("%d nodes were made, and %d pods held back at the end: the test shows too little", made, over)
	}
}

// restartAutoscaler ends Cluster Autoscaler, which takes its status away (ExitCleanUp), and starts it after a while.
func (w *world) restartAutoscaler(after time.Duration) {
	down := w.autoscalerDown
	w.logf("Cluster Autoscaler ends")
	w.autoscaler, w.autoscalerDown = autoscaler.Status{}, true
	w.run(after, 5*time.Second)
	w.autoscalerDown = down
}
