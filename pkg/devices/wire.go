package devices

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"

	"google.golang.org/protobuf/encoding/protowire"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Decoder reads slices as an API server sends them, by protobuf, and decodes only once what many nodes
// publish alike: the 170 kB that a node with eight H100 publishes differ from the next node's by
// UUIDs. It is safe for concurrent use, and holds what it has decoded as long as it lives.
type Decoder struct {
	compactor *Compactor
	lock      sync.Mutex
	known     map[[sha256.Size]byte]*content
	// readings are used again: each has a copy of a slice.
	readings sync.Pool
}

// content is what slices have alike.
type content struct {
	devices  []resourceapi.Device
	counters []resourceapi.CounterSet
	// places stand in the devices for identities, in the order in which these come first.
	places []string
}

// NewDecoder knows no slice yet.
func NewDecoder() *Decoder {
	return &Decoder{compactor: NewCompactor(), known: map[[sha256.Size]byte]*content{}, readings: sync.Pool{New: func() any { return &reading{} }}}
}

// magic begins what an API server sends as protobuf (k8s.io/apimachinery/pkg/runtime/serializer/protobuf).
var magic = []byte("k8s\x00")

// Fields by their numbers in generated.proto of k8s.io/apimachinery/pkg/runtime and
// k8s.io/api/resource/v1, which never change.
const (
	unknownRaw       protowire.Number = 2
	listMetadata     protowire.Number = 1
	listItems        protowire.Number = 2
	sliceSpec        protowire.Number = 2
	specDevices      protowire.Number = 6
	specCounters     protowire.Number = 8
	deviceAttributes protowire.Number = 2
	entryKey         protowire.Number = 1
	entryValue       protowire.Number = 2
	attributeString  protowire.Number = 4
)

var errDamaged = errors.New("what the API server has sent is no list of ResourceSlices: its protobuf is damaged")

// List reads a page. Its slices are compact, as a Compactor makes them. It is an error where the answer
// is none by protobuf.
func (d *Decoder) List(wire []byte) (*resourceapi.ResourceSliceList, error) {
	body, is := bytes.CutPrefix(wire, magic)
	if !is {
		return nil, fmt.Errorf("%w: it does not begin as one", errDamaged)
	}
	list := &resourceapi.ResourceSliceList{}
	var items [][]byte
	err := fields(body, func(number protowire.Number, raw, _ []byte) error {
		if number != unknownRaw {
			return nil
		}
		return fields(raw, func(number protowire.Number, value, _ []byte) error {
			switch number {
			case listMetadata:
				return list.ListMeta.Unmarshal(value)
			case listItems:
				items = append(items, value)
			}
			return nil
		})
	})
	if err != nil {
		return nil, err
	}
	list.Items, err = d.slices(items)
	return list, err
}

// slices decodes with all processors.
func (d *Decoder) slices(items [][]byte) ([]resourceapi.ResourceSlice, error) {
	decoded, failures := make([]resourceapi.ResourceSlice, len(items)), make([]error, len(items))
	var next atomic.Int64
	var decoders sync.WaitGroup
	for range min(runtime.GOMAXPROCS(0), len(items)) {
		decoders.Go(func() {
			for i := next.Add(1) - 1; int(i) < len(items); i = next.Add(1) - 1 {
				decoded[i], failures[i] = d.slice(items[i])
			}
		})
	}
	decoders.Wait()
	for _, err := range failures {
		if err != nil {
			return nil, err
		}
	}
	return decoded, nil
}

// fields calls visit for each field of a message with its content, empty for one that is no text,
// bytes or message, and with all of its bytes.
func fields(message []byte, visit func(number protowire.Number, value, field []byte) error) error {
	for len(message) > 0 {
		number, kind, n := protowire.ConsumeTag(message)
		if n < 0 {
			return errDamaged
		}
		length := protowire.ConsumeFieldValue(number, kind, message[n:])
		if length < 0 {
			return errDamaged
		}
		var value []byte
		if kind == protowire.BytesType {
			value, _ = protowire.ConsumeBytes(message[n:])
		}
		if err := visit(number, value, message[:n+length]); err != nil {
			return err
		}
		message = message[n+length:]
	}
	return nil
}

