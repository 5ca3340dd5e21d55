package control

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/mica-gpu/mica/api/v1alpha1"
	"github.com/mica-gpu/mica/pkg/scaleout/autoscaler"
	"github.com/mica-gpu/mica/pkg/scaleout/pair"
	"github.com/mica-gpu/mica/pkg/scaleout/view"
)

// With pairing direct, the requested size is never above the maximum or below the present size, no used node and none below
// the minimum ends, and in the end each pod has its device and only the minimum of nodes is empty. Meanwhile pods come and
// go, other clients change the size, nodes fail, EKS does not answer, and controllers are killed between their writes.
func TestRandomHistoriesOfDirect(t *testing.T) {
	seeds := uint64(8)
	if testing.Short() {
		seeds = 2
	}
	asked, ended := 0, 0
	for seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			h := newHistory(t, rand.New(rand.NewPCG(seed, 7)))
			for range 30 {
				h.disturb()
				for range 1 + h.random.IntN(6) {
					h.step(30 * time.Second)
				}
			}
			h.settle()
			asked, ended = asked+h.asked, ended+len(h.ended)
		})
	}
	if asked < int(seeds) || ended < int(seeds) {
		t.Errorf("a size was set %d times and %d nodes were ended: the test shows too little", asked, ended)
	}
}

// history is a world that is its own EKS.
type history struct {
	*world
	random *rand.Rand
	eks    view.Nodegroup
	// ended are the instances that the controller has ended.
	ended             map[string]bool
	asked, pods, made int
}

const (
	leastNodes = 1
	mostNodes  = 4
)

func newHistory(t *testing.T, random *rand.Rand) *history {
	limit := int32(mostNodes)
	w := newWorld(t, append(oneGPU(0), group("g6", byEKS, func(g *v1alpha1.GPUNodeGroup) { g.Spec.Min, g.Spec.Max = leastNodes, &limit }))...)
	if err := w.client.Delete(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: autoscaler.Namespace, Name: autoscaler.StatusName}}); err != nil {
		t.Fatal(err)
	}
	return &history{world: w, random: random, ended: map[string]bool{}, eks: view.Nodegroup{Max: mostNodes + 1, Status: "ACTIVE", DesiredSince: w.clock.Now()}}
}

func (h *history) Describe(context.Context, *v1alpha1.GPUNodeGroup) view.Nodegroup { return h.eks }

func (h *history) SetDesired(_ context.Context, _ *v1alpha1.GPUNodeGroup, intent v1alpha1.InFlight) (string, error) {
	if intent.Target > mostNodes || int(intent.Target) < h.eks.Desired {
		h.t.Errorf("a size of %d is asked for: it was %d, and the maximum is %d", intent.Target, h.eks.Desired, mostNodes)
	}
	h.asked++
	h.resize(int(intent.Target))
	return fmt.Sprintf("update-%d", h.asked), nil
}

func (h *history) End(_ context.Context, _ *v1alpha1.GPUNodeGroup, instance string) error {
	if h.ended[instance] {
		return nil
	}
	node := h.nodeOf(instance)
	if node == nil {
		return pair.ErrNotInGroup
	}
	for _, claim := range all(h.world, &resourceapi.ResourceClaimList{}).Items {
		if claim.Status.Allocation != nil && claim.Status.Allocation.Devices.Results[0].Pool == node.Name {
			h.t.Errorf("node %s ends, and claim %s has a device of it", node.Name, claim.Name)
		}
	}
	if h.eks.Desired <= leastNodes {
		h.t.Errorf("node %s ends, and the group needs it for its minimum", node.Name)
	}
	h.ended[instance] = true
	h.resize(h.eks.Desired - 1)
	return nil
}

func (h *history) resize(size int) { h.eks.Desired, h.eks.DesiredSince = size, h.clock.Now() }

func (h *history) nodeOf(instance string) *corev1.Node {
	for _, node := range all(h.world, &corev1.NodeList{}).Items {
		if strings.HasSuffix(node.Spec.ProviderID, "/"+instance) {
			return &node
		}
	}
	return nil
}

