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

// Compactor keeps once in memory what many nodes publish alike: of 5,000 nodes of one type, the
// devices are those of one node, and not 5 GiB. It is safe for concurrent use.
type Compactor struct {
	devices  interned[resourceapi.Device]
	counters interned[resourceapi.CounterSet]
}

// NewCompactor knows no slice yet.
func NewCompactor() *Compactor {
	return &Compactor{
		devices:  interned[resourceapi.Device]{known: map[[sha256.Size]byte]weak.Pointer[resourceapi.Device]{}},
		counters: interned[resourceapi.CounterSet]{known: map[[sha256.Size]byte]weak.Pointer[resourceapi.CounterSet]{}},
	}
}

// Compact changes a slice that nobody else has seen yet, so that it shares devices and counters
// with slices like it. They are only to be read from then on, and the slice is never to be sent
// to the API server: attributes that no two nodes have alike were put aside, where OwnOf finds
// them. A slice that is compact stays as it is.
func (c *Compactor) Compact(slice *resourceapi.ResourceSlice) {
	if _, compact := slice.Annotations[annotationOwn]; !compact {
		putAside(slice)
	}
	slice.Spec.Devices = c.devices.one(slice.Spec.Devices)
	slice.Spec.SharedCounters = c.counters.one(slice.Spec.SharedCounters)
}

// interned has lists by their content, as long as anybody else has them.
type interned[T any] struct {
	lock  sync.Mutex
	known map[[sha256.Size]byte]weak.Pointer[T]
	// sweep is at how many entries those are looked for whose lists are gone.
	sweep int
}

// one is the list that stands for all of this content.
func (i *interned[T]) one(list []T) []T {
	if len(list) == 0 {
		return list
	}
	sum := sha256.New()
	for k := range list {
		wire, err := any(&list[k]).(interface{ Marshal() ([]byte, error) }).Marshal()
		if err != nil { // the generated code has none
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
	list = slices.Clone(list) // what was decoded has room to grow
	i.known[content] = weak.Make(&list[0])
	return list
}

// annotationOwn is on compact slices, in memory alone.
const annotationOwn = "mica.gpu/own-attributes"

// identities are the attributes that tell a GPU from all others in the world. Drivers publish
// them without a domain.
var identities = []resourceapi.QualifiedName{gpu.AttributeParentUUID, gpu.AttributeUUID}

// Identifies tells whether an attribute of that name, without domain, may differ between nodes
// that are alike in everything else.
func Identifies(name string) bool {
	return name == gpu.AttributeUUID || name == gpu.AttributeParentUUID
}

// Own has what a compact slice's identities are, by what is in their place: values differ there
// where the identities do, on the whole node. It is nil for slices that are as they were published.
type Own map[string]string

// OwnOf reads what was put aside of a slice.
func OwnOf(slice *resourceapi.ResourceSlice) Own {
	text, compact := slice.Annotations[annotationOwn]
	if !compact {
		return nil
	}
	var own Own
	if json.Unmarshal([]byte(text), &own) != nil {
		return nil // a driver has made it up: what is published counts
	}
	return own
}

// putAside replaces UUIDs of GPUs by their addresses, which GPUs of other nodes have as well.
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
				if _, taken := own[place]; taken { // a partition that exists has a UUID besides its GPU's
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
	if err != nil { // of strings there is none
		return
	}
	metav1.SetMetaDataAnnotation(&slice.ObjectMeta, annotationOwn, string(text))
}

// Attribute is the value that was published of an attribute.
func (o Own) Attribute(name resourceapi.QualifiedName, value resourceapi.DeviceAttribute) resourceapi.DeviceAttribute {
	if len(o) == 0 || value.StringValue == nil || !Identifies(string(name)) {
		return value
	}
	if own, aside := o[*value.StringValue]; aside {
		return resourceapi.DeviceAttribute{StringValue: &own}
	}
	return value
}

// Attributes are all that were published of a device: a copy, if one of them was put aside.
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
