// Package allocation says of one claim what explain says of a pod: which devices it has been given and
// how they are, or what it waits for; and which pods use it. It decides by values that somebody has
// read, and prints them. It plans nothing itself: what a claim waits for, pkg/scaleout/explain says.
package allocation

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	"k8s.io/utils/ptr"

	"github.com/mica-gpu/mica/pkg/kubectl/inventory"
	"github.com/mica-gpu/mica/pkg/scaleout"
	"github.com/mica-gpu/mica/pkg/scaleout/explain"
)

// Allocated is the outcome of a claim that has its devices.
const Allocated scaleout.Outcome = "Allocated"

// Claim is what there is to say of one. It is printed as JSON and YAML as it is.
type Claim struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// Outcome is Allocated, or what becomes of the pod that waits with the claim.
	Outcome scaleout.Outcome `json:"outcome"`
	Summary string           `json:"summary"`
	// Pods are those that the claim is reserved for, and those that name it.
	Pods []Pod `json:"pods"`
	// Devices are what the claim has been given.
	Devices []inventory.Given `json:"devices,omitempty"`
	// Verdicts and More are as in explain.Explanation, of a claim that waits.
	Verdicts []explain.Verdict `json:"verdicts,omitempty"`
	More     int               `json:"more,omitempty"`
}

// Pod is one that uses a claim, or is to use it.
type Pod struct {
	Name string `json:"name"`
	// Reserved tells that the pod may use the devices: the scheduler has written it into the claim.
	Reserved bool `json:"reserved"`
	// Node and Phase are empty of a pod that was not seen.
	Node  string          `json:"node,omitempty"`
	Phase corev1.PodPhase `json:"phase,omitempty"`
	// leaves tells that the pod is being deleted.
	leaves bool
}

// waits tells that the scheduler has still to find a node for the pod.
func (p Pod) waits() bool { return p.Node == "" && p.Phase == corev1.PodPending && !p.leaves }

// PodsOf are the pods for which the claim is reserved, and those of its namespace that name it and have
// not ended, by name.
func PodsOf(claim *resourceapi.ResourceClaim, all []corev1.Pod) []Pod {
	found := []Pod{}
	for _, consumer := range claim.Status.ReservedFor {
		if consumer.APIGroup == "" && consumer.Resource == "pods" {
			found = append(found, Pod{Name: consumer.Name, Reserved: true})
		}
	}
	for i := range all {
		pod := &all[i]
		at := slices.IndexFunc(found, func(p Pod) bool { return p.Name == pod.Name })
		ended := pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
		if at < 0 && (ended || !names(pod, claim)) {
			continue
		}
		if at < 0 {
			at = len(found)
			found = append(found, Pod{Name: pod.Name})
		}
		found[at].Node, found[at].Phase, found[at].leaves = pod.Spec.NodeName, pod.Status.Phase, pod.DeletionTimestamp != nil
	}
	slices.SortFunc(found, func(a, b Pod) int { return cmp.Compare(a.Name, b.Name) })
	return found
}

// names tells whether a pod asks for the claim: by its name, by a template, or by an extended resource.
func names(pod *corev1.Pod, claim *resourceapi.ResourceClaim) bool {
	if s := pod.Status.ExtendedResourceClaimStatus; s != nil && s.ResourceClaimName == claim.Name {
		return true
	}
	for i := range pod.Spec.ResourceClaims {
		name, own, err := resourceclaim.Name(pod, &pod.Spec.ResourceClaims[i])
		if err == nil && name != nil && *name == claim.Name && (!own || resourceclaim.IsForPod(pod, claim, true) == nil) {
			return true
		}
	}
	return false
}

// Waiting is the pod by which a claim without devices is to be explained, the first by name; false where
// none waits.
func Waiting(pods []Pod) (string, bool) {
	at := slices.IndexFunc(pods, Pod.waits)
	if at < 0 {
		return "", false
	}
	return pods[at].Name, true
}

