package fit

import (
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// classes are the device classes by name, and those that stand for an extended resource.
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

// preferred tells which of two classes for one resource the scheduler takes: the newer one, so
// that clusters can move from one to the other.
func preferred(class, other *resourceapi.DeviceClass) bool {
	if !class.CreationTimestamp.Time.Equal(other.CreationTimestamp.Time) {
		return class.CreationTimestamp.After(other.CreationTimestamp.Time)
	}
	return class.Name < other.Name
}

// List is the allocator's.
func (c classes) List() ([]*resourceapi.DeviceClass, error) {
	all := make([]*resourceapi.DeviceClass, 0, len(c.byName))
	for _, class := range c.byName {
		all = append(all, class)
	}
	return all, nil
}

// Get is the allocator's.
func (c classes) Get(name string) (*resourceapi.DeviceClass, error) {
	class, ok := c.byName[name]
	if !ok {
		return nil, fmt.Errorf("device class %q does not exist", name)
	}
	return class, nil
}

// names are those that exist, for who mistyped one.
func (c classes) names() string {
	if len(c.byName) == 0 {
		return "there are no device classes"
	}
	return "there are " + strings.Join(sortedKeys(c.byName), ", ")
}

// demand is claims that are allocated together. It does not change.
type demand struct {
	claims []*resourceapi.ResourceClaim
	// names are what people call them.
	names []string
}

// named lists the claims.
func (d *demand) named() string {
	switch len(d.names) {
	case 1:
		return d.names[0]
	default:
		last := len(d.names) - 1
		return strings.Join(d.names[:last], ", ") + " and " + d.names[last]
	}
}

// readClaim checks a claim's requests, learns what they ask for, and gives the claim with what
// the API server would fill in.
func (c *Cluster) readClaim(claim *resourceapi.ResourceClaim) (*resourceapi.ResourceClaim, error) {
	claim = defaulted(claim)
	for i := range claim.Spec.Devices.Requests {
		request := &claim.Spec.Devices.Requests[i]
		if request.Exactly == nil && len(request.FirstAvailable) == 0 {
			return nil, fmt.Errorf("request %q asks for nothing that is known here: it has neither exactly nor firstAvailable", request.Name)
		}
		if request.Exactly != nil {
			if err := c.readRequest(request.Exactly.DeviceClassName, request.Exactly.Selectors); err != nil {
				return nil, fmt.Errorf("request %q: %w", request.Name, err)
			}
		}
		for j := range request.FirstAvailable {
			sub := &request.FirstAvailable[j]
			if err := c.readRequest(sub.DeviceClassName, sub.Selectors); err != nil {
				return nil, fmt.Errorf("request %q: %w", request.Name+"/"+sub.Name, err)
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

// defaulted is the claim as the API server would store it: what a claim template or a headroom
// makes has not been there yet.
func defaulted(claim *resourceapi.ResourceClaim) *resourceapi.ResourceClaim {
	complete := true
	for i := range claim.Spec.Devices.Requests {
		request := &claim.Spec.Devices.Requests[i]
		if request.Exactly != nil {
			complete = complete && counted(request.Exactly.AllocationMode, request.Exactly.Count)
		}
		for j := range request.FirstAvailable {
			complete = complete && counted(request.FirstAvailable[j].AllocationMode, request.FirstAvailable[j].Count)
		}
	}
	if complete {
		return claim
	}
	claim = claim.DeepCopy()
	for i := range claim.Spec.Devices.Requests {
		request := &claim.Spec.Devices.Requests[i]
		if request.Exactly != nil {
			request.Exactly.AllocationMode, request.Exactly.Count = count(request.Exactly.AllocationMode, request.Exactly.Count)
		}
		for j := range request.FirstAvailable {
			sub := &request.FirstAvailable[j]
			sub.AllocationMode, sub.Count = count(sub.AllocationMode, sub.Count)
		}
	}
	return claim
}

func counted(mode resourceapi.DeviceAllocationMode, number int64) bool {
	return mode != "" && (mode != resourceapi.DeviceAllocationModeExactCount || number != 0)
}

func count(mode resourceapi.DeviceAllocationMode, number int64) (resourceapi.DeviceAllocationMode, int64) {
	if mode == "" {
		mode = resourceapi.DeviceAllocationModeExactCount
	}
	if mode == resourceapi.DeviceAllocationModeExactCount && number == 0 {
		number = 1
	}
	return mode, number
}

// usable tells why a claim that exists cannot be used by another pod.
func usable(claim *resourceapi.ResourceClaim) error {
	if claim.DeletionTimestamp != nil {
		return errors.New("is being deleted")
	}
	return nil
}

// imagined is a claim that the scheduler would make.
func imagined(pod *corev1.Pod, requests []resourceapi.DeviceRequest) *resourceapi.ResourceClaim {
	return &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name + "-extended-resources"},
		Spec:       resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: requests}},
	}
}
