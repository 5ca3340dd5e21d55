package scheduler

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/mica-gpu/mica/pkg/scaleout/fit"
)

// worlds is how many random clusters are compared. Each has some nodes of a few machines, and
// pods that are put on them one after the other.
const worlds = 150

// TestAgreesWithScheduler holds fit against the stock scheduler's filters: on every node, for
// every pod, and after each pod that was put somewhere.
func TestAgreesWithScheduler(t *testing.T) {
	fits, misses := 0, map[fit.Reason]int{}
	for seed := range uint64(worlds) {
		t.Run(fmt.Sprintf("world %d", seed), func(t *testing.T) {
			w := newWorld(t, seed)
			c := newComparison(t, w)
			for _, p := range w.pods {
				c.compare(t, p)
			}
			fits += c.fits
			for reason, n := range c.misses {
				misses[reason] += n
			}
		})
	}
	t.Logf("%d fit, misses: %v", fits, misses)
	for _, reason := range []fit.Reason{fit.ReasonUnschedulable, fit.ReasonNodeAffinity, fit.ReasonTaint, fit.ReasonPods, fit.ReasonResources, fit.ReasonDevices} {
		if misses[reason] == 0 {
			t.Errorf("no pod missed a node because of %s: the worlds are too kind", reason)
		}
	}
	if fits < worlds {
		t.Errorf("only %d pods fitted: the worlds are too hard", fits)
	}
}

// comparison is a world in which pods are put on nodes, as fit sees it.
type comparison struct {
	w        *world
	cluster  *fit.Cluster
	shared   fit.Shared
	pods     map[*pod]*fit.Pod
	machines map[string]*fit.Machine
	fits     int
	misses   map[fit.Reason]int
}

func newComparison(t *testing.T, w *world) *comparison {
	t.Helper()
	all := w.running()
	for _, p := range w.pods {
		all = append(all, p.object)
	}
	c := &comparison{
		w:        w,
		cluster:  fit.New(fit.Facts{Classes: w.classes, Claims: newClaims(w).all, Slices: w.slices(), Pods: all}),
		pods:     map[*pod]*fit.Pod{},
		machines: map[string]*fit.Machine{},
		misses:   map[fit.Reason]int{},
	}
	for _, p := range w.pods {
		var claims []fit.PodClaim
		for i, claim := range p.claims {
			claims = append(claims, fit.PodClaim{Name: p.object.Spec.ResourceClaims[i].Name, Claim: claim})
		}
		read, err := c.cluster.Pod(p.object, claims)
		if err != nil {
			t.Fatalf("%s: %v", p.object.Name, err)
		}
		c.pods[p] = read
	}
	for _, n := range w.nodes {
		c.machines[n.object.Name] = c.cluster.Machine(fit.Node{Object: n.object, Slices: n.slices, Pods: n.pods})
	}
	c.shared = c.cluster.Shared()
	return c
}

// compare asks both about a pod and all nodes, and puts it on one where it fits.
func (c *comparison) compare(t *testing.T, p *pod) {
	t.Helper()
	scheduler := newStock(t.Context(), t, c.w)
	verdicts, state := scheduler.try(t.Context(), p.object)
	var fitting []*node
	left := map[string]*fit.Machine{}
	for _, n := range c.w.nodes {
		name := n.object.Name
		next, miss, err := c.shared.Place(t.Context(), c.machines[name], c.pods[p])
		if err != nil {
			t.Fatal(err)
		}
		want := verdicts[name]
		if want.fits != (miss == nil) {
			t.Fatalf("%s on %s: the scheduler says %v %q, fit says %+v\n%s", p.object.Name, name, want.fits, want.reasons, miss, describe(p))
		}
		if miss == nil {
			c.fits++
			fitting, left[name] = append(fitting, n), next
			continue
		}
		c.misses[miss.Reason]++
		if want.aborts != miss.Aborts && miss.Reason == fit.ReasonDevices && !strings.Contains(miss.Text, "cannot decide whether") {
			t.Fatalf("%s on %s: the scheduler says %q (aborts: %v), fit says %+v", p.object.Name, name, want.reasons, want.aborts, miss)
		}
	}
	if len(fitting) == 0 {
		return
	}
	n := fitting[c.w.random.IntN(len(fitting))]
	c.w.put(p, n, scheduler.reserve(t.Context(), t, state, p.object, n.object.Name))
	c.machines[n.object.Name] = left[n.object.Name]
	c.shared = c.shared.Commit(left[n.object.Name])
}

// put records in the world what the scheduler did.
func (w *world) put(p *pod, n *node, allocated []*resourceapi.ResourceClaim) {
	p.object = p.object.DeepCopy()
	p.object.Spec.NodeName = n.object.Name
	n.pods = append(n.pods, p.object)
	p.claims = slices.DeleteFunc(slices.Clone(p.claims), func(claim *resourceapi.ResourceClaim) bool {
		return slices.ContainsFunc(allocated, func(a *resourceapi.ResourceClaim) bool { return a.UID == claim.UID })
	})
	w.claims = append(w.claims, allocated...)
}

func describe(p *pod) string {
	text := fmt.Sprintf("%+v", p.object.Spec)
	for _, claim := range p.claims {
		text += fmt.Sprintf("\n%v", claim.Spec)
	}
	return text
}
