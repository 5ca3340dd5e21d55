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
	"k8s.io/apimachinery/pkg/types"

	"github.com/mica-gpu/mica/pkg/scaleout/fit"
)

// kind is a set of pods that are alike.
type kind struct {
	id string
	// example stands for all pods; nil: problem says why.
	example *fit.Pod
	problem string
	pods    []*pending
	// named are the claims that the pods may share, the same for all of them.
	named []*namedClaim
	// claims are those of the first pod. variants are made of them, by which of the named claims are placed.
	claims   []fit.PodClaim
	variants map[string]*fit.Pod
	requests corev1.ResourceList
	size     size
	// aborts is why the scheduler gives up on the pods on all nodes; usually empty.
	aborts string
	// full has the groups that were at their maximum when the kind needed them.
	full map[*group]bool
}

// pending is a pending pod, with its place in the plan.
type pending struct {
	pod  *corev1.Pod
	kind *kind
	// host is its place in the plan; nil: why or the groups of its kind say why it has none.
	host *host
	why  string
	hold Hold
	// nominated is the name of the node for which the scheduler has nominated the pod; usually empty.
	nominated string
	// overBudget is the budget that why mentions, or nil.
	overBudget *budget
}

// noteFull records a group that was at its maximum when the kind needed it.
func (k *kind) noteFull(g *group) {
	if k.full == nil {
		k.full = map[*group]bool{}
	}
	k.full[g] = true
}

// waits reports whether the scheduler has to place the pod.
func waits(pod *corev1.Pod) bool {
	return pod.Spec.NodeName == "" && pod.DeletionTimestamp == nil && !fit.Ended(pod)
}

// kinds groups the pending pods by what they ask for: the most urgent and hardest kinds first, those that cannot be
// planned last.
func (p *planner) kinds(s Snapshot) []*kind {
	known := map[string]*kind{}
	for _, pod := range s.Pending {
		if !waits(pod) {
			continue
		}
		k := p.kindOf(pod, 0)
		if known[k.id] == nil {
			known[k.id] = k
		}
		k = known[k.id]
		hold := s.Held[pod.UID]
		k.pods = append(k.pods, &pending{pod: pod, kind: k, why: cmp.Or(gated(pod), hold.Why), hold: hold, nominated: s.Nominated[pod.UID]})
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

// kindOf reads a pod. more is the number of pods like it that are not pending. The kind has no pods yet.
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

// kindOfClaim is the kind of a pod that asks for nothing but a claim. It tolerates all taints of nodes, because most
// keep pods without devices away.
func (p *planner) kindOfClaim(prefix, name string, spec resourceapi.ResourceClaimSpec) (*kind, error) {
	pod := &corev1.Pod{}
	pod.Namespace, pod.Name, pod.UID = "headroom", name, types.UID("headroom/"+name)
	pod.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
	request := "device"
	pod.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: request, ResourceClaimName: &name}}
	claim := &resourceapi.ResourceClaim{Spec: spec}
	claim.Namespace, claim.Name, claim.UID = pod.Namespace, name, pod.UID
	example, err := p.cluster.Pod(pod, []fit.PodClaim{{Name: request, Claim: claim}})
	if err != nil {
		return nil, err
	}
	k := &kind{id: prefix + name, example: example}
	k.measureClaims()
	return k, nil
}

// unplanned is a kind of pods that cannot be planned.
func unplanned(why error) *kind {
	return &kind{id: short("problem", why.Error()), problem: why.Error()}
}

// gated says which scheduling gates the pod has; empty: none.
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

// short is a hash of the texts, of 16 digits.
func short(texts ...string) string {
	sum := sha256.Sum256([]byte(strings.Join(texts, "\x00")))
	return hex.EncodeToString(sum[:8])
}
