package fit

import (
	"cmp"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
)

// classes are the device classes, by name and by the extended resource that they provide.
type classes struct {
	byName     map[string]*resourceapi.DeviceClass
	byResource map[corev1.ResourceName]*resourceapi.DeviceClass
}

func newClasses(all []*resourceapi.DeviceClass) classes {
	c := classes{byName: map[string]*resourceapi.DeviceClass{}, byResource: map[corev1.ResourceName]*resourceapi.DeviceClass{}}
	for _, class := range all {
		c.byName[class.Name] = class
		c.byResource[corev1.ResourceName(resourceapi.ResourceDeviceClassPrefix+class.Name)] = class
		if class.Spec.ExtendedResourceName != nil {
			name := corev1.ResourceName(*class.Spec.ExtendedResourceName)
			if known := c.byResource[name]; known == nil || preferred(class, known) {
				c.byResource[name] = class
			}
		}
	}
	return c
}

// preferred reports whether the scheduler prefers a class to another one for the same resource: it takes the newer, so
// that clusters can migrate.
func preferred(class, other *resourceapi.DeviceClass) bool {
	if !class.CreationTimestamp.Time.Equal(other.CreationTimestamp.Time) {
		return class.CreationTimestamp.After(other.CreationTimestamp.Time)
	}
	return class.Name < other.Name
}

// List is for the allocator.
func (c classes) List() ([]*resourceapi.DeviceClass, error) {
	return slices.Collect(maps.Values(c.byName)), nil
}

// Get is for the allocator.
func (c classes) Get(name string) (*resourceapi.DeviceClass, error) {
	class, ok := c.byName[name]
	if !ok {
		return nil, fmt.Errorf("device class %q does not exist", name)
	}
	return class, nil
}

// names lists the existing classes, for a user who mistyped one.
func (c classes) names() string {
	if len(c.byName) == 0 {
		return "there are no device classes"
	}
	return "there are " + strings.Join(sortedKeys(c.byName), ", ")
}

// demand is claims that are allocated together. It is immutable.
type demand struct {
	claims []*resourceapi.ResourceClaim
	// names are what the pod's owner calls them.
	names []string
}

// named lists the names in a sentence.
func (d *demand) named() string {
	last := len(d.names) - 1
	if last == 0 {
		return d.names[0]
	}
	return strings.Join(d.names[:last], ", ") + " and " + d.names[last]
}

// readClaim checks a claim's requests, adds what they ask for to the vocabulary, and returns the claim with the API
// server's defaults.
func (c *Cluster) readClaim(claim *resourceapi.ResourceClaim) (*resourceapi.ResourceClaim, error) {
	claim = defaulted(claim)
	for _, request := range claim.Spec.Devices.Requests {
		alternatives := Alternatives(request)
		if len(alternatives) == 0 {
			return nil, fmt.Errorf("request %q asks for nothing that is known here: it has neither exactly nor firstAvailable", request.Name)
		}
		for _, r := range alternatives {
			if err := c.readRequest(r.DeviceClassName, r.Selectors); err != nil {
				return nil, fmt.Errorf("request %q: %w", r.Name, err)
			}
		}
	}
	for i, constraint := range claim.Spec.Devices.Constraints {
		attribute := constraint.MatchAttribute
		if attribute == nil {
			attribute = constraint.DistinctAttribute
		}
		if attribute == nil {
			return nil, fmt.Errorf("constraint %d is of a type that is not known here: it has neither matchAttribute nor distinctAttribute", i)
		}
		c.words.learn(c.words.compared, attributeID(resourceapi.QualifiedName(*attribute)))
	}
	return claim, nil
}

func (c *Cluster) readRequest(className string, selectors []resourceapi.DeviceSelector) error {
	class := c.classes.byName[className]
	if class == nil {
		return fmt.Errorf("device class %q does not exist: %s", className, c.classes.names())
	}
	if err := c.readSelectors(class.Spec.Selectors); err != nil {
		return fmt.Errorf("device class %q: %w", className, err)
	}
	return c.readSelectors(selectors)
}

func (c *Cluster) readSelectors(selectors []resourceapi.DeviceSelector) error {
	for i, selector := range selectors {
		if selector.CEL == nil {
			return fmt.Errorf("selector %d is of a type that is not known here: it has no CEL expression", i)
		}
		r := c.selectors.Get(selector.CEL.Expression)
		if r.Err != nil {
			return fmt.Errorf("the expression %q %w", selector.CEL.Expression, r.Err)
		}
		c.words.reading(r.Names, r.Everything)
	}
	return nil
}

// defaulted is the claim with the API server's defaults, which claims from a template or a headroom lack.
func defaulted(claim *resourceapi.ResourceClaim) *resourceapi.ResourceClaim {
	complete := true
	for mode, count := range counts(claim) {
		complete = complete && *mode != "" && (*mode != resourceapi.DeviceAllocationModeExactCount || *count != 0)
	}
	if complete {
		return claim
	}
	claim = claim.DeepCopy()
	for mode, count := range counts(claim) {
		*mode = cmp.Or(*mode, resourceapi.DeviceAllocationModeExactCount)
		if *mode == resourceapi.DeviceAllocationModeExactCount {
			*count = cmp.Or(*count, 1)
		}
	}
	return claim
}

// counts yields the mode and the count of each request and alternative of a claim.
func counts(claim *resourceapi.ResourceClaim) iter.Seq2[*resourceapi.DeviceAllocationMode, *int64] {
	return func(yield func(*resourceapi.DeviceAllocationMode, *int64) bool) {
		for i := range claim.Spec.Devices.Requests {
			request := &claim.Spec.Devices.Requests[i]
			if request.Exactly != nil && !yield(&request.Exactly.AllocationMode, &request.Exactly.Count) {
				return
			}
			for j := range request.FirstAvailable {
				if sub := &request.FirstAvailable[j]; !yield(&sub.AllocationMode, &sub.Count) {
					return
				}
			}
		}
	}
}

// Alternatives returns the ways to satisfy a request, best first. Those of firstAvailable are named
// request/alternative.
func Alternatives(r resourceapi.DeviceRequest) []resourceapi.DeviceSubRequest {
	if e := r.Exactly; e != nil {
		return []resourceapi.DeviceSubRequest{{
			Name: r.Name, DeviceClassName: e.DeviceClassName, Selectors: e.Selectors,
			AllocationMode: e.AllocationMode, Count: e.Count, Tolerations: e.Tolerations, Capacity: e.Capacity,
		}}
	}
	found := slices.Clone(r.FirstAvailable)
	for i := range found {
		found[i].Name = r.Name + "/" + found[i].Name
	}
	return found
}
