package scaleout

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/mica-gpu/mica/pkg/scaleout/template"
	"github.com/mica-gpu/mica/test/fixture"
)

// Whatever happens between plans, none asks for a node with which there would be more than a
// budget allows: nodes come, that were asked for or not, and go; pods come, get devices and go.
func TestNoBudgetIsEverExceeded(t *testing.T) {
	asked, held := 0, 0
	for seed := range uint64(60) {
		e := newEvents(t, seed)
		for step := range 8 {
			decision := planned(t, e.world)
			e.check(fmt.Sprintf("seed %d, step %d", seed, step), decision)
			for _, growth := range decision.Growth {
				asked += len(growth.Nodes)
			}
			for _, b := range decision.Budgets {
				held += b.Held
			}
			e.ask(decision)
			e.happen(step)
		}
	}
	if asked < 100 || held < 100 {
		t.Errorf("%d nodes are asked for, and %d pods held back: the test shows too little", asked, held)
	}
}

// events is a world that goes on.
type events struct {
	*world
	random *rand.Rand
	now    time.Time
	nodes  int
	// pods are those that waited first.
	pods []corev1.Pod
}

func newEvents(t *testing.T, seed uint64) *events {
	e := &events{world: randomWorld(t, seed), random: rand.New(rand.NewPCG(seed, 2)), now: epoch}
	for _, object := range slices.Clone(e.ClaimTemplates) {
		other := object.DeepCopy()
		other.Namespace = "other"
		e.ClaimTemplates = append(e.ClaimTemplates, other)
	}
	for i := range e.Groups {
		e.Groups[i].GPUs = template.GPUs(fixture.Driver, e.Groups[i].Template.Slices)
		e.Groups[i].Closed = ""
	}
	for i := range e.Nodes {
		e.Nodes[i].GPUs = template.GPUs(fixture.Driver, e.slicesOf(e.Nodes[i].Object.Name))
	}
	for _, pod := range e.Pending {
		if pod.Spec.ResourceClaims[0].ResourceClaimTemplateName != nil && e.random.IntN(2) == 0 {
			pod.Namespace = "other"
		}
		e.pods = append(e.pods, *pod)
	}
	e.Budgets = []Budget{
		{Name: "all", GPUs: ptr.To(4 + e.random.IntN(24))},
		{Name: "price", PricePerHour: ptr.To(resource.MustParse(fmt.Sprint(10 + e.random.IntN(40))))},
		{Name: "rate", Rate: &Rate{Nodes: 1 + e.random.IntN(3), Period: "2m"}},
		{Name: "team", Namespaces: []string{"other"}, GPUs: ptr.To(2 + e.random.IntN(10))},
	}
	e.tick()
	return e
}

func (e *events) tick() {
	e.now = e.now.Add(time.Minute)
	e.Budgets[2].Rate.Since = metav1.NewTime(e.now.Add(-2 * time.Minute))
}

func (e *events) slicesOf(node string) []*resourceapi.ResourceSlice {
	var own []*resourceapi.ResourceSlice
	for _, slice := range e.Slices {
		if *slice.Spec.NodeName == node {
			own = append(own, slice)
		}
	}
	return own
}

func (e *events) group(name string) *Group {
	for i := range e.Groups {
		if e.Groups[i].Name == name {
			return &e.Groups[i]
		}
	}
	return nil
}

// check adds up by itself what there is and what is asked for.
func (e *events) check(at string, d Decision) {
	gpus, young, price := 0, 0, resource.Quantity{}
	count := func(group string, gpusOf int, isYoung bool) {
		gpus += gpusOf
		if g := e.group(group); g != nil {
			price.Add(*g.PricePerHour)
		}
		if isYoung {
			young++
		}
	}
	for _, node := range e.Nodes {
		count(node.Group, node.GPUs, node.Object.CreationTimestamp.After(e.Budgets[2].Rate.Since.Time))
	}
	for _, g := range e.Groups {
		for range g.Upcoming {
			count(g.Name, g.GPUs, true)
		}
	}
	team := 0
	for _, node := range e.Nodes {
		if slices.ContainsFunc(e.Claims, func(c *resourceapi.ResourceClaim) bool {
			return c.Namespace == "other" && c.Status.Allocation != nil && c.Status.Allocation.Devices.Results[0].Pool == node.Object.Name
		}) {
			team += node.GPUs
		}
	}
	asked, forTeam := 0, 0
	for _, growth := range d.Growth {
		for _, node := range growth.Nodes {
			asked++
			count(growth.Group, e.group(growth.Group).GPUs, true)
			if node.Pods[0].Namespace == "other" { // whom it was opened for
				forTeam++
				team += e.group(growth.Group).GPUs
			}
		}
	}
	switch {
	case asked == 0:
	case gpus > *e.Budgets[0].GPUs:
		e.t.Errorf("%s: %d GPUs of %d", at, gpus, *e.Budgets[0].GPUs)
	case price.Cmp(*e.Budgets[1].PricePerHour) > 0:
		e.t.Errorf("%s: %s per hour of %s", at, &price, e.Budgets[1].PricePerHour)
	case young > e.Budgets[2].Rate.Nodes:
		e.t.Errorf("%s: %d nodes of %d in the period", at, young, e.Budgets[2].Rate.Nodes)
	case forTeam > 0 && team > *e.Budgets[3].GPUs:
		e.t.Errorf("%s: %d GPUs of the namespace's %d", at, team, *e.Budgets[3].GPUs)
	}
}

