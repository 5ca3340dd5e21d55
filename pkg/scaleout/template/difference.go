package template

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/deviceattribute"
	"k8s.io/utils/ptr"

	"github.com/mica-gpu/mica/pkg/devices"
	"github.com/mica-gpu/mica/pkg/excerpt"
	"github.com/mica-gpu/mica/pkg/gpu"
)

// Difference says in a sentence how a complete node first contradicts its template, by the driver's devices or by less
// allocatable resources; empty: it does not. UUIDs, names, versions, addresses, taints and withdrawn devices contradict
// nothing, and neither does what the template does not have.
func Difference(driver string, t *Template, node *corev1.Node, all []*resourceapi.ResourceSlice) string {
	sentence := offersDiffer(driver, t, node, all)
	if sentence == "" {
		sentence = lessAllocatable(t.Node, node)
	}
	if sentence == "" {
		return ""
	}
	return fmt.Sprintf("node %s %s", node.Name, sentence)
}

func offersDiffer(driver string, t *Template, node *corev1.Node, all []*resourceapi.ResourceSlice) string {
	if alike(ofDriver(devices.OfNode(t.Node.Name, t.Slices), driver), ofDriver(devices.OfNode(node.Name, all), driver)) {
		return ""
	}
	promised, offered := offerOf(driver, t.Node, t.Slices), offerOf(driver, node, all)
	if sentence := countsDiffer(promised, offered); sentence != "" {
		return sentence
	}
	return devicesDiffer(promised, offered)
}

// model is the name of devices that are alike.
type model struct{ form, product, profile string }

func (k model) String() string {
	return strings.Join(slices.DeleteFunc([]string{k.form, k.product, k.profile}, func(s string) bool { return s == "" }), " ")
}

// compare orders models by name, so that whole GPUs ("gpu") come first.
func (k model) compare(other model) int {
	return cmp.Or(cmp.Compare(k.form, other.form), cmp.Compare(k.product, other.product), cmp.Compare(k.profile, other.profile))
}

// offer is what the driver of a node offers to new claims.
type offer struct {
	devices  map[model][]resourceapi.Device
	counters []string
}

func offerOf(driver string, node *corev1.Node, all []*resourceapi.ResourceSlice) offer {
	o := offer{devices: map[model][]resourceapi.Device{}}
	for _, p := range ofDriver(devices.OfNode(node.Name, all), driver) {
		for _, s := range p.Slices {
			for _, d := range s.Spec.Devices {
				if isWithdrawn(d) {
					continue
				}
				k := modelOf(d)
				o.devices[k] = append(o.devices[k], d)
			}
			for _, set := range s.Spec.SharedCounters {
				o.counters = append(o.counters, counterText(set.Counters))
			}
		}
	}
	slices.Sort(o.counters)
	return o
}

func modelOf(d resourceapi.Device) model {
	text := func(name resourceapi.QualifiedName) string { return ptr.Deref(d.Attributes[name].StringValue, "") }
	return model{text(gpu.AttributeType), text(gpu.AttributeProductName), text(gpu.AttributeProfile)}
}

func (o offer) models() []model {
	return slices.SortedFunc(maps.Keys(o.devices), model.compare)
}

func countsDiffer(promised, offered offer) string {
	for _, k := range promised.models() {
		if has, had := len(offered.devices[k]), len(promised.devices[k]); has != had {
			return fmt.Sprintf("offers %s %s, and %d were expected%s", excerpt.Count(has, "device"), k, had, instead(promised, offered, k.form))
		}
	}
	for _, k := range offered.models() {
		if len(promised.devices[k]) == 0 {
			return fmt.Sprintf("offers %s %s, and none were expected", excerpt.Count(len(offered.devices[k]), "device"), k)
		}
	}
	return ""
}

// instead mentions the first offered devices of a form that were not promised.
func instead(promised, offered offer, form string) string {
	for _, k := range offered.models() {
		if k.form == form && len(promised.devices[k]) == 0 {
			return fmt.Sprintf("; it offers %s %s", excerpt.Count(len(offered.devices[k]), "device"), k)
		}
	}
	return ""
}

func devicesDiffer(promised, offered offer) string {
	for _, k := range promised.models() {
		had, has := promised.devices[k], offered.devices[k]
		for _, p := range properties(had) {
			if expected, found := p.values(had), p.values(has); !slices.Equal(expected, found) {
				return fmt.Sprintf("offers devices %s whose %s is %s, and %s was expected", k, p.name, summary(found), summary(expected))
			}
		}
	}
	if !slices.Equal(promised.counters, offered.counters) {
		return fmt.Sprintf("has GPUs with %s for their devices to share, and %s was expected", summary(offered.counters), summary(promised.counters))
	}
	return ""
}

// property is a property of devices, with the value to compare.
type property struct {
	name  string
	value func(resourceapi.Device) string
	// grouped reports whether only the numbers of devices with equal values count, not the values.
	grouped bool
}

// values are those of all devices, in order.
func (p property) values(devices []resourceapi.Device) []string {
	values := make([]string, len(devices))
	size := map[string]int{}
	for i, d := range devices {
		values[i] = p.value(d)
		size[values[i]]++
	}
	if p.grouped {
		for i, value := range values {
			if value != "" {
				values[i] = "shared by " + strconv.Itoa(size[value])
			}
		}
	}
	slices.Sort(values)
	return values
}

// unlike are attributes that may differ between nodes of a group.
var unlike = []resourceapi.QualifiedName{
	gpu.AttributeUUID, gpu.AttributeParentUUID, gpu.AttributeIndex, gpu.AttributeMinor,
	gpu.AttributeDriverVersion, gpu.AttributeCUDAVersion, gpu.AttributeAddressingMode,
	deviceattribute.StandardDeviceAttributePCIBusID,
}

// grouping are attributes whose values number groups of GPUs.
var grouping = []resourceapi.QualifiedName{deviceattribute.StandardDeviceAttributePCIeRoot, gpu.AttributeNVLinkGroup}

// properties are those of the template's devices: others are not compared.
func properties(devices []resourceapi.Device) []property {
	names := map[resourceapi.QualifiedName]bool{}
	capacities := map[resourceapi.QualifiedName]bool{}
	for _, d := range devices {
		for name := range d.Attributes {
			names[name] = names[name] || !slices.Contains(unlike, name)
		}
		for name := range d.Capacity {
			capacities[name] = true
		}
	}
	var found []property
	for name, compared := range names {
		if compared {
			found = append(found, property{name: string(name), grouped: slices.Contains(grouping, name), value: func(d resourceapi.Device) string {
				return attributeText(d.Attributes[name])
			}})
		}
	}
	for name := range capacities {
		found = append(found, property{name: "capacity " + string(name), value: func(d resourceapi.Device) string {
			return capacityText(d.Capacity, name)
		}})
	}
	found = append(found,
		property{name: "number of claims", value: claimsText},
		property{name: "part of its GPU", value: consumptionText},
	)
	slices.SortFunc(found, func(a, b property) int { return cmp.Compare(a.name, b.name) })
	return found
}

// summary lists sorted values, each once, up to a limit.
func summary(values []string) string {
	const shown = 4
	values = slices.Compact(slices.Clone(values))
	more := ""
	if len(values) > shown {
		values, more = values[:shown], fmt.Sprintf(" and %d others", len(values)-shown)
	}
	for i, value := range values {
		values[i] = cmp.Or(value, "not known")
	}
	return cmp.Or(strings.Join(values, ", "), "none") + more
}