// disturb makes one change from outside.
func (h *history) disturb() {
	nodes := all(h.world, &corev1.NodeList{}).Items
	switch h.random.IntN(9) {
	case 0, 1, 2:
		h.addPods(1 + h.random.IntN(12))
	case 3:
		h.deletePods(func(*corev1.Pod) bool { return h.random.IntN(2) == 0 })
	case 4:
		h.resize(min(h.eks.Desired+1, mostNodes))
	case 5:
		h.resize(max(h.eks.Desired-1, leastNodes))
	case 6:
		if len(nodes) > 0 {
			h.dies(&nodes[h.random.IntN(len(nodes))])
		}
	case 7:
		h.dieAt, h.dieAfter = h.writes+1+h.random.IntN(4), h.random.IntN(2) == 0
	case 8:
		h.eks.Err = nil
		if h.random.IntN(2) == 0 {
			h.eks.Err = errors.New("EKS does not answer: wait")
		}
	}
}

func (h *history) addPods(count int) {
	for _, object := range oneGPU(count)[1:] {
		pod := object.(*corev1.Pod)
		pod.Name = fmt.Sprintf("pod-%d", h.pods)
		h.pods++
		h.create(pod)
		h.try(pod)
	}
}

// deletePods deletes pods with their claims.
func (h *history) deletePods(which func(*corev1.Pod) bool) {
	h.t.Helper()
	for _, pod := range all(h.world, &corev1.PodList{}).Items {
		if !which(&pod) {
			continue
		}
		claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name + "-gpu"}}
		if err := errors.Join(h.client.Delete(h.t.Context(), &pod), client.IgnoreNotFound(h.client.Delete(h.t.Context(), claim))); err != nil {
			h.t.Fatal(err)
		}
	}
}

// dies removes a node with its pods, and creates new pods instead.
func (h *history) dies(node *corev1.Node) {
	pods := 0
	h.deletePods(func(pod *corev1.Pod) bool {
		if pod.Spec.NodeName == node.Name {
			pods++
		}
		return pod.Spec.NodeName == node.Name
	})
	h.end(node)
	h.addPods(pods)
}

// step runs AWS, the scheduler and the controller once.
func (h *history) step(d time.Duration) {
	h.t.Helper()
	h.loop.Nodegroups, h.loop.executor.Nodegroups = h, h
	h.runMachines()
	h.startNodes()
	h.schedule()
	h.pass()
	h.clock.Step(d)
	if h.eks.Desired > mostNodes || h.eks.Desired < 0 {
		h.t.Fatalf("the group is to have %d nodes, of %d at most", h.eks.Desired, mostNodes)
	}
}

// runMachines is EC2 Auto Scaling: it brings the group to its desired size. If there are too many machines, it ends any.
func (h *history) runMachines() {
	nodes := slices.DeleteFunc(all(h.world, &corev1.NodeList{}).Items, func(node corev1.Node) bool {
		instance := node.Spec.ProviderID[strings.LastIndex(node.Spec.ProviderID, "/")+1:]
		if h.ended[instance] {
			h.dies(&node)
		}
		return h.ended[instance]
	})
	for ; len(nodes) > h.eks.Desired; nodes = nodes[1:] {
		h.dies(&nodes[0])
	}
	for range h.eks.Desired - len(nodes) {
		h.made++
		name := fmt.Sprintf("made-%d", h.made)
		h.addNode(name, map[string]string{v1alpha1.LabelEKSNodegroup: "g6"})
		node := h.node(name)
		node.Spec.ProviderID = "aws:///us-east-1a/i-" + name
		h.update(node)
	}
}

// settle ends a history and checks its final state.
func (h *history) settle() {
	h.t.Helper()
	h.eks.Err, h.dieAt = nil, 0
	pods, most := 0, h.random.IntN(4*mostNodes+1) // GPUs that there can be
	h.deletePods(func(*corev1.Pod) bool { pods++; return pods > most })
	for range 100 {
		h.step(2 * time.Minute)
	}
	used := map[string]bool{}
	for _, pod := range all(h.world, &corev1.PodList{}).Items {
		if used[pod.Spec.NodeName] = true; pod.Spec.NodeName == "" {
			h.t.Errorf("pod %s has no node, of %d nodes: %+v", pod.Name, h.nodes(), h.status("g6"))
		}
	}
	if nodes := h.nodes(); nodes != max(len(used), leastNodes) || nodes != h.eks.Desired {
		h.t.Errorf("there are %d nodes, EKS wants %d, and pods are on %d: %+v", nodes, h.eks.Desired, len(used), h.status("g6"))
	}
	h.deletePods(func(*corev1.Pod) bool { return true })
	h.resize(mostNodes)
	for range 50 {
		h.step(2 * time.Minute)
	}
	if h.nodes() != leastNodes || h.eks.Desired != leastNodes {
		h.t.Errorf("without pods there are %d nodes, and EKS wants %d, want %d", h.nodes(), h.eks.Desired, leastNodes)
	}
}
