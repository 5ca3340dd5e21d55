package scaleout

import (
	resourceapi "k8s.io/api/resource/v1"

	"github.com/mica-gpu/mica/pkg/devices"
	"github.com/mica-gpu/mica/pkg/scaleout/fit"
)

// unit is a device, or the set of counters that partitions of a GPU share.
type unit struct {
	pool devices.PoolID
	name string
}

// rest is the number of free units of a machine.
func (p *planner) rest(m *fit.Machine) int {
	count, known := p.rests[m]
	if !known {
		count = free(m)
		p.rests[m] = count
	}
	return count
}

// free counts the units without any allocation. Eight GPUs that are also offered as 200 partitions are eight
// units.
func free(m *fit.Machine) int {
	used := m.Used()
	taken := map[unit]bool{}
	for _, slice := range m.Slices() {
		for _, device := range slice.Spec.Devices {
			_, inUse := used[devices.ID{Pool: devices.PoolOf(slice), Name: device.Name}]
			for _, p := range units(slice, device) {
				taken[p] = taken[p] || inUse
			}
		}
	}
	count := 0
	for _, isTaken := range taken {
		if !isTaken {
			count++
		}
	}
	return count
}

// inUse reports whether any device of a machine is allocated.
func inUse(m *fit.Machine) bool { return len(m.Used()) > 0 }

// units are the sets of counters that a device consumes, or the device itself.
func units(slice *resourceapi.ResourceSlice, device resourceapi.Device) []unit {
	pool := devices.PoolOf(slice)
	if len(device.ConsumesCounters) == 0 {
		return []unit{{pool, "device/" + device.Name}}
	}
	var sets []unit
	for _, consumed := range device.ConsumesCounters {
		sets = append(sets, unit{pool, "counters/" + consumed.CounterSet})
	}
	return sets
}
