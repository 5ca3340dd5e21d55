package scaleout

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	resourcehelper "k8s.io/component-helpers/resource"

	"github.com/mica-gpu/mica/pkg/scaleout/fit"
)

// kind is a number of pods that are alike.
type kind struct {
	id string
	// example is nil where problem says why.
	example *fit.Pod
	problem string
	pods    []*pending
	// named are the claims that the pods may share, the same for all of them.
	named []*namedClaim
	// claims of the first pod, from which variants are made, by which of named are placed.
	claims   []fit.PodClaim
	variants map[string]*fit.Pod
	requests corev1.ResourceList
	size     size
	// aborts is why the scheduler gives up on the pods, whatever nodes there are; usually empty.
	aborts string
	// full has groups that could not grow when the kind wanted them to.
	full map[*group]bool
}

// pending is a pod that waits.
type pending struct {
	pod  *corev1.Pod
	kind *kind
	// host is where the plan puts it; nil: why, or its kind's groups, say why not.
	host *host
	why  string
}

// batch is a number of pods that are alike and equally urgent.
type batch struct {
	kind     *kind
	priority int32
	pods     []*pending
}

// waits tells whether the pod is one for the scheduler.
func waits(pod *corev1.Pod) bool {
	ended := pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
	return pod.Spec.NodeName == "" && pod.DeletionTimestamp == nil && !ended
}

// kinds tells the pods apart by what they ask for: the most urgent and hardest kinds first,
// those that cannot be planned last.
func (p *planner) kinds(pods []*corev1.Pod) []*kind {
	known := map[string]*kind{}
	for _, pod := range pods {
		if !waits(pod) {
			continue
		}
		k := p.kindOf(pod, 0)
		if known[k.id] == nil {
			known[k.id] = k
		}
		k = known[k.id]
		k.pods = append(k.pods, &pending{pod: pod, kind: k, why: gated(pod)})
	}
	kinds := slices.Collect(maps.Values(known))
	for _, k := range kinds {
		slices.SortFunc(k.pods, byUrgency)
		k.measure()
	}
	slices.SortFunc(kinds, func(a, b *kind) int {
		return cmp.Or(falseFirst(a.example == nil, b.example == nil), byNeed(a.pods[0], b.pods[0]))
	})
	return kinds
}

// kindOf reads a pod, of which there may be more than wait. The kind has no pods yet.
func (p *planner) kindOf(pod *corev1.Pod, more int) *kind {
	claims, named, err := p.claims.of(pod, more)
	if err != nil {
		return unplanned(err)
	}
	example, err := p.cluster.Pod(pod, claims)
	if err != nil {
		return unplanned(err)
	}
	k := &kind{id: example.Kind(), example: example, named: named, claims: claims}
	if len(named) > 0 {
		names := []string{example.Kind()}
		for _, claim := range named {
			names = append(names, claim.name.String())
		}
		k.id = short(names...)
	}
	return k
}

// unplanned is a kind of pods that cannot be planned at all.
func unplanned(why error) *kind {
	return &kind{id: short("problem", why.Error()), problem: why.Error()}
}

// gated says why a pod is not for the scheduler yet, or nothing.
func gated(pod *corev1.Pod) string {
	if len(pod.Spec.SchedulingGates) == 0 {
		return ""
	}
	var names []string
	for _, gate := range pod.Spec.SchedulingGates {
		names = append(names, gate.Name)
	}
	return fmt.Sprintf("the pod is not to be scheduled before its scheduling gates are removed: %s", strings.Join(names, ", "))
}

// batches are the pods in the order in which they are put on hosts, without those that are
// not to be scheduled yet.
func batches(kinds []*kind) []batch {
	var all []batch
	for _, k := range kinds {
		if k.example == nil {
			continue
		}
		for _, pod := range k.pods {
			if pod.why != "" {
				continue
			}
			last := len(all) - 1
			if last < 0 || all[last].kind != k || all[last].priority != priority(pod.pod) {
				all = append(all, batch{kind: k, priority: priority(pod.pod)})
				last++
			}
			all[last].pods = append(all[last].pods, pod)
		}
	}
	slices.SortFunc(all, func(a, b batch) int { return byNeed(a.pods[0], b.pods[0]) })
	return all
}

