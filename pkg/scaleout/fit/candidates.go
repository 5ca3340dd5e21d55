package fit

import (
	"context"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/structured"
	"k8s.io/utils/ptr"

	"github.com/mica-gpu/mica/pkg/devices"
)

// candidates caches which devices of a layout expressions select. The allocator evaluates them on each call, for up to
// all devices. Devices that no request selects are therefore hidden from it.
type candidates struct {
	// devices are those of all slices, slice by slice.
	devices []candidate
	// alikes is the number of kinds of devices that expressions can distinguish.
	alikes int
	// all reports whether every device has to be shown, because one of them decides about its pool.
	all bool
	// selectors by their expressions.
	selectors map[string]*selector
}

// candidate is a device with its IDs in the allocator's state.
type candidate struct {
	devices.Device
	id     structured.DeviceID
	shared structured.SharedDeviceID
	// alike is equal for devices that no expression can distinguish.
	alike int
}

// selector is an expression with its cached answers, one per kind of devices.
type selector struct {
	program *devices.Selector
	answers []answer
}

type answer byte

const (
	unasked answer = iota
	yes
	no
	// failed is an error. The allocator shall meet and report it.
	failed
)

func (c *Cluster) newCandidates(l *layout) *candidates {
	known := &candidates{selectors: map[string]*selector{}}
	alikes := map[uint64]int{}
	counters := map[devices.PoolID]map[string]map[string]resourceapi.Counter{}
	names := map[devices.ID]bool{}
	for _, slice := range l.slices {
		id := devices.PoolOf(slice)
		if counters[id] == nil {
			counters[id] = map[string]map[string]resourceapi.Counter{}
		}
		for _, set := range slice.Spec.SharedCounters {
			counters[id][set.Name] = set.Counters
		}
	}
	for _, slice := range l.slices {
		id := devices.PoolOf(slice)
		own := l.own(slice)
		for i := range slice.Spec.Devices {
			device := &slice.Spec.Devices[i]
			at := devices.ID{Pool: id, Name: device.Name}
			known.all = known.all || names[at] || device.BindingConditions != nil || !provided(device, counters[id])
			names[at] = true
			made := candidate{Device: devices.Device{Device: device, ID: at, Own: own}, id: structured.MakeDeviceID(id.Driver, id.Name, device.Name)}
			made.shared = devices.SharesOf(made.id)
			made.alike = numbered(alikes, c.readHash(&made.Device))
			known.devices = append(known.devices, made)
		}
	}
	known.alikes = len(alikes)
	return known
}

// own are the attributes of single GPUs that were put aside from the slice, if they count.
func (l *layout) own(slice *resourceapi.ResourceSlice) devices.Own {
	if !l.exact {
		return nil
	}
	return devices.OwnOf(slice)
}

// readHash is equal for devices that no expression can distinguish: it covers all that expressions can read, but for
// attributes that none names.
func (c *Cluster) readHash(d *devices.Device) uint64 {
	sum := hashCapacity(d.Capacity)
	for name, value := range d.Attributes {
		if a := c.words.attribute(name); a.read {
			sum += mix(hashText(string(name)), hashAttribute(d.Own.Attribute(name, value)))
		}
	}
	var s signature
	s.flag(d.AllowMultipleAllocations != nil)
	s.flag(ptr.Deref(d.AllowMultipleAllocations, false))
	s.text(d.ID.Pool.Driver)
	return mix(sum, hashText(string(s)))
}

// provided reports whether a pool has the counters that a device consumes. A device that consumes others makes the
// whole pool invalid. One with compatibility groups, which a stock scheduler does not know, makes it incomplete.
func provided(device *resourceapi.Device, sets map[string]map[string]resourceapi.Counter) bool {
	for _, consumed := range device.ConsumesCounters {
		if len(consumed.CompatibilityGroups) > 0 {
			return false
		}
		for name := range consumed.Counters {
			if _, known := sets[consumed.CounterSet][name]; !known {
				return false
			}
		}
		if sets[consumed.CounterSet] == nil {
			return false
		}
	}
	return true
}

// candidates are the slices of a layout, with only the devices that the claims may get and those that are taken,
// because these consume counters of others.
func (c *Cluster) candidates(ctx context.Context, l *layout, state structured.AllocatedState, claims []*resourceapi.ResourceClaim) []*resourceapi.ResourceSlice {
	if l.known == nil {
		l.known = c.newCandidates(l)
	}
	requests := c.selections(l.known, claims)
	all := l.known.all || l.networked || requests == nil
	shown := make([]*resourceapi.ResourceSlice, len(l.slices))
	first := 0
	for i, slice := range l.slices {
		shown[i] = slice
		own := l.own(slice)
		if len(slice.Spec.Devices) == 0 || all && own == nil {
			first += len(slice.Spec.Devices)
			continue
		}
		var devices []resourceapi.Device
		for d := range slice.Spec.Devices {
			if all || l.known.taken(state, first+d) || l.known.any(ctx, first+d, requests) {
				devices = append(devices, slice.Spec.Devices[d])
				device := &devices[len(devices)-1]
				device.Attributes = own.Attributes(device.Attributes)
			}
		}
		first += len(slice.Spec.Devices)
		if own != nil || len(devices) < len(slice.Spec.Devices) {
			narrowed := *slice
			narrowed.Spec.Devices = devices
			shown[i] = &narrowed
		}
	}
	return shown
}

func (k *candidates) taken(state structured.AllocatedState, device int) bool {
	return state.AllocatedDevices.Has(k.devices[device].id) ||
		len(state.AllocatedSharedDeviceIDs) > 0 && state.AllocatedSharedDeviceIDs.Has(k.devices[device].shared)
}

// selections are the selectors of each request, in the order in which they are evaluated; nil if a class is unknown.
func (c *Cluster) selections(k *candidates, claims []*resourceapi.ResourceClaim) [][]*selector {
	all := [][]*selector{}
	for _, claim := range claims {
		for _, request := range claim.Spec.Devices.Requests {
			for _, r := range Alternatives(request) {
				class := c.classes.byName[r.DeviceClassName]
				if class == nil {
					return nil
				}
				var found []*selector
				for _, from := range slices.Concat(class.Spec.Selectors, r.Selectors) {
					if from.CEL == nil {
						return nil
					}
					known := k.selectors[from.CEL.Expression]
					if known == nil {
						known = &selector{program: c.selectors.Get(from.CEL.Expression), answers: make([]answer, k.alikes)}
						k.selectors[from.CEL.Expression] = known
					}
					found = append(found, known)
				}
				all = append(all, found)
			}
		}
	}
	return all
}

// any reports whether one of the requests may select a device. Like the allocator, it evaluates the selectors of a
// request until one does not match.
func (k *candidates) any(ctx context.Context, device int, requests [][]*selector) bool {
	return slices.ContainsFunc(requests, func(selectors []*selector) bool {
		for _, s := range selectors {
			asked := k.devices[device]
			switch s.ask(ctx, asked, &s.answers[asked.alike]) {
			case no:
				return false
			case failed:
				return true
			}
		}
		return true
	})
}

// ask evaluates the expression on a device, unless the answer is cached.
func (s *selector) ask(ctx context.Context, device candidate, known *answer) answer {
	if *known != unasked {
		return *known
	}
	matches, err := s.program.Matches(ctx, device.Input())
	switch {
	case err != nil:
		*known = failed
	case matches:
		*known = yes
	default:
		*known = no
	}
	return *known
}
