package prepare

import (
	"fmt"
	"slices"

	"github.com/mica-gpu/mica/pkg/gpu"
	"github.com/mica-gpu/mica/pkg/node/journal"
)

// dynamicMIG is the preparation of a MIG partition, which is made for the claim.
type dynamicMIG struct{ migDevice }

func (dynamicMIG) steps() []journal.Step { return []journal.Step{journal.MakePartition} }

// inspect adopts the partition of another share where there is one. One
// that somebody has destroyed is made anew.
func (dynamicMIG) inspect(device *journal.Device, _ gpu.GPU, siblings []journal.Device, tools Tools) (change bool, err error) {
	for _, sibling := range siblings {
		if !ours(sibling) {
			continue
		}
		if sibling.Partition.UUID == "" {
			return true, nil // it is made for an earlier request of the same claim
		}
		there, err := exists(sibling, tools.MIG)
		if err != nil {
			return false, err
		}
		if there {
			device.Partition = sibling.Partition
			return false, nil
		}
	}
	return !device.AdminAccess, findPlace(device, tools.MIG)
}

// findPlace finds the place of a partition free. For who only looks at
// one, it finds the partition that is there, if any.
func findPlace(device *journal.Device, mig MIG) error {
	partition := &device.Partition
	found, err := mig.InstanceAt(device.UUID, partition.ProfileID, partition.Start)
	if err != nil || found == nil {
		return err
	}
	if !device.AdminAccess {
		return fmt.Errorf("the place of %s on %s is taken by GPU instance %d, which somebody else has made: destroy it, or delete the pod so that it is scheduled again", device.Device, device.UUID, found.ID)
	}
	if len(found.Devices) > 0 {
		partition.InstanceID, partition.ComputeID, partition.UUID = found.ID, found.Devices[0].ComputeID, found.Devices[0].UUID
	}
	return nil
}

// ours reports whether a recorded device is a partition that is made and unmade here.
func ours(device journal.Device) bool {
	return device.Shape == gpu.BasePartition && !device.Partition.Foreign && !device.Partition.Gone
}

// isInstance reports whether an instance can be a record's partition, on the
// GPU of the record: by the place, and by the MIG device's UUID once it is known, which differs
// where it is for another engine. An instance without a device is one that is being made or unmade.
func isInstance(partition journal.Partition, instance gpu.Instance) bool {
	if partition.ProfileID != instance.ProfileID || partition.Start != instance.Start {
		return false
	}
	return partition.UUID == "" || len(instance.Devices) == 0 ||
		slices.ContainsFunc(instance.Devices, func(d gpu.MIGDevice) bool { return d.UUID == partition.UUID })
}

// Made tells whether an instance on a GPU was made here for a recorded device of this
// boot, or may have been. Of a newer version's device, only the place is known.
func Made(device journal.Device, uuid string, instance gpu.Instance) bool {
	if place := device.Form().Placement; device.Newer && !place.Entire() {
		return device.UUID == uuid && place.Overlaps(gpu.Placement{Start: instance.Start, Size: instance.Size})
	}
	return ours(device) && device.UUID == uuid && isInstance(device.Partition, instance)
}
