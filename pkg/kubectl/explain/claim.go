package explain

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	"k8s.io/utils/ptr"

	"github.com/mica-gpu/mica/pkg/fleet"
	"github.com/mica-gpu/mica/pkg/kubectl/inventory"
	"github.com/mica-gpu/mica/pkg/kubectl/terminal"
	"github.com/mica-gpu/mica/pkg/scaleout"
	reasons "github.com/mica-gpu/mica/pkg/scaleout/explain"
)

// Allocated is the outcome of a claim that has its devices.
const Allocated scaleout.Outcome = "Allocated"

// Claim is the answer about a claim.
type Claim struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// Outcome is Allocated, or that of the pod that waits with the claim.
	Outcome scaleout.Outcome `json:"outcome"`
	Summary string           `json:"summary"`
	// Pods are those that the claim is reserved for, and those that name it.
	Pods []Consumer `json:"pods"`
	// Devices are the allocated ones.
	Devices []fleet.Device `json:"devices,omitempty"`
	// Verdicts and More are as in an Explanation.
	Verdicts []reasons.Verdict `json:"verdicts,omitempty"`
	More     int               `json:"more,omitempty"`
}

// Consumer is a pod that uses a claim or names it.
type Consumer struct {
	Name string `json:"name"`
	// Reserved reports whether the claim is reserved for the pod.
	Reserved bool `json:"reserved"`
	// Node and Phase are empty if the pod could not be read.
	Node  string          `json:"node,omitempty"`
	Phase corev1.PodPhase `json:"phase,omitempty"`
	// deleted reports whether the pod is being deleted.
	deleted bool
}

// pending reports whether the pod has no node yet.
func (c Consumer) pending() bool { return c.Node == "" && c.Phase == corev1.PodPending && !c.deleted }

// ConsumersOf returns the pods that the claim is reserved for, and those of its namespace that name it and have not
// ended, by name.
func ConsumersOf(claim *resourceapi.ResourceClaim, pods []corev1.Pod) []Consumer {
	found := []Consumer{}
	for _, consumer := range claim.Status.ReservedFor {
		if consumer.APIGroup == "" && consumer.Resource == "pods" {
			found = append(found, Consumer{Name: consumer.Name, Reserved: true})
		}
	}
	for i := range pods {
		pod := &pods[i]
		at := slices.IndexFunc(found, func(c Consumer) bool { return c.Name == pod.Name })
		ended := pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
		if at < 0 && (ended || !names(pod, claim)) {
			continue
		}
		if at < 0 {
			at = len(found)
			found = append(found, Consumer{Name: pod.Name})
		}
		found[at].Node, found[at].Phase, found[at].deleted = pod.Spec.NodeName, pod.Status.Phase, pod.DeletionTimestamp != nil
	}
	slices.SortFunc(found, func(a, b Consumer) int { return cmp.Compare(a.Name, b.Name) })
	return found
}

// names reports whether a pod uses the claim: by its name, by a template, or by an extended resource.
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

// Pending returns the first pod, by name, that has no node yet.
func Pending(pods []Consumer) (string, bool) {
	at := slices.IndexFunc(pods, Consumer.pending)
	if at < 0 {
		return "", false
	}
	return pods[at].Name, true
}

// AllocatedClaim is the answer about a claim that has its devices.
func AllocatedClaim(claim *resourceapi.ResourceClaim, pods []Consumer, devices []fleet.Device) Claim {
	c := Claim{Namespace: claim.Namespace, Name: claim.Name, Outcome: Allocated, Pods: pods, Devices: devices}
	var nodes []string
	for _, d := range devices {
		if d.Node != "" && !slices.Contains(nodes, d.Node) {
			nodes = append(nodes, d.Node)
		}
	}
	sentences := []string{reservation(claim, pods)}
	if len(nodes) > 0 {
		sentences[0] = "on node " + strings.Join(nodes, ", ") + ", " + sentences[0]
	}
	if name, pending := Pending(pods); pending {
		sentences = append(sentences, fmt.Sprintf("pod %s has no node yet: run kubectl gpu explain pod/%s -n %s", name, name, claim.Namespace))
	}
	if claim.DeletionTimestamp != nil {
		sentences = append(sentences, "the claim is being deleted, and will be gone when no pod uses it")
	}
	c.Summary = strings.Join(sentences, "; ")
	return c
}

