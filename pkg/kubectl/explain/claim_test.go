package explain

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	reasons "github.com/mica-gpu/mica/pkg/scaleout/explain"
	"github.com/mica-gpu/mica/test/fixture"
)

func pod(name string, change func(*corev1.Pod)) corev1.Pod {
	p := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "research", UID: types.UID("uid-" + name)}}
	p.Status.Phase = corev1.PodPending
	change(&p)
	return p
}

func naming(claim string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpus", ResourceClaimName: &claim}}
	}
}

// A pod has the claim by its name, by a template that made it for this pod, or for an extended resource.
func TestConsumersOfAClaim(t *testing.T) {
	claim := fixture.Claim("gpus")
	claim.Namespace = "research"
	claim.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: "made-for", UID: "uid-made-for", Controller: ptr.To(true)}}
	claim.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: "gone"}, {Resource: "pods", Name: "runs"}, {APIGroup: "example.com", Resource: "jobs", Name: "job"}}
	template := func(p *corev1.Pod) {
		p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpus", ResourceClaimTemplateName: ptr.To("one")}}
		p.Status.ResourceClaimStatuses = []corev1.PodResourceClaimStatus{{Name: "gpus", ResourceClaimName: ptr.To("gpus")}}
	}
	found := ConsumersOf(claim, []corev1.Pod{
		pod("runs", func(p *corev1.Pod) { p.Spec.NodeName, p.Status.Phase = "n1", corev1.PodRunning }),
		pod("names", naming("gpus")),
		pod("another", naming("other")),
		pod("ended", func(p *corev1.Pod) { naming("gpus")(p); p.Status.Phase = corev1.PodFailed }),
		pod("made-for", template),
		pod("of-the-same-name-before", template),
		pod("extended", func(p *corev1.Pod) {
			p.Status.ExtendedResourceClaimStatus = &corev1.PodExtendedResourceClaimStatus{ResourceClaimName: "gpus"}
		}),
	})
	var got []string
	for _, p := range found {
		got = append(got, fmt.Sprintf("%s %t %s", p.Name, p.Reserved, p.Node))
	}
	want := []string{"extended false ", "gone true ", "made-for false ", "names false ", "runs true n1"}
	if !slices.Equal(got, want) {
		t.Errorf("pods %q, want %q", got, want)
	}
}

func TestSummariesOfClaims(t *testing.T) {
	claim := fixture.Claim("gpus")
	claim.Namespace = "research"
	var many []Consumer
	for i := range 9 {
		many = append(many, Consumer{Name: fmt.Sprint("p", i), Reserved: true, Node: "n1", Phase: corev1.PodRunning})
	}
	if got := AllocatedClaim(claim, many, nil).Summary; !strings.HasPrefix(got, "reserved for pod p0 (Running), ") || !strings.HasSuffix(got, ", 4 more") {
		t.Errorf("of many pods: %q", got)
	}
	claim.DeletionTimestamp = &metav1.Time{}
	many[0].deleted = true
	if got := AllocatedClaim(claim, many[:1], nil).Summary; got != "reserved for pod p0 (being deleted); the claim is being deleted, and will be gone when no pod uses it" {
		t.Errorf("of a claim that is being deleted: %q", got)
	}
	two := []Consumer{{Name: "a", Phase: corev1.PodPending}, {Name: "b", Phase: corev1.PodPending}}
	if got := WaitingClaim(claim, two, reasons.Explanation{Summary: "needs a node"}).Summary; got != "2 pods wait with it; pod a: needs a node" {
		t.Errorf("of two pods that wait: %q", got)
	}
	if why := Misplaced(two); why != "" {
		t.Errorf("pods without a node are on one: %q", why)
	}
}
