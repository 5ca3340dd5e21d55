package migrate

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	yamlnode "go.yaml.in/yaml/v3"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// claimName is what a pod calls its claim of GPUs.
const claimName = "gpu"

// device is the request of a claim.
func (r request) device() resourceapi.DeviceRequest {
	exactly := &resourceapi.ExactDeviceRequest{DeviceClassName: r.ask.class}
	if r.ask.devices > 1 {
		exactly.AllocationMode, exactly.Count = resourceapi.DeviceAllocationModeExactCount, r.ask.devices
	}
	if r.ask.profile != "" {
		exactly.Selectors = []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{
			Expression: fmt.Sprintf("device.attributes['%s'].profile == '%s'", classWhole, r.ask.profile),
		}}}
	}
	if r.ask.shares > 0 {
		exactly.Capacity = &resourceapi.CapacityRequirements{Requests: map[resourceapi.QualifiedName]resource.Quantity{
			"shares": *resource.NewQuantity(r.ask.shares, resource.DecimalSI),
		}}
	}
	return resourceapi.DeviceRequest{Name: r.name, Exactly: exactly}
}

// rewrite puts the claim in the place of the container's limits.
func (c gpuContainer) rewrite(pod *yamlnode.Node, claim string, several bool) {
	node := c.node(pod)
	resources := get(node, "resources")
	for name := range c.limits {
		for _, of := range []string{"limits", "requests"} {
			amounts := get(resources, of)
			remove(amounts, name)
			if amounts != nil && len(amounts.Content) == 0 {
				remove(resources, of)
			}
		}
	}
	if !several {
		add(resources, "claims", corev1.ResourceClaim{Name: claim})
		return
	}
	for _, request := range c.from {
		add(resources, "claims", corev1.ResourceClaim{Name: claim, Request: request})
	}
}

// node is the container's.
func (c gpuContainer) node(pod *yamlnode.Node) *yamlnode.Node {
	for _, node := range get(pod, c.list).Content {
		if name := get(node, "name"); name != nil && name.Value == c.name {
			return node
		}
	}
	return nil // names of containers are unique, and decoded from the same text
}

func (c gpuContainer) field() string {
	return c.list + "[" + c.name + "]"
}

// was is the container's limits in words.
func (c gpuContainer) was() string {
	var limits []string
	for _, name := range slices.Sorted(maps.Keys(c.limits)) {
		limits = append(limits, fmt.Sprintf("%s: %d", name, c.limits[name]))
	}
	return strings.Join(limits, ", ")
}

func (c gpuContainer) is() string {
	var asks []string
	for _, a := range c.asks {
		asks = append(asks, a.String())
	}
	return strings.Join(asks, ", ")
}

// freeClaim is a name that no claim of the pod has.
func freeClaim(pod corev1.PodSpec) string {
	name := claimName
	for i := 2; slices.ContainsFunc(pod.ResourceClaims, func(c corev1.PodResourceClaim) bool { return c.Name == name }); i++ {
		name = fmt.Sprintf("%s-%d", claimName, i)
	}
	return name
}

// free is a name that no object of the sources has, nor one that was made.
func (m *migration) free(kind, namespace, name string) string {
	free := name
	for i := 2; m.has(kind, namespace, free); i++ {
		free = fmt.Sprintf("%s-%d", name, i)
	}
	m.all = append(m.all, document{kind: kind, namespace: namespace, object: free})
	return free
}

// label makes of a text what names may have, at most so long.
func label(text string, most int) string {
	text = strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || r == '-' {
			return r
		}
		return '-'
	}, strings.ToLower(text))
	return strings.Trim(text[:min(len(text), most)], "-")
}
