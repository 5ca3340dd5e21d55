package workload

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// After any history the counts equal a recount of everything.
func TestCountsAreThoseOfALookAtEverything(t *testing.T) {
	for seed := range uint64(24) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			h := newHistory(t, seed)
			for step := range 150 {
				what := h.step()
				h.settle()
				for _, of := range historyCounts {
					got, err := h.index.Pending(t.Context(), of)
					if err != nil {
						t.Fatal(err)
					}
					if want := h.look(of); got != want {
						t.Fatalf("step %d, %s: %v %s: got %d, want %d", step, what, of.Workload, of.Class, got, want)
					}
				}
			}
			for i, of := range historyCounts {
				h.await(h.watches[i], h.look(of))
			}
		})
	}
}

var (
	historyDeployments = []string{"x", "y"}
	historySets        = []string{"x-1", "x-2", "y-1"}
	historyTemplates   = []string{"one", "two"}
	historyShared      = []string{"s", "t"}
	historyPods        = []string{"a", "b", "c", "d", "e", "f"}
	historyClasses     = []string{"gpu", "mig"}
	historyCounts      = []Pending{ofWorkload(KindDeployment, "x"), ofWorkload(KindDeployment, "y"), ofClass("gpu"), ofClass("mig")}
)

// history is a cluster in which anything may happen, in any order. The maps have what the API
// server would have.
type history struct {
	*world
	*rand.Rand
	pods      map[string]*corev1.Pod
	claims    map[string]*resourceapi.ResourceClaim
	templates map[string]*resourceapi.ResourceClaimTemplate
	sets      map[string]*appsv1.ReplicaSet
	watches   []<-chan int
	barriers  []barrier
}

func newHistory(t *testing.T, seed uint64) *history {
	h := &history{
		Rand:      rand.New(rand.NewPCG(seed, 1)),
		pods:      map[string]*corev1.Pod{},
		claims:    map[string]*resourceapi.ResourceClaim{},
		templates: map[string]*resourceapi.ResourceClaimTemplate{},
		sets:      map[string]*appsv1.ReplicaSet{},
	}
	objects := []client.Object{newClass("gpu", "nvidia.com/gpu"), newClass("mig", "")}
	for _, name := range historyDeployments {
		objects = append(objects, newDeployment(name))
	}
	h.world = newWorld(t, append(objects, barrierObjects()...)...)
	for _, of := range historyCounts {
		h.watches = append(h.watches, h.watch(of))
	}
	h.barriers = newBarriers(h.world)
	return h
}

// step does one thing and describes it.
func (h *history) step() string {
	actions := []func() string{
		h.createPod, h.createPod, h.changePod, h.changePod, h.makeClaim, h.makeClaim, h.nameClaim, h.nameClaim, h.removePod,
		h.createShared, h.changeClaim, h.changeClaim, h.changeClaim, h.removeClaim,
		h.toggleTemplate, h.changeSet,
	}
	for {
		if what := actions[h.IntN(len(actions))](); what != "" {
			return what
		}
	}
}

func pick[T any](r *rand.Rand, all []T) T { return all[r.IntN(len(all))] }

// some is a random object; nil where there is none.
func some[O client.Object](r *rand.Rand, objects map[string]O) (object O, found bool) {
	if len(objects) == 0 {
		return object, false
	}
	return objects[pick(r, slices.Sorted(maps.Keys(objects)))], true
}

func put[O client.Object](w *world, objects map[string]O, object O) {
	if _, there := objects[object.GetName()]; there {
		w.change(object)
	} else {
		w.add(object)
	}
	objects[object.GetName()] = object
}

func drop[O client.Object](w *world, objects map[string]O, object O) {
	delete(objects, object.GetName())
	w.remove(object)
}

func (h *history) createPod() string {
	name := pick(h.Rand, historyPods)
	if h.pods[name] != nil {
		return ""
	}
	pod := newPod(name, pick(h.Rand, append(historySets, "")))
	for _, entry := range []string{"g", "h"}[:h.IntN(3)] {
		if h.IntN(2) == 0 {
			namesTemplate(entry, pick(h.Rand, historyTemplates))(pod)
		} else {
			namesClaim(entry, pick(h.Rand, historyShared))(pod)
		}
	}
	if h.IntN(3) == 0 {
		requests(pick(h.Rand, []corev1.ResourceName{"nvidia.com/gpu", "deviceclass.resource.kubernetes.io/mig", "example.com/fpga"}))(pod)
	}
	put(h.world, h.pods, pod)
	return "create pod " + name
}

func (h *history) changePod() string {
	pod, found := some(h.Rand, h.pods)
	if !found {
		return ""
	}
	pod = pod.DeepCopy()
	change := pick(h.Rand, []string{"bind", "end", "delete slowly", "touch"})
	switch change {
	case "bind":
		pod.Spec.NodeName = "n"
	case "end":
		pod.Status.Phase = corev1.PodFailed
	case "delete slowly":
		deleting(pod)
	}
	put(h.world, h.pods, pod)
	return change + " pod " + pod.Name
}

func (h *history) removePod() string {
	pod, found := some(h.Rand, h.pods)
	if !found {
		return ""
	}
	drop(h.world, h.pods, pod)
	return "remove pod " + pod.Name
}

