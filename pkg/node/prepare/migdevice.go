package prepare

import (
	cdispec "tags.cncf.io/container-device-interface/specs-go"

	"github.com/mica-gpu/mica/pkg/node/journal"
)

// migDevice is what all partitions have in common, whoever has made them.
type migDevice struct{}

func (migDevice) intact(device journal.Device, tools Tools) (bool, error) {
	return exists(device, tools.MIG)
}

// edits are those of the GPU for who only looks at a partition that nobody has made.
func (migDevice) edits(device journal.Device, edits Edits) (cdispec.ContainerEdits, error) {
	if device.Partition.UUID == "" {
		return edits.GPU(device.UUID)
	}
	return edits.Partition(device.UUID, device.Partition.InstanceID, device.Partition.ComputeID)
}

// exists reports whether a MIG device is where its record says. Its UUID is no proof that it is the
// same one: the driver derives it from the place (nvGenerateSmcUuid in gpu_uuid.c of
// NVIDIA/open-gpu-kernel-modules). So one that was seen to be gone does not come back.
func exists(device journal.Device, mig MIG) (bool, error) {
	partition := device.Partition
	if partition.UUID == "" || partition.Gone {
		return false, nil
	}
	uuid, err := mig.DeviceAt(device.UUID, partition.InstanceID, partition.ComputeID)
	return err == nil && uuid == partition.UUID, err
}
