package devices

import (
	"crypto/sha256"
	"encoding/json"
	"maps"
	"slices"
	"sync"
	"unsafe"
	"weak"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/dynamic-resource-allocation/deviceattribute"

	"github.com/mica-gpu/mica/pkg/gpu"
)

// Compactor shares equal devices among slices in memory: 5,000 nodes of one type take as much as one
// node, not 5 GiB. It is safe for concurrent use.
type Compactor struct {
	devices  interned[resourceapi.Device]
	counters interned[resourceapi.CounterSet]
}

// NewCompactor returns an empty Compactor.
func NewCompactor() *Compactor {
	return &Compactor{
		devices:  interned[resourceapi.Device]{known: map[[sha256.Size]byte]weak.Pointer[resourceapi.Device]{}},
		counters: interned[resourceapi.CounterSet]{known: map[[sha256.Size]byte]weak.Pointer[resourceapi.CounterSet]{}},
	}
}

// Compact makes a slice share devices and counters with equal slices. It also moves the UUIDs of GPUs
// aside, where OwnOf finds them. The caller owns the slice until then. Afterwards it is read-only, and
// must not be sent to the API server. A compact slice stays as it is.
func (c *Compactor) Compact(slice *resourceapi.ResourceSlice) {
	if _, compact := slice.Annotations[annotationOwn]; !compact {
		putAside(slice)
	}
	slice.Spec.Devices = c.devices.one(slice.Spec.Devices)
	slice.Spec.SharedCounters = c.counters.one(slice.Spec.SharedCounters)
}

// interned finds lists by their content until the garbage collector frees them.
type interned[T any] struct {
	lock  sync.Mutex
	known map[[sha256.Size]byte]weak.Pointer[T]
	// sweep is the number of entries at which entries of freed lists are deleted.
	sweep int
}

// one returns the list that represents this content.
func (i *interned[T]) one(list []T) []T {
	if len(list) == 0 {
		return list
	}
	sum := sha256.New()
	for k := range list {
		wire, err := any(&list[k]).(interface{ Marshal() ([]byte, error) }).Marshal()
		if err != nil { // the generated code returns none
			return list
		}
		sum.Write(wire)
		sum.Write([]byte{0, byte(len(wire)), byte(len(wire) >> 8), byte(len(wire) >> 16)})
	}
	content := [sha256.Size]byte(sum.Sum(nil))
	i.lock.Lock()
	defer i.lock.Unlock()
	if first := i.known[content].Value(); first != nil {
		// A pointer to the first element keeps the list, and equal content has equal length.
		return unsafe.Slice(first, len(list)) //nolint:gosec // within the list that the pointer keeps
	}
	if len(i.known) >= i.sweep {
		maps.DeleteFunc(i.known, func(_ [sha256.Size]byte, p weak.Pointer[T]) bool { return p.Value() == nil })
		i.sweep = 2*len(i.known) + 100
	}
	list = slices.Clone(list) // decoded lists have spare capacity
	i.known[content] = weak.Make(&list[0])
	return list
}

// annotationOwn marks compact slices. It exists in memory only.
const annotationOwn = "mica.gpu/own-attributes"

// identities are the attributes that are unique to a GPU. Drivers publish them without a domain.
var identities = []resourceapi.QualifiedName{gpu.AttributeParentUUID, gpu.AttributeUUID}

// Own maps the placeholders in a compact slice to the identities that were published. It is nil for
// slices that are not compact.
type Own map[string]string

// OwnOf returns the identities of a slice.
func OwnOf(slice *resourceapi.ResourceSlice) Own {
	text, compact := slice.Annotations[annotationOwn]
	if !compact {
		return nil
	}
	var own Own
	if json.Unmarshal([]byte(text), &own) != nil {
		return nil // a driver published the annotation
	}
	return own
}

// putAside replaces UUIDs of GPUs by PCI addresses, which GPUs of other nodes have as well.
func putAside(slice *resourceapi.ResourceSlice) {
	if slice.Spec.NodeName == nil {
		return
	}
	own, places := Own{}, map[string]string{}
	for i := range slice.Spec.Devices {
		device := &slice.Spec.Devices[i]
		for _, name := range identities {
			value := device.Attributes[name].StringValue
			address := device.Attributes[deviceattribute.StandardDeviceAttributePCIBusID].StringValue
			if value == nil || address == nil {
				continue
			}
			place, known := places[*value]
			if !known {
				place = *address
				if _, taken := own[place]; taken { // an existing partition has a UUID of its own
					place += " " + device.Name
				}
				own[place], places[*value] = *value, place
			}
			device.Attributes[name] = resourceapi.DeviceAttribute{StringValue: &place}
		}
	}
	if len(own) == 0 {
		return
	}
	text, err := json.Marshal(own)
	if err != nil { // strings never fail
		return
	}
	metav1.SetMetaDataAnnotation(&slice.ObjectMeta, annotationOwn, string(text))
}

// Attribute returns the published value of an attribute.
func (o Own) Attribute(name resourceapi.QualifiedName, value resourceapi.DeviceAttribute) resourceapi.DeviceAttribute {
	if len(o) == 0 || value.StringValue == nil || !slices.Contains(identities, name) {
		return value
	}
	if own, aside := o[*value.StringValue]; aside {
		return resourceapi.DeviceAttribute{StringValue: &own}
	}
	return value
}

// Attributes returns the published attributes of a device: a copy if any was put aside.
func (o Own) Attributes(of map[resourceapi.QualifiedName]resourceapi.DeviceAttribute) map[resourceapi.QualifiedName]resourceapi.DeviceAttribute {
	if len(o) == 0 {
		return of
	}
	published := maps.Clone(of)
	for _, name := range identities {
		if value, has := of[name]; has {
			published[name] = o.Attribute(name, value)
		}
	}
	return published
}
