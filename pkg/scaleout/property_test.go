package scaleout

import (
	stdcmp "cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/mica-gpu/mica/pkg/scaleout/fit"
	"github.com/mica-gpu/mica/pkg/scaleout/template"
)

// Pods that are planned one by one, with nothing remembered, go where the planner puts them.
func TestPlansAsIfPodByPod(t *testing.T) {
	for seed := range uint64(150) {
		w := randomWorld(t, seed)
		decision := planned(t, w)
		simple := newNaive(t, w.Snapshot)
		for _, kind := range decision.Kinds {
			if kind.Problem != "" {
				t.Fatalf("seed %d: %s", seed, kind.Problem)
			}
		}
		for _, turn := range turns(w, decision) {
			want := turn.place(simple)
			place := stdcmp.Or(turn.got.Node, turn.got.Group)
			if got := strings.TrimSpace(fmt.Sprintf("%s %s", turn.got.Outcome, place)); got != want {
				t.Fatalf("seed %d: pod %s: got %q, want %q; decision:\n%s", seed, turn.got.Pod.Name, got, want, log(decision))
			}
		}
		if diff := cmp.Diff(simple.opened, nodesOf(decision)); diff != "" {
			t.Fatalf("seed %d: nodes to ask for (-one by one +planned):\n%s", seed, diff)
		}
	}
}

// turn is one pod of a plan that is made pod by pod.
type turn struct {
	pod       *corev1.Pod
	got       PodDecision
	nominated bool
	// like counts the pods of its kind that are not nominated and had no turn before, with itself.
	like int
}

// turns are the pods in the order of their priority, nominated ones first among equals.
func turns(w *world, decision Decision) []turn {
	var all []turn
	for _, kind := range decision.Kinds {
		like := 0
		for _, got := range slices.Backward(kind.Pods) {
			turn := turn{pod: podNamed(w, got.Pod.Name), got: got}
			if turn.nominated = w.Nominated[got.UID] != ""; !turn.nominated {
				like++
			}
			turn.like = like
			all = append(all, turn)
		}
		slices.Reverse(all[len(all)-len(kind.Pods):])
	}
	slices.SortStableFunc(all, func(a, b turn) int {
		return stdcmp.Or(stdcmp.Compare(priority(b.pod), priority(a.pod)), falseFirst(!a.nominated, !b.nominated))
	})
	return all
}

func (t turn) place(simple *naive) string {
	if t.nominated {
		return simple.nominee(t.pod)
	}
	return simple.place(t.pod, t.like)
}

// No group grows over its maximum or while it is closed, every node that is asked for is for
// some pod, every pod is in the decision once, and the pods on new nodes are those that need one.
func TestDecisionsAreSound(t *testing.T) {
	for seed := range uint64(300) {
		w := randomWorld(t, seed)
		decision := planned(t, w)
		waiting := map[string]bool{}
		for _, growth := range decision.Growth {
			g := w.Groups[slices.IndexFunc(w.Groups, func(g Group) bool { return g.Name == growth.Group })]
			if g.Closed != "" || g.Max != nil && g.Size+len(growth.Nodes) > *g.Max {
				t.Errorf("seed %d: group %s grows by %d; size %d, maximum %v, closed %q", seed, g.Name, len(growth.Nodes), g.Size, ptr.Deref(g.Max, -1), g.Closed)
			}
			for _, node := range growth.Nodes {
				if len(node.Pods) == 0 || len(node.Kinds) == 0 {
					t.Errorf("seed %d: a node of %s is for no pod", seed, growth.Group)
				}
				for _, pod := range node.Pods {
					waiting[pod.Name] = true
				}
			}
		}
		seen := map[string]bool{}
		for _, kind := range decision.Kinds {
			for _, pod := range kind.Pods {
				if seen[pod.Pod.Name] {
					t.Errorf("seed %d: pod %s is in the decision twice", seed, pod.Pod.Name)
				}
				seen[pod.Pod.Name] = true
				if waiting[pod.Pod.Name] != (pod.Outcome == NeedsNode) {
					t.Errorf("seed %d: pod %s is %s, and on a new node: %v", seed, pod.Pod.Name, pod.Outcome, waiting[pod.Pod.Name])
				}
			}
		}
		if len(seen) != len(w.Pending) {
			t.Errorf("seed %d: %d of %d pods are in the decision", seed, len(seen), len(w.Pending))
		}
	}
}

func TestOrderOfTheSnapshotChangesNothing(t *testing.T) {
	for seed := range uint64(100) {
		w := randomWorld(t, seed)
		want := planned(t, w)
		random := rand.New(rand.NewPCG(seed, 99))
		s := &w.Snapshot
		shuffle(random, s.Pending)
		shuffle(random, s.Claims)
		shuffle(random, s.ClaimTemplates)
		shuffle(random, s.Classes)
		shuffle(random, s.Slices)
		shuffle(random, s.Nodes)
		shuffle(random, s.Groups)
		shuffle(random, s.Headroom)
		got := planned(t, w)
		if diff := cmp.Diff(byName(want), byName(got), cmpopts.IgnoreTypes(&fit.Pod{}), cmpopts.EquateEmpty()); diff != "" {
			t.Fatalf("seed %d: (-want +got)\n%s", seed, diff)
		}
	}
}

