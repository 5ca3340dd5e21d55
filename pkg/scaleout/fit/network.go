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

// features are those that a stock Kubernetes 1.37 has on: see AllocatorFeatures of the
// scheduler's plugin and the defaults of its feature gates.
var features = structured.Features{
	AdminAccess:            true,
	ConsumableCapacity:     true,
	DeviceBindingAndStatus: true,
	DeviceTaints:           true,
	PartitionableDevices:   true,
	PrioritizedList:        true,
}

// network has the pools that are not one node's alone.
type network struct {
	ids    []devices.PoolID
	pools  map[devices.PoolID]bool
	slices []*resourceapi.ResourceSlice
	// used is what claims have of them.
	used devices.Use
	// takes counts the takes that were made.
	takes int
}

// take is what a placement took of the network.
type take struct {
	serial int
	held   []devices.Holding
}

func (t *take) addTo(used devices.Use) {
	for _, held := range t.held {
		used.Add(held)
	}
}

// newNetwork finds the pools whose slices are not all of one node.
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

// reached is a slice of the network with devices that a node's pods can get.
type reached struct {
	id    devices.PoolID
	index int
	slice *resourceapi.ResourceSlice
	// devices tells for each whether it is among them, where that differs.
	devices []bool
}

// reach are the slices of the network that the node reaches. A selector that cannot be parsed
// counts as one that matches, so that the allocator meets it and says so.
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

// reached writes the slices of the first pool, and gives the others.
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

// take notes what a placement would take of the network; nil where it takes nothing.
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