// Of is what there is to say of a claim that has its devices.
func Of(claim *resourceapi.ResourceClaim, pods []Pod, devices []inventory.Given) Claim {
	c := Claim{Namespace: claim.Namespace, Name: claim.Name, Outcome: Allocated, Pods: pods, Devices: devices}
	var nodes []string
	for _, d := range devices {
		if d.Node != "" && !slices.Contains(nodes, d.Node) {
			nodes = append(nodes, d.Node)
		}
	}
	sentences := []string{use(claim, pods)}
	if len(nodes) > 0 {
		sentences[0] = "on node " + strings.Join(nodes, ", ") + ", " + sentences[0]
	}
	if name, waits := Waiting(pods); waits {
		sentences = append(sentences, fmt.Sprintf("pod %s has no node yet: kubectl gpu explain pod/%s -n %s says why", name, name, claim.Namespace))
	}
	if claim.DeletionTimestamp != nil {
		sentences = append(sentences, "the claim is being deleted, and goes when no pod uses it")
	}
	c.Summary = strings.Join(sentences, "; ")
	return c
}

// use says who has the devices.
func use(claim *resourceapi.ResourceClaim, pods []Pod) string {
	const most = 5
	var users []string
	for _, p := range pods {
		if p.Reserved {
			users = append(users, p.text())
		}
	}
	switch n := len(users); {
	case n == 0:
		return fmt.Sprintf("reserved for no pod: its devices are kept for it, so delete it if nobody is to use it (kubectl delete resourceclaim %s -n %s)", claim.Name, claim.Namespace)
	case n > most:
		users = append(users[:most], fmt.Sprintf("%d more", n-most))
	}
	return "reserved for " + strings.Join(users, ", ")
}

func (p Pod) text() string {
	switch {
	case p.leaves:
		return "pod " + p.Name + " (being deleted)"
	case p.Phase != "":
		return fmt.Sprintf("pod %s (%s)", p.Name, p.Phase)
	}
	return "pod " + p.Name
}

// Unallocated is what there is to say of a claim without devices, by what there is to say of the pod
// that waits with it, or would.
func Unallocated(claim *resourceapi.ResourceClaim, pods []Pod, of explain.Explanation) Claim {
	c := Claim{Namespace: claim.Namespace, Name: claim.Name, Outcome: of.Outcome, Pods: pods, Verdicts: of.Verdicts, More: of.More}
	name, waits := Waiting(pods)
	switch {
	case waits && len(pods) > 1:
		c.Summary = fmt.Sprintf("%d pods wait with it; pod %s: %s", len(pods), name, of.Summary)
	case waits:
		c.Summary = fmt.Sprintf("pod %s waits with it: %s", name, of.Summary)
	default:
		c.Summary = "no pod uses it, so it has no devices; a pod that asks for nothing else: " + of.Summary
	}
	return c
}

// Misplaced says of a pod that is on a node without the claim's devices why it will not start; empty:
// there is none.
func Misplaced(pods []Pod) string {
	at := slices.IndexFunc(pods, func(p Pod) bool { return p.Node != "" && !p.leaves })
	if at < 0 {
		return ""
	}
	return fmt.Sprintf("pod %s is on node %s and the claim has no devices, so kubelet does not start it: only the scheduler gives devices to claims; leave out spec.nodeName, and select the node by a nodeSelector",
		pods[at].Name, pods[at].Node)
}

// Alone is a pod as it would be that asks for the claim and for nothing else, and goes wherever it may.
// No pod of the cluster can have its name. It comes after all others.
func Alone(claim *resourceapi.ResourceClaim) *corev1.Pod {
	pod := &corev1.Pod{}
	pod.Namespace, pod.Name, pod.UID = claim.Namespace, "claim/"+claim.Name, types.UID("imagined-for-"+string(claim.UID))
	pod.Spec = corev1.PodSpec{
		SchedulerName:  corev1.DefaultSchedulerName,
		Priority:       ptr.To[int32](math.MinInt32),
		Tolerations:    []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
		Containers:     []corev1.Container{{Name: "main", Resources: corev1.ResourceRequirements{Claims: []corev1.ResourceClaim{{Name: claim.Name}}}}},
		ResourceClaims: []corev1.PodResourceClaim{{Name: claim.Name, ResourceClaimName: ptr.To(claim.Name)}},
	}
	pod.Status.Phase = corev1.PodPending
	return pod
}
