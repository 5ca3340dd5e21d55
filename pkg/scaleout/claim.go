package scaleout

import (
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/resourceclaim"

	"github.com/mica-gpu/mica/pkg/scaleout/fit"
)

// claims looks up the claims of pods.
type claims struct {
	byName    map[types.NamespacedName]*resourceapi.ResourceClaim
	templates map[types.NamespacedName]*resourceapi.ResourceClaimTemplate
	// named has the claims that pods name themselves.
	named map[types.NamespacedName]*namedClaim
}

// namedClaim is a claim that pods name themselves, without a template.
type namedClaim struct {
	index  int
	name   types.NamespacedName
	object *resourceapi.ResourceClaim
	// pods counts the pending pods that name it.
	pods int
}

// allocated reports whether the claim is allocated in the API.
func (c *namedClaim) allocated() bool { return c.object.Status.Allocation != nil }

// isUser reports whether the claim is reserved for the pod already.
func (c *namedClaim) isUser(pod *corev1.Pod) bool {
	return resourceclaim.IsReservedForPod(pod, c.object, false)
}

// whyFull says why the pod cannot use the claim; empty: it can.
func (p *plan) whyFull(c *namedClaim, pod *corev1.Pod) string {
	if p.users(c) < resourceapi.ResourceClaimReservedForMaxSize || c.isUser(pod) {
		return ""
	}
	return fmt.Sprintf("claim %s has the %d pods that may share a claim: give the other pods another claim",
		c.name, resourceapi.ResourceClaimReservedForMaxSize)
}

func newClaims(s Snapshot) claims {
	c := claims{
		byName:    make(map[types.NamespacedName]*resourceapi.ResourceClaim, len(s.Claims)),
		templates: make(map[types.NamespacedName]*resourceapi.ResourceClaimTemplate, len(s.ClaimTemplates)),
		named:     map[types.NamespacedName]*namedClaim{},
	}
	for _, claim := range s.Claims {
		c.byName[types.NamespacedName{Namespace: claim.Namespace, Name: claim.Name}] = claim
	}
	for _, template := range s.ClaimTemplates {
		c.templates[types.NamespacedName{Namespace: template.Namespace, Name: template.Name}] = template
	}
	for _, pod := range s.Pending {
		if waits(pod) {
			for _, named := range c.namedBy(pod) {
				named.pods++
			}
		}
	}
	return c
}

// namedBy are the existing claims that a pod names itself.
func (c claims) namedBy(pod *corev1.Pod) []*namedClaim {
	var all []*namedClaim
	for _, podClaim := range pod.Spec.ResourceClaims {
		if podClaim.ResourceClaimName == nil {
			continue
		}
		name := types.NamespacedName{Namespace: pod.Namespace, Name: *podClaim.ResourceClaimName}
		claim := c.byName[name]
		if claim == nil {
			continue
		}
		if c.named[name] == nil {
			c.named[name] = &namedClaim{index: len(c.named), name: name, object: claim}
		}
		all = append(all, c.named[name])
	}
	return all
}

// of returns the claims of a pod, and those of them that it may share: with pending pods, or with more pods like it
// that are not pending. The error is a sentence for the pod's owner.
func (c claims) of(pod *corev1.Pod, more int) ([]fit.PodClaim, []*namedClaim, error) {
	var found []fit.PodClaim
	var shared []*namedClaim
	for i := range pod.Spec.ResourceClaims {
		podClaim := &pod.Spec.ResourceClaims[i]
		claim, err := c.claim(pod, podClaim)
		if err != nil {
			return nil, nil, err
		}
		if claim == nil {
			continue
		}
		entry := fit.PodClaim{Name: podClaim.Name, Claim: claim, Placed: claim.Status.Allocation != nil}
		// A claim that only one pod names counts as the pod's own, so that the pod is of one kind with others that ask
		// for the same.
		if named := c.named[objectName(claim)]; podClaim.ResourceClaimName != nil && (named.pods+more > 1 || named.allocated()) {
			entry.Shared = true
			shared = append(shared, named)
		}
		found = append(found, entry)
	}
	return found, shared, nil
}

// claim finds a claim, or makes it from its template; nil if the pod needs none.
func (c claims) claim(pod *corev1.Pod, podClaim *corev1.PodResourceClaim) (*resourceapi.ResourceClaim, error) {
	name, own, err := resourceclaim.Name(pod, podClaim)
	switch {
	case errors.Is(err, resourceclaim.ErrClaimNotFound):
		return c.fromTemplate(pod, podClaim)
	case err != nil:
		return nil, fmt.Errorf("claim %q of the pod cannot be read: %w", podClaim.Name, err)
	case name == nil:
		return nil, nil
	}
	claim := c.byName[types.NamespacedName{Namespace: pod.Namespace, Name: *name}]
	switch {
	case claim == nil && own:
		// The claim is newer than the snapshot, or its controller is about to create it again.
		return c.fromTemplate(pod, podClaim)
	case claim == nil:
		return nil, fmt.Errorf("the pod names claim %s/%s, which does not exist: create it, or name another in spec.resourceClaims", pod.Namespace, *name)
	case own && resourceclaim.IsForPod(pod, claim, true) != nil:
		return nil, fmt.Errorf("claim %s/%s was not made for this pod: delete the claim, so that it is made again", pod.Namespace, *name)
	case claim.DeletionTimestamp != nil:
		return nil, fmt.Errorf("claim %s/%s is being deleted: wait for its end and create it again", pod.Namespace, *name)
	}
	return claim, nil
}

// fromTemplate makes the claim that the template will create.
func (c claims) fromTemplate(pod *corev1.Pod, podClaim *corev1.PodResourceClaim) (*resourceapi.ResourceClaim, error) {
	template := c.templates[types.NamespacedName{Namespace: pod.Namespace, Name: *podClaim.ResourceClaimTemplateName}]
	if template == nil {
		return nil, fmt.Errorf("the pod names claim template %s/%s, which does not exist: create it, or name another in spec.resourceClaims",
			pod.Namespace, *podClaim.ResourceClaimTemplateName)
	}
	claim := &resourceapi.ResourceClaim{Spec: template.Spec.Spec}
	claim.Namespace = pod.Namespace
	claim.Name = pod.Name + "-" + podClaim.Name
	claim.UID = types.UID("imagined-" + string(pod.UID) + "-" + podClaim.Name)
	return claim, nil
}

func objectName(claim *resourceapi.ResourceClaim) types.NamespacedName {
	return types.NamespacedName{Namespace: claim.Namespace, Name: claim.Name}
}
