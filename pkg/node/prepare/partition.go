package prepare

import (
	"fmt"
	"slices"

	cdispec "tags.cncf.io/container-device-interface/specs-go"

	"github.com/mica-gpu/mica/pkg/gpu"
	"github.com/mica-gpu/mica/pkg/node/journal"
)

// migDevice is common to all partitions, whoever made them.
type migDevice struct{}

func (migDevice) intact(device journal.Device, tools Tools) (bool, error) {
	return exists(device, tools.MIG)
}

// edits are the GPU's if the claim only looks at a partition that does not exist.
func (migDevice) edits(device journal.Device, edits Edits) (cdispec.ContainerEdits, error) {
	if !device.Exists() {
		return edits.GPU(device.UUID)
	}
	return edits.Partition(device.UUID, device.Form.InstanceID, device.Form.ComputeID)
}

// exists reports whether a MIG device is where its record says. The UUID is no proof that it
// is the same one: the driver derives it from the place (nvGenerateSmcUuid in gpu_uuid.c of
// NVIDIA/open-gpu-kernel-modules). So one that was once found gone stays gone.
func exists(device journal.Device, mig MIG) (bool, error) {
	if !device.Exists() {
		return false, nil
	}
	uuid, err := mig.DeviceAt(device.UUID, device.Form.InstanceID, device.Form.ComputeID)
	return err == nil && uuid == device.PartUUID, err
}

// staticMIG prepares a partition that an administrator has made: there is nothing to do.
type staticMIG struct{ migDevice }

func (staticMIG) steps() []string { return nil }

// inspect makes sure that the partition is still the published one.
func (staticMIG) inspect(device *journal.Device, _ gpu.GPU, _ []journal.Device, tools Tools) (change bool, err error) {
	there, err := exists(*device, tools.MIG)
	if err == nil && !there {
		err = fmt.Errorf("the MIG device %s of %s on %s is gone: an administrator has destroyed it; delete the pod so that it is scheduled again", device.PartUUID, device.Device, device.UUID)
	}
	return false, err
}

// dynamicMIG prepares a MIG partition, which is made for the claim.
type dynamicMIG struct{ migDevice }

func (dynamicMIG) steps() []string { return []string{enableMIGStep, makeStep} }

// inspect adopts the partition of another share. One that was destroyed is made again.
func (dynamicMIG) inspect(device *journal.Device, g gpu.GPU, siblings []journal.Device, tools Tools) (change bool, err error) {
	for _, sibling := range siblings {
		if !ours(sibling) {
			continue
		}
		if !sibling.Exists() {
			return true, nil // it is made for an earlier request of the same claim
		}
		there, err := exists(sibling, tools.MIG)
		if err != nil {
			return false, err
		}
		if there {
			adopt(device, sibling)
			return false, nil
		}
	}
	return inspectPlace(device, g, tools.MIG)
}

// adopt gives a device the partition of another share.
func adopt(device *journal.Device, from journal.Device) {
	device.PartUUID = from.PartUUID
	device.Form.InstanceID, device.Form.ComputeID = from.Form.InstanceID, from.Form.ComputeID
}

// inspectPlace reports whether a partition is to be made in its place. An administrator may have
// made one there since the GPU was looked at. It is offered by the same name with the next look,
// so the claim gets it at once: no record of another claim has the place, which the caller has
// locked. For admin access, it finds the partition there, if any.
func inspectPlace(device *journal.Device, g gpu.GPU, mig MIG) (change bool, err error) {
	found, err := mig.InstanceAt(device.UUID, device.Form.ProfileID, device.Form.Start)
	if err != nil || found == nil {
		return !device.AdminAccess, err
	}
	if device.AdminAccess {
		if len(found.Devices) > 0 {
			device.Form.InstanceID, device.Form.ComputeID, device.PartUUID = found.ID, found.Devices[0].ComputeID, found.Devices[0].UUID
		}
		return false, nil
	}
	g.Instances = []gpu.Instance{*found}
	statics, _ := g.Statics()
	if len(statics) == 0 {
		return false, fmt.Errorf("the place of %s on %s is taken by GPU instance %d, which Mica did not make: destroy it, or delete the pod so that it is scheduled again", device.Device, device.UUID, found.ID)
	}
	become(device, statics[0])
	return false, nil
}

// become turns the record of a partition to be made into that of an administrator's.
func become(device *journal.Device, static gpu.Static) {
	form := static.Form()
	device.Form.Base, device.Form.Placement, device.PartUUID = form.Base, form.Placement, static.UUID()
	device.Steps = slices.DeleteFunc(slices.Clone(device.Steps), func(s journal.Step) bool {
		return slices.Contains(dynamicMIG{}.steps(), s.Name)
	})
}

// ours reports whether a recorded device is a partition that is made and destroyed here.
func ours(device journal.Device) bool { return hasStep(device, makeStep) }

// relinquish records that the plugin has nothing in the place of a partition any more. What
// is found there later is an administrator's, also with the same UUID.
func relinquish(device *journal.Device) {
	device.PartUUID, device.Form.InstanceID, device.Form.ComputeID = "", 0, 0
	device.Steps = slices.DeleteFunc(slices.Clone(device.Steps), func(s journal.Step) bool { return s.Name == makeStep })
}

// isInstance reports whether an instance on the recorded GPU can be the recorded partition:
// by the place, and by the MIG device's UUID if it is known, which differs for other engines.
// An instance without a device is being made or destroyed.
func isInstance(device journal.Device, instance gpu.Instance) bool {
	if device.Form.ProfileID != instance.ProfileID || device.Form.Start != instance.Start {
		return false
	}
	return device.PartUUID == "" || len(instance.Devices) == 0 ||
		slices.ContainsFunc(instance.Devices, func(d gpu.MIGDevice) bool { return d.UUID == device.PartUUID })
}

// Made reports whether an instance on a GPU was, or may have been, made for a recorded device
// of this boot. Only the place is known of a newer version's device.
func Made(device journal.Device, uuid string, instance gpu.Instance) bool {
	if place := device.Form.Placement; device.Newer && !place.Entire() {
		return device.UUID == uuid && place.Overlaps(gpu.Placement{Start: instance.Start, Size: instance.Size})
	}
	return ours(device) && device.UUID == uuid && isInstance(device, instance)
}

// Missing reports whether a look at GPUs did not show the partition of a recorded device. A
// GPU that is not among them has shown nothing.
func Missing(device journal.Device, gpus []gpu.GPU) bool {
	i := slices.IndexFunc(gpus, func(g gpu.GPU) bool { return g.UUID == device.UUID })
	return i >= 0 && ours(device) && device.Exists() &&
		!slices.ContainsFunc(gpus[i].Instances, func(instance gpu.Instance) bool { return isInstance(device, instance) })
}

// ownInstance finds the instance that was made for a recorded device, nil if it is gone. It
// asks for the MIG device by its IDs. Without that device, there may be an instance without
// one in the place.
func ownInstance(mig MIG, device *journal.Device) (*gpu.Instance, error) {
	there, err := exists(*device, mig)
	if err != nil {
		return nil, err
	}
	place := device.Form.Placement
	if there {
		return &gpu.Instance{
			ID: place.InstanceID, ProfileID: place.ProfileID, Start: place.Start, Size: place.Size,
			Devices: []gpu.MIGDevice{{ComputeID: place.ComputeID, UUID: device.PartUUID}},
		}, nil
	}
	instance, err := mig.InstanceAt(device.UUID, place.ProfileID, place.Start)
	if err != nil || instance == nil || !isInstance(*device, *instance) {
		return nil, err
	}
	return instance, nil
}