// makeClaim makes one for a pod, which may stay after the pod.
func (h *history) makeClaim() string {
	pod, found := some(h.Rand, h.pods)
	if !found {
		return ""
	}
	for _, entry := range pod.Spec.ResourceClaims {
		claim := generated(pod.Name, entry.Name, pick(h.Rand, historyClasses))
		if entry.ResourceClaimTemplateName != nil && h.claims[claim.Name] == nil {
			put(h.world, h.claims, claim)
			return "make claim " + claim.Name
		}
	}
	return ""
}

func (h *history) nameClaim() string {
	pod, found := some(h.Rand, h.pods)
	if !found {
		return ""
	}
	for _, entry := range pod.Spec.ResourceClaims {
		known := slices.ContainsFunc(pod.Status.ResourceClaimStatuses, func(s corev1.PodResourceClaimStatus) bool { return s.Name == entry.Name })
		if entry.ResourceClaimTemplateName != nil && !known {
			put(h.world, h.pods, with(pod, hasGenerated(entry.Name)))
			return "name the claim of " + pod.Name + "/" + entry.Name
		}
	}
	return ""
}

func (h *history) createShared() string {
	name := pick(h.Rand, historyShared)
	if h.claims[name] != nil {
		return ""
	}
	put(h.world, h.claims, newClaim(name, pick(h.Rand, [][]string{{"gpu"}, {"mig"}, {"gpu", "mig"}})...))
	return "create shared claim " + name
}

func (h *history) changeClaim() string {
	claim, found := some(h.Rand, h.claims)
	if !found {
		return ""
	}
	claim = claim.DeepCopy()
	change := "allocate"
	switch {
	case h.IntN(5) == 0:
		change = "delete slowly"
		deleting(claim)
	case claim.Status.Allocation == nil:
		claim = allocated(claim, noon, device("n", "gpu-0"))
	default:
		change = "deallocate"
		claim.Status.Allocation = nil
	}
	put(h.world, h.claims, claim)
	return change + " claim " + claim.Name
}

func (h *history) removeClaim() string {
	claim, found := some(h.Rand, h.claims)
	if !found {
		return ""
	}
	drop(h.world, h.claims, claim)
	return "remove claim " + claim.Name
}

func (h *history) toggleTemplate() string {
	name := pick(h.Rand, historyTemplates)
	if template := h.templates[name]; template != nil {
		drop(h.world, h.templates, template)
		return "remove template " + name
	}
	put(h.world, h.templates, newTemplate(name, pick(h.Rand, historyClasses)))
	return "create template " + name
}

func (h *history) changeSet() string {
	name := pick(h.Rand, historySets)
	if set := h.sets[name]; set != nil && h.IntN(2) == 0 {
		drop(h.world, h.sets, set)
		return "remove ReplicaSet " + name
	}
	put(h.world, h.sets, newReplicaSet(name, pick(h.Rand, append(historyDeployments, ""))))
	return "own ReplicaSet " + name
}

// look counts by looking at every pod.
func (h *history) look(of Pending) int {
	waiting := map[string]bool{}
	note := func(pod *corev1.Pod, id string, classes ...string) {
		if of.Class != "" && slices.Contains(classes, of.Class) || of.Workload != nil && h.madeBy(pod, of.Workload.Name) {
			waiting[id] = true
		}
	}
	for _, pod := range h.pods {
		if pod.Status.Phase == corev1.PodFailed || pod.DeletionTimestamp != nil {
			continue
		}
		for _, entry := range pod.Spec.ResourceClaims {
			h.lookAt(pod, entry, note)
		}
		if len(pod.Spec.Containers) > 0 && pod.Spec.NodeName == "" {
			for resource := range pod.Spec.Containers[0].Resources.Requests {
				if class := map[corev1.ResourceName]string{"nvidia.com/gpu": "gpu", "deviceclass.resource.kubernetes.io/mig": "mig"}[resource]; class != "" {
					note(pod, "resource of "+pod.Name, class)
				}
			}
		}
	}
	return len(waiting)
}

func (h *history) lookAt(pod *corev1.Pod, entry corev1.PodResourceClaim, note func(pod *corev1.Pod, id string, classes ...string)) {
	var claim *resourceapi.ResourceClaim
	if entry.ResourceClaimName != nil {
		claim = h.claims[*entry.ResourceClaimName]
	}
	for _, status := range pod.Status.ResourceClaimStatuses {
		if status.Name == entry.Name {
			claim = h.claims[*status.ResourceClaimName]
		}
	}
	switch {
	case claim != nil:
		if claim.Status.Allocation == nil && claim.DeletionTimestamp == nil {
			note(pod, "claim "+claim.Name, requested(claim.Spec)...)
		}
	case entry.ResourceClaimTemplateName != nil && pod.Spec.NodeName == "":
		var classes []string
		if template := h.templates[*entry.ResourceClaimTemplateName]; template != nil {
			classes = requested(template.Spec.Spec)
		}
		note(pod, "entry "+pod.Name+" "+entry.Name, classes...)
	}
}

func requested(spec resourceapi.ResourceClaimSpec) []string {
	var classes []string
	for _, request := range spec.Devices.Requests {
		classes = append(classes, request.Exactly.DeviceClassName)
	}
	return classes
}

func (h *history) madeBy(pod *corev1.Pod, deployment string) bool {
	for _, set := range h.sets {
		if len(pod.OwnerReferences) > 0 && pod.OwnerReferences[0].UID == set.UID {
			return len(set.OwnerReferences) > 0 && set.OwnerReferences[0].Name == deployment
		}
	}
	return false
}