// ask asks for what the plan wants, or for a part of it.
func (e *events) ask(d Decision) {
	for _, growth := range d.Growth {
		g := e.group(growth.Group)
		nodes := e.random.IntN(len(growth.Nodes) + 1)
		g.Upcoming, g.Size = g.Upcoming+nodes, g.Size+nodes
		for _, node := range growth.Nodes[:nodes] {
			g.UpcomingFor = append(g.UpcomingFor, node.Kinds[0])
		}
	}
}

// happen is what others do meanwhile.
func (e *events) happen(step int) {
	for range 1 + e.random.IntN(3) {
		g := &e.Groups[e.random.IntN(len(e.Groups))]
		switch e.random.IntN(6) {
		case 0, 1: // what was asked for comes
			if g.Upcoming > 0 {
				g.Upcoming, g.Size, g.UpcomingFor = g.Upcoming-1, g.Size-1, g.UpcomingFor[:min(len(g.UpcomingFor), g.Upcoming-1)]
				e.come(g)
			}
		case 2: // another controller adds a node
			e.come(g)
		case 3: // a node goes
			if len(e.Nodes) > 0 {
				e.goes(e.random.IntN(len(e.Nodes)))
			}
		case 4: // a pod goes, or one like an earlier one comes
			if len(e.Pending) > 0 && e.random.IntN(2) == 0 {
				e.Pending = slices.Delete(slices.Clone(e.Pending), 0, 1)
				break
			}
			pod := e.pods[e.random.IntN(len(e.pods))].DeepCopy()
			pod.Name = fmt.Sprintf("%s-again-%d-%d", pod.Name, step, len(e.Pending))
			pod.UID = types.UID(pod.Name)
			pod.CreationTimestamp = metav1.NewTime(e.now)
			e.Pending = append(slices.Clone(e.Pending), pod)
		case 5: // a claim of the namespace gets a device of some node
			if len(e.Nodes) > 0 {
				node := e.Nodes[e.random.IntN(len(e.Nodes))].Object.Name
				claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "other", Name: "of-" + node, UID: types.UID("of-" + node)}}
				claim.Status.Allocation = allocation(node, []string{"gpu-0"})
				e.Claims = append(slices.Clone(e.Claims), claim)
			}
		}
	}
	e.tick()
}

func (e *events) come(g *Group) {
	e.nodes++
	name := fmt.Sprintf("came-%d", e.nodes)
	object := g.Template.Node.DeepCopy()
	object.Name, object.UID, object.CreationTimestamp = name, types.UID(name), metav1.NewTime(e.now)
	e.Nodes = append(slices.Clone(e.Nodes), Node{Object: object, Group: g.Name, GPUs: g.GPUs, Starting: e.random.IntN(2) == 0})
	var specs []resourceapi.ResourceSliceSpec
	for _, slice := range g.Template.Slices {
		specs = append(specs, slice.Spec)
	}
	e.Slices = append(slices.Clone(e.Slices), named(specs, name, nil)...)
	g.Size++
}

func (e *events) goes(i int) {
	node := e.Nodes[i]
	e.Nodes = slices.Delete(slices.Clone(e.Nodes), i, i+1)
	if g := e.group(node.Group); g != nil {
		g.Size--
	}
	of := func(slice *resourceapi.ResourceSlice) bool { return *slice.Spec.NodeName == node.Object.Name }
	e.Slices = slices.DeleteFunc(slices.Clone(e.Slices), of)
	e.Claims = slices.DeleteFunc(slices.Clone(e.Claims), func(c *resourceapi.ResourceClaim) bool {
		return c.Status.Allocation != nil && slices.ContainsFunc(c.Status.Allocation.Devices.Results, func(r resourceapi.DeviceRequestAllocationResult) bool { return r.Pool == node.Object.Name })
	})
}

// When all that a plan asks for has come as it was expected, the next plan puts a pod on each of the nodes.
func TestNoNodeIsAskedForInVain(t *testing.T) {
	asked := 0
	for seed := range uint64(200) {
		w := randomWorld(t, seed)
		first := planned(t, w)
		e := &events{world: w, random: rand.New(rand.NewPCG(seed, 3)), now: epoch}
		fresh := map[string]bool{}
		for i := range e.Groups {
			for range e.Groups[i].Upcoming {
				e.come(&e.Groups[i])
			}
			e.Groups[i].Upcoming = 0
		}
		for _, growth := range first.Growth {
			for range growth.Nodes {
				asked++
				e.come(e.group(growth.Group))
				fresh[e.Nodes[len(e.Nodes)-1].Object.Name] = true
			}
		}
		for i := range e.Nodes {
			e.Nodes[i].Starting = false
		}
		second := planned(t, e.world)
		for _, kind := range second.Kinds {
			for _, pod := range kind.Pods {
				delete(fresh, pod.Node)
			}
		}
		if len(fresh) > 0 {
			t.Errorf("seed %d: no pod is on %v, which were asked for; first:\n%s\nthen:\n%s", seed, fresh, log(first), log(second))
		}
	}
	if asked < 100 {
		t.Errorf("%d nodes are asked for: the test shows too little", asked)
	}
}

func TestAPriceIsForPeople(t *testing.T) {
	for price, want := range map[string]string{"0": "0", "98": "98", "9.2": "9.2", "4600m": "4.6", "98.320": "98.32", "12000m": "12", "1k": "1000", "100": "100"} {
		if got := Price(resource.MustParse(price)); got != want {
			t.Errorf("%s is told as %q, want %q", price, got, want)
		}
	}
}