func (d *Decoder) slice(wire []byte) (resourceapi.ResourceSlice, error) {
	read := d.readings.Get().(*reading)
	defer d.readings.Put(read)
	read.rest, read.alike, read.identities = read.rest[:0], read.alike[:0], nil
	if err := read.slice(wire); err != nil {
		return resourceapi.ResourceSlice{}, err
	}
	sum := read.sum()
	d.lock.Lock()
	known := d.known[sum]
	d.lock.Unlock()
	if known == nil {
		return d.first(wire, sum, read.identities)
	}
	var slice resourceapi.ResourceSlice
	if err := slice.Unmarshal(read.rest); err != nil {
		return slice, fmt.Errorf("decode a ResourceSlice: %w", err)
	}
	slice.Spec.Devices, slice.Spec.SharedCounters = known.devices, known.counters
	setOwn(&slice, known.places, read.identities)
	return slice, nil
}

// first decodes a slice unlike those before, and remembers what it has.
func (d *Decoder) first(wire []byte, sum [sha256.Size]byte, found []string) (resourceapi.ResourceSlice, error) {
	var slice resourceapi.ResourceSlice
	if err := slice.Unmarshal(wire); err != nil {
		return slice, fmt.Errorf("decode a ResourceSlice: %w", err)
	}
	d.compactor.Compact(&slice)
	places := map[string]string{}
	for place, identity := range OwnOf(&slice) {
		places[identity] = place
	}
	c := &content{devices: slice.Spec.Devices, counters: slice.Spec.SharedCounters}
	for i := range c.devices {
		for _, name := range identities {
			if value := c.devices[i].Attributes[name].StringValue; value != nil && places[*value] != "" {
				return slice, nil // of this device, nothing was put aside
			}
		}
	}
	for _, identity := range found {
		place, aside := places[identity]
		if !aside {
			return slice, nil // its devices tell it from others
		}
		c.places = append(c.places, place)
	}
	d.lock.Lock()
	d.known[sum] = c
	d.lock.Unlock()
	return slice, nil
}

func setOwn(slice *resourceapi.ResourceSlice, places, identities []string) {
	if len(places) == 0 {
		return
	}
	own := make(Own, len(places))
	for i, place := range places {
		own[place] = identities[i]
	}
	text, err := json.Marshal(own)
	if err != nil { // of strings there is none
		return
	}
	metav1.SetMetaDataAnnotation(&slice.ObjectMeta, annotationOwn, string(text))
}

// reading divides a slice into what others have as well, and its own.
type reading struct {
	// rest is the slice without its devices and counters.
	rest []byte
	// identities are values of attributes that tell a GPU from all others, in the order in which
	// they come first.
	identities []string
	// alike is what others may have: devices and counters, a number in the place of each identity.
	alike []byte
}

func (r *reading) sum() [sha256.Size]byte { return sha256.Sum256(r.alike) }

func (r *reading) slice(wire []byte) error {
	return fields(wire, func(number protowire.Number, value, field []byte) error {
		if number != sliceSpec {
			r.rest = append(r.rest, field...)
			return nil
		}
		var rest []byte
		err := fields(value, func(number protowire.Number, value, field []byte) error {
			switch number {
			case specDevices:
				return r.device(value, field)
			case specCounters:
				r.alike = append(r.alike, field...)
			default:
				rest = append(rest, field...)
			}
			return nil
		})
		r.rest = protowire.AppendTag(r.rest, sliceSpec, protowire.BytesType)
		r.rest = protowire.AppendBytes(r.rest, rest)
		return err
	})
}

// device adds one to what is alike.
func (r *reading) device(device, field []byte) error {
	// The lengths of messages that have an identity in them depend on it.
	at := len(field) - len(device)
	from := at
	r.alike = append(r.alike, 0)
	err := fields(device, func(number protowire.Number, value, inner []byte) error {
		begin := at
		at += len(inner)
		if number != deviceAttributes {
			return nil
		}
		key, identity, err := identityIn(value)
		if err != nil || identity == nil {
			return err
		}
		r.alike = append(r.alike, field[from:begin]...)
		r.alike = append(append(r.alike, key...), 0)
		r.alike = protowire.AppendVarint(r.alike, uint64(r.number(string(identity))))
		from = at
		return nil
	})
	r.alike = append(r.alike, field[from:]...)
	return err
}

// number is that of an identity in the slice.
func (r *reading) number(identity string) int {
	i := slices.Index(r.identities, identity)
	if i < 0 {
		i = len(r.identities)
		r.identities = append(r.identities, identity)
	}
	return i
}

// identityIn is the key and the text of an attribute that identifies a GPU; nil for others.
func identityIn(entry []byte) (key, identity []byte, err error) {
	err = fields(entry, func(number protowire.Number, value, _ []byte) error {
		switch {
		case number == entryKey:
			key = value
		case number == entryValue && Identifies(string(key)):
			return fields(value, func(number protowire.Number, text, _ []byte) error {
				if number == attributeString {
					identity = text
				}
				return nil
			})
		}
		return nil
	})
	return key, identity, err
}
