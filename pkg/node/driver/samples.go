package driver

import (
	"slices"

	"github.com/mica-gpu/mica/pkg/node/journal"
	"github.com/mica-gpu/mica/pkg/node/sample"
)

// held are the devices that prepared claims hold, each once, however many claims share
// it. Who only looks at a device does not hold it. The figures of a share are those of
// what is shared: NVML tells no others.
func held(prepared []journal.Record) []sample.Device {
	var devices []sample.Device
	for _, record := range prepared {
		for _, device := range record.Devices {
			if device.AdminAccess {
				continue
			}
			uuid := device.DeviceUUID()
			same := func(d sample.Device) bool { return d.Name == device.Device && d.UUID == uuid }
			i := slices.IndexFunc(devices, same)
			if i < 0 {
				i = len(devices)
				devices = append(devices, sample.Device{Name: device.Device, GPU: device.UUID, UUID: uuid})
			}
			devices[i].Claims = append(devices[i].Claims, record.ClaimUID)
		}
	}
	return devices
}