// reservation names the pods that the claim is reserved for.
func reservation(claim *resourceapi.ResourceClaim, pods []Consumer) string {
	const most = 5
	var users []string
	for _, p := range pods {
		if p.Reserved {
			users = append(users, p.text())
		}
	}
	switch n := len(users); {
	case n == 0:
		return fmt.Sprintf("reserved for no pod: the claim keeps its devices; delete it if no pod will use it (kubectl delete resourceclaim %s -n %s)", claim.Name, claim.Namespace)
	case n > most:
		users = append(users[:most], fmt.Sprintf("%d more", n-most))
	}
	return "reserved for " + strings.Join(users, ", ")
}

func (c Consumer) text() string {
	switch {
	case c.deleted:
		return "pod " + c.Name + " (being deleted)"
	case c.Phase != "":
		return fmt.Sprintf("pod %s (%s)", c.Name, c.Phase)
	}
	return "pod " + c.Name
}

// WaitingClaim is the answer about a claim without devices, from the explanation of the pod that waits with it, or of
// PodFor.
func WaitingClaim(claim *resourceapi.ResourceClaim, pods []Consumer, e reasons.Explanation) Claim {
	c := Claim{Namespace: claim.Namespace, Name: claim.Name, Outcome: e.Outcome, Pods: pods, Verdicts: e.Verdicts, More: e.More}
	name, pending := Pending(pods)
	switch {
	case pending && len(pods) > 1:
		c.Summary = fmt.Sprintf("%d pods wait with it; pod %s: %s", len(pods), name, e.Summary)
	case pending:
		c.Summary = fmt.Sprintf("pod %s waits with it: %s", name, e.Summary)
	default:
		c.Summary = "no pod uses it, so it has no devices; a pod that asks for nothing else: " + e.Summary
	}
	return c
}

// Misplaced explains why a pod does not start that has a node, but whose claim has no devices; empty: there is none.
func Misplaced(pods []Consumer) string {
	at := slices.IndexFunc(pods, func(c Consumer) bool { return c.Node != "" && !c.deleted })
	if at < 0 {
		return ""
	}
	return fmt.Sprintf("pod %s is on node %s and the claim has no devices, so kubelet does not start it: only the scheduler allocates devices; leave out spec.nodeName, and select the node by a nodeSelector",
		pods[at].Name, pods[at].Node)
}

// PodFor is a pod that asks for the claim alone and tolerates every taint. No pod of the cluster can have its name.
// It is planned last.
func PodFor(claim *resourceapi.ResourceClaim) *corev1.Pod {
	pod := &corev1.Pod{}
	pod.Namespace, pod.Name, pod.UID = claim.Namespace, "claim/"+claim.Name, types.UID("planned-for-"+string(claim.UID))
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

// Write prints the answer as a table.
func (c Claim) Write(w io.Writer, screen terminal.Screen) error {
	title := fmt.Sprintf("Claim %s/%s: %s", c.Namespace, c.Name, c.Outcome)
	if err := write(w, screen, title, c.Summary, c.Verdicts, c.More); err != nil || len(c.Devices) == 0 {
		return err
	}
	if _, err := fmt.Fprintln(w); err != nil {
		return err
	}
	if err := screen.Write(w, inventory.DeviceTable(c.Devices)); err != nil {
		return err
	}
	for _, remark := range inventory.Remarks(c.Devices) {
		if _, err := fmt.Fprintln(w, strings.Join(screen.Lines(remark, 0), "\n")); err != nil {
			return err
		}
	}
	return nil
}
