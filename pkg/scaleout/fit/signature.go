package fit

import (
	"encoding/binary"
	"hash/maphash"
	"maps"
	"math/bits"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/mica-gpu/mica/pkg/devices"
)

// signature is a key that is equal exactly for equal parts: each part has a length prefix or a fixed length.
type signature []byte

func (s *signature) text(text string) {
	s.number(int64(len(text)))
	*s = append(*s, text...)
}

func (s *signature) number(n int64) { *s = binary.AppendVarint(*s, n) }

func (s *signature) flag(b bool) {
	if b {
		*s = append(*s, 1)
		return
	}
	*s = append(*s, 0)
}

// hash adds a hash.
func (s *signature) hash(h uint64) { *s = binary.LittleEndian.AppendUint64(*s, h) }

// message adds an API object in its own wire format, in which maps are sorted.
func (s *signature) message(m interface{ Marshal() ([]byte, error) }) {
	wire, err := m.Marshal()
	if err != nil { // the generated code has none
		wire = []byte(err.Error())
	}
	s.text(string(wire))
}

// useKey is equal for the same use of the same devices.
func useKey(used devices.Use) string {
	s := make(signature, 0, 64*len(used))
	for _, id := range slices.SortedFunc(maps.Keys(used), devices.ID.Compare) {
		s.text(id.Pool.Driver)
		s.text(id.Pool.Name)
		s.text(id.Name)
		taken := used[id]
		s.flag(taken.Whole)
		s.flag(taken.Shared)
		s.flag(taken.Consumed != nil)
		s.number(int64(len(taken.Consumed)))
		for _, name := range sortedKeys(taken.Consumed) {
			s.text(string(name))
			quantity := taken.Consumed[name]
			s.text(quantity.String())
		}
	}
	return string(s)
}

// seed differs between processes: hashes are compared and never stored.
var seed = maphash.MakeSeed()

func hashText(text string) uint64 { return maphash.String(seed, text) }

// mix makes one hash of two, in their order.
func mix(a, b uint64) uint64 {
	high, low := bits.Mul64(a^0x9e3779b97f4a7c15, b^0xd1b54a32d192ed03)
	return high ^ bits.RotateLeft64(low, 29) ^ (a + b*0xa24baed4963ee407)
}

func hashQuantity(q resource.Quantity) uint64 {
	if n, ok := q.AsInt64(); ok {
		return mix(1, uint64(n))
	}
	return mix(2, hashText(q.String()))
}

// hashCounters does not depend on the order of the map.
func hashCounters(counters map[string]resourceapi.Counter) uint64 {
	var sum uint64
	for name, counter := range counters {
		sum += mix(hashText(name), hashQuantity(counter.Value))
	}
	return sum
}

func hashCapacity(capacity map[resourceapi.QualifiedName]resourceapi.DeviceCapacity) uint64 {
	var sum uint64
	for name, c := range capacity {
		h := mix(hashText(string(name)), hashQuantity(c.Value))
		if c.RequestPolicy != nil {
			var s signature
			s.message(c.RequestPolicy)
			h = mix(h, hashText(string(s)))
		}
		sum += h
	}
	return sum
}

func hashAttribute(a resourceapi.DeviceAttribute) uint64 {
	switch {
	case a.StringValue != nil:
		return mix(1, hashText(*a.StringValue))
	case a.IntValue != nil:
		return mix(2, uint64(*a.IntValue))
	case a.BoolValue != nil && *a.BoolValue:
		return 3
	case a.BoolValue != nil:
		return 4
	case a.VersionValue != nil:
		return mix(5, hashText(*a.VersionValue))
	default: // lists, which a stock cluster does not have
		var s signature
		s.message(&a)
		return mix(6, hashText(string(s)))
	}
}

// attributeID is an attribute's name without domain.
func attributeID(name resourceapi.QualifiedName) string {
	_, id, qualified := strings.Cut(string(name), "/")
	if !qualified {
		return string(name)
	}
	return id
}
