package workload

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// podClaim is a claim in a pod's spec.
type podClaim struct {
	// id is the claim's name, or the pod's and the entry's if there is no claim yet.
	id string
	// claim is nil if it was not created yet.
	claim *resourceapi.ResourceClaim
	// classes are the DeviceClasses that the claim or its template requests.
	classes []string
}

// waits reports whether the claim is not allocated. A claim that is being deleted never will be.
func (c podClaim) waits() bool {
	return c.claim == nil || c.claim.Status.Allocation == nil && c.claim.DeletionTimestamp == nil
}

// claims lists the claims in a pod's spec. A claim made from a template counts before it exists; a
// claim that a user creates does not.
func (x *Index) claims(ctx context.Context, pod *corev1.Pod) ([]podClaim, error) {
	var claims []podClaim
	for i := range pod.Spec.ResourceClaims {
		named := &pod.Spec.ResourceClaims[i]
		name, generated, err := resourceclaim.Name(pod, named)
		if err == nil && name == nil {
			continue // the pod needs none
		}
		var claim *resourceapi.ResourceClaim
		if err == nil {
			if claim, err = x.claim(ctx, pod, *name, generated); err != nil {
				return nil, err
			}
		}
		switch {
		case claim != nil:
			claims = append(claims, podClaim{id: claim.Name, claim: claim, classes: classesOf(&claim.Spec)})
		case named.ResourceClaimTemplateName != nil && pod.Spec.NodeName == "":
			// Also if the pod's status names a claim that the cache lacks.
			classes, err := x.templateClasses(ctx, pod.Namespace, *named.ResourceClaimTemplateName)
			if err != nil {
				return nil, err
			}
			claims = append(claims, podClaim{id: pod.Name + "/" + named.Name, classes: classes})
		}
	}
	return claims, nil
}

// extendedClaim returns the claim that the scheduler made for the pod's extended resources, or nil.
func (x *Index) extendedClaim(ctx context.Context, pod *corev1.Pod) (*resourceapi.ResourceClaim, error) {
	status := pod.Status.ExtendedResourceClaimStatus
	if status == nil {
		return nil, nil
	}
	return x.claim(ctx, pod, status.ResourceClaimName, true)
}

// claim returns nil if it does not exist or was generated for another pod.
func (x *Index) claim(ctx context.Context, pod *corev1.Pod, name string, generated bool) (*resourceapi.ResourceClaim, error) {
	claim := &resourceapi.ResourceClaim{}
	found, err := x.get(ctx, pod.Namespace, name, claim)
	if err != nil || !found {
		return nil, err
	}
	if generated && resourceclaim.IsForPod(pod, claim, true) != nil {
		return nil, nil
	}
	return claim, nil
}

func (x *Index) templateClasses(ctx context.Context, namespace, name string) ([]string, error) {
	var template resourceapi.ResourceClaimTemplate
	found, err := x.get(ctx, namespace, name, &template)
	if err != nil || !found {
		return nil, err
	}
	return classesOf(&template.Spec.Spec), nil
}

// get reads an object of the cache, without a copy.
func (x *Index) get(ctx context.Context, namespace, name string, into client.Object) (found bool, err error) {
	err = x.reader.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, into, client.UnsafeDisableDeepCopy)
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("read %T %s/%s: %w", into, namespace, name, err)
	}
	return true, nil
}

// classesOf lists the DeviceClasses of all requests and alternatives, each once.
func classesOf(spec *resourceapi.ResourceClaimSpec) []string {
	var classes []string
	add := func(class string) {
		if !slices.Contains(classes, class) {
			classes = append(classes, class)
		}
	}
	for i := range spec.Devices.Requests {
		request := &spec.Devices.Requests[i]
		if request.Exactly != nil {
			add(request.Exactly.DeviceClassName)
		}
		for j := range request.FirstAvailable {
			add(request.FirstAvailable[j].DeviceClassName)
		}
	}
	return classes
}

// extendedClasses lists the DeviceClasses for the extended resources of a pod without a node.
func (x *Index) extendedClasses(ctx context.Context, pod *corev1.Pod) ([]string, error) {
	var classes []string
	for _, resource := range extendedResources(pod) {
		class, err := x.classFor(ctx, resource)
		if err != nil {
			return nil, err
		}
		if class != "" && !slices.Contains(classes, class) {
			classes = append(classes, class)
		}
	}
	return classes, nil
}