// byName puts what is in the snapshot's order in an order of its own.
func byName(d Decision) Decision {
	for _, kind := range d.Kinds {
		slices.SortFunc(kind.Groups, func(a, b GroupFit) int { return strings.Compare(a.Group, b.Group) })
	}
	slices.SortFunc(d.Headroom, func(a, b HeadroomDecision) int { return strings.Compare(a.Name, b.Name) })
	return d
}

func shuffle[T any](random *rand.Rand, all []T) {
	random.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
}

// What was asked for counts when it is asked again: with the nodes of a plan coming, or starting,
// the next plan for the same pods asks for none.
func TestAskingAgainAsksForNothing(t *testing.T) {
	for seed := range uint64(200) {
		w := randomWorld(t, seed)
		first := planned(t, w)
		s := &w.Snapshot
		for _, growth := range first.Growth {
			g := &s.Groups[slices.IndexFunc(s.Groups, func(g Group) bool { return g.Name == growth.Group })]
			g.Size += len(growth.Nodes)
			for range g.Upcoming {
				g.UpcomingFor = append(g.UpcomingFor, "")
			}
			if seed%2 == 0 {
				for _, node := range growth.Nodes {
					g.Upcoming++
					g.UpcomingFor = append(g.UpcomingFor, node.Kinds[0])
				}
				continue
			}
			for i := range growth.Nodes {
				node := w.nodeObject(fmt.Sprintf("new-%s-%d", g.Name, i), options{})
				node.Labels["group"] = g.Name
				node.Status.Allocatable = nil
				s.Nodes = append(s.Nodes, Node{Object: node, Group: g.Name, Starting: true, For: growth.Nodes[i].Kinds[0]})
			}
		}
		second := planned(t, w)
		if len(second.Growth) > 0 {
			t.Errorf("seed %d: asked again:\n%s\nfirst:\n%s", seed, log(second), log(first))
		}
	}
}

func podNamed(w *world, name string) (found *corev1.Pod) {
	for _, pod := range w.Pending {
		if pod.Name == name {
			found = pod
		}
	}
	return found
}

// randomWorld is a small cluster of small machines, and pods that ask for all sorts of claims.
// No two groups cost the same for each pod.
func randomWorld(t *testing.T, seed uint64) *world {
	random := rand.New(rand.NewPCG(seed, 1))
	w := newWorld(t)
	w.Classes = append(w.Classes, toyClass())
	for i := range 1 + random.IntN(3) {
		w.randomGroup(random, i)
	}
	for i := range random.IntN(4) {
		w.randomNode(random, i)
	}
	for _, line := range toyClaims {
		w.line(line)
	}
	var kinds []int
	for range 1 + random.IntN(4) {
		kind := random.IntN(len(toyPods))
		if slices.Contains(kinds, kind) {
			continue
		}
		kinds = append(kinds, kind)
		w.line(fmt.Sprintf("pods p%d %d %s cpu=%d priority=%d", kind, 1+random.IntN(6), toyPods[kind], 1+random.IntN(3), random.IntN(2)))
	}
	for _, pod := range w.Pending { // several are of one second
		pod.CreationTimestamp.Time = pod.CreationTimestamp.Truncate(4 * time.Second)
		if len(w.Nodes) > 0 && random.IntN(5) == 0 {
			w.nominate(pod, w.Nodes[random.IntN(len(w.Nodes))].Object.Name)
		}
	}
	return w
}

func (w *world) randomGroup(random *rand.Rand, i int) {
	name := fmt.Sprintf("group-%d", i)
	o := options{"cpu": fmt.Sprint(4 + random.IntN(8)), "size": "0"}
	g := Group{Name: name, Upcoming: random.IntN(8) / 7, PricePerHour: ptr.To(resource.MustParse(fmt.Sprintf("%d.%03d", 1+random.IntN(9), 1+7*i+random.IntN(5))))}
	g.Size = g.Upcoming
	if random.IntN(2) == 0 {
		g.Max = ptr.To(g.Size + random.IntN(4))
	}
	if random.IntN(6) == 0 {
		g.Closed = "in backoff"
	}
	node := w.nodeObject("template-of-"+name, o)
	node.Labels["group"] = name
	node.Labels["zone"] = string(rune('a' + random.IntN(2)))
	g.Template = &template.Template{Node: node, Slices: toySlices(random.IntN(len(toyMachines)), node.Name)}
	w.Groups = append(w.Groups, g)
}

func (w *world) randomNode(random *rand.Rand, i int) {
	name := fmt.Sprintf("node-%d", i)
	node := w.nodeObject(name, options{"cpu": fmt.Sprint(2 + random.IntN(8))})
	node.Labels["zone"] = string(rune('a' + random.IntN(2)))
	w.Nodes = append(w.Nodes, Node{Object: node})
	machine := random.IntN(len(toyMachines))
	w.Slices = append(w.Slices, toySlices(machine, name)...)
	if random.IntN(2) == 0 {
		claim := &resourceapi.ResourceClaim{}
		claim.Namespace, claim.Name, claim.UID = "default", "used-"+name, "used"
		devices := toyMachines[machine][0].Devices
		if device := devices[random.IntN(len(devices))]; device.AllowMultipleAllocations == nil {
			claim.Status.Allocation = allocation(name, []string{device.Name})
		}
		w.Claims = append(w.Claims, claim)
	}
}