func priority(pod *corev1.Pod) int32 {
	if pod.Spec.Priority == nil {
		return 0
	}
	return *pod.Spec.Priority
}

// byUrgency orders pods that are alike.
func byUrgency(a, b *pending) int {
	return cmp.Or(
		cmp.Compare(priority(b.pod), priority(a.pod)),
		a.pod.CreationTimestamp.Compare(b.pod.CreationTimestamp.Time),
		cmp.Compare(a.pod.Namespace, b.pod.Namespace),
		cmp.Compare(a.pod.Name, b.pod.Name),
		cmp.Compare(a.pod.UID, b.pod.UID),
	)
}

// byNeed orders the first pods of batches: who is hard to place comes before those who could
// take its place.
func byNeed(a, b *pending) int {
	return cmp.Or(
		cmp.Compare(priority(b.pod), priority(a.pod)),
		b.kind.size.compare(a.kind.size),
		byUrgency(a, b),
		cmp.Compare(a.kind.id, b.kind.id),
	)
}

func falseFirst(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return 1
	}
	return -1
}

// size is how hard it is to find room for a pod.
type size struct {
	devices, constraints int
	// narrow counts what the pod asks of a node's labels.
	narrow      int
	cpu, memory int64
}

func (s size) compare(other size) int {
	return cmp.Or(
		cmp.Compare(s.devices, other.devices),
		cmp.Compare(s.constraints, other.constraints),
		cmp.Compare(s.narrow, other.narrow),
		cmp.Compare(s.cpu, other.cpu),
		cmp.Compare(s.memory, other.memory),
	)
}

// wholeNode is the weight of a request for all devices of a node.
const wholeNode = 1 << 16

// measure finds out how large the pods are.
func (k *kind) measure() {
	if k.example == nil {
		return
	}
	k.requests = corev1.ResourceList{}
	for name, quantity := range resourcehelper.PodRequests(k.pods[0].pod, resourcehelper.PodResourcesOptions{}) {
		switch name {
		case corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage:
			k.requests[name] = quantity
		}
	}
	k.size = size{cpu: k.requests.Cpu().MilliValue(), memory: k.requests.Memory().Value()}
	spec := k.pods[0].pod.Spec
	k.size.narrow = len(spec.NodeSelector)
	if spec.Affinity != nil && spec.Affinity.NodeAffinity != nil && spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution != nil {
		k.size.narrow++
	}
	k.measureClaims()
}

// measureClaims finds out how much the pods ask for of devices.
func (k *kind) measureClaims() {
	for _, claim := range k.example.Claims() {
		k.size.constraints += len(claim.Spec.Devices.Constraints)
		for _, request := range claim.Spec.Devices.Requests {
			k.size.devices += weight(request)
		}
	}
}

// weight counts the devices of a request; of alternatives, the most.
func weight(request resourceapi.DeviceRequest) int {
	counted := func(mode resourceapi.DeviceAllocationMode, count int64) int {
		if mode == resourceapi.DeviceAllocationModeAll {
			return wholeNode
		}
		return int(max(count, 1))
	}
	if request.Exactly != nil {
		return counted(request.Exactly.AllocationMode, request.Exactly.Count)
	}
	most := 0
	for _, alternative := range request.FirstAvailable {
		most = max(most, counted(alternative.AllocationMode, alternative.Count))
	}
	return most
}

// short is a name of 16 digits for what the texts say.
func short(texts ...string) string {
	sum := sha256.Sum256([]byte(strings.Join(texts, "\x00")))
	return hex.EncodeToString(sum[:8])
}
