package fit

import (
	"cmp"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/structured"
	"k8s.io/utils/ptr"

	"github.com/mica-gpu/mica/pkg/devices"
)

// features are those of a stock Kubernetes 1.37: see AllocatorFeatures of the scheduler's plugin and the defaults of
// its feature gates.
var features = structured.Features{
	AdminAccess:            true,
	ConsumableCapacity:     true,
	DeviceBindingAndStatus: true,
	DeviceTaints:           true,
	PartitionableDevices:   true,
	PrioritizedList:        true,
}

// network has the pools that more than one node may use.
type network struct {
	ids    []devices.PoolID
	pools  map[devices.PoolID]bool
	slices []*resourceapi.ResourceSlice
	// used is their use by claims.
	used devices.Use
	// takes counts the takes, to number them.
	takes int
}

// take is the devices of the network that a placement took.
type take struct {
	serial int
	held   []devices.Holding
}

func (t *take) addTo(used devices.Use) {
	for _, held := range t.held {
		used.Add(held)
	}
}

// newNetwork finds the pools whose slices do not all belong to one node.
func newNetwork(all []*resourceapi.ResourceSlice) network {
	n := network{pools: map[devices.PoolID]bool{}, used: devices.Use{}}
	owner := map[devices.PoolID]string{}
	for _, slice := range all {
		id, node := devices.PoolOf(slice), ptr.Deref(slice.Spec.NodeName, "")
		if known, ok := owner[id]; node == "" || ok && known != node {
			n.pools[id] = true
		}
		owner[id] = node
	}
	if len(n.pools) == 0 {
		return n
	}
	for _, slice := range all {
		if n.pools[devices.PoolOf(slice)] {
			n.slices = append(n.slices, slice)
		}
	}
	n.ids = slices.SortedFunc(maps.Keys(n.pools), devices.PoolID.Compare)
	slices.SortStableFunc(n.slices, func(a, b *resourceapi.ResourceSlice) int {
		return cmp.Or(devices.PoolOf(a).Compare(devices.PoolOf(b)), cmp.Compare(a.Name, b.Name))
	})
	return n
}

// reached is a slice of the network with devices for a node's pods.
type reached struct {
	id    devices.PoolID
	index int
	slice *resourceapi.ResourceSlice
	// devices reports for each device whether the node reaches it; nil: it reaches all.
	devices []bool
}

// reach are the slices of the network that the node reaches. A selector that cannot be parsed counts as matching, so
// that the allocator reports it.
func (n *network) reach(node *corev1.Node) []reached {
	var all []reached
	for i, slice := range n.slices {
		r := reached{id: devices.PoolOf(slice), index: i, slice: slice}
		spec := &slice.Spec
		if !ptr.Deref(spec.PerDeviceNodeSelection, false) {
			if matches(node, spec.NodeName, spec.AllNodes, spec.NodeSelector) {
				all = append(all, r)
			}
			continue
		}
		for j := range spec.Devices {
			d := &spec.Devices[j]
			r.devices = append(r.devices, matches(node, d.NodeName, d.AllNodes, d.NodeSelector))
		}
		if slices.Contains(r.devices, true) {
			all = append(all, r)
		}
	}
	return all
}

func matches(node *corev1.Node, name *string, everywhere *bool, selector *corev1.NodeSelector) bool {
	ok, err := structured.NodeMatches(features, node, ptr.Deref(name, ""), ptr.Deref(everywhere, false), selector)
	return ok || err != nil
}

// reached adds the slices of the first pool, and returns the others.
func (s *signature) reached(all []reached) []reached {
	first := all[0].id
	s.text("network")
	for len(all) > 0 && all[0].id == first {
		s.number(int64(all[0].index))
		s.number(int64(len(all[0].devices)))
		for _, d := range all[0].devices {
			s.flag(d)
		}
		all = all[1:]
	}
	return all
}

// take numbers what a placement would take of the network; nil if it takes nothing.
func (n *network) take(held []devices.Holding) *take {
	if len(held) == 0 {
		return nil
	}
	n.takes++
	return &take{serial: n.takes, held: held}
}

func takesKey(takes []*take) string {
	var s signature
	for _, t := range takes {
		s.number(int64(t.serial))
	}
	return string(s)
}
