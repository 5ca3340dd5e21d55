package model

import (
	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mica-gpu/mica/pkg/catalog"
)

// Every GPU is a 3D controller of NVIDIA's.
const (
	nvidiaVendorID = 0x10de
)

// GetPciInfo implements nvml.Device.
func (d *device) GetPciInfo() (nvml.PciInfo, nvml.Return) {
	return constant(d, "nvmlDeviceGetPciInfo_v3", pciInfo(d.gpu.address, d.gpu.board.PCIDeviceID))
}

// pciInfo describes a PCI function. The subsystem repeats the device ID.
func pciInfo(a PCIAddress, id catalog.PCIDeviceID) nvml.PciInfo {
	info := nvml.PciInfo{
		Domain:         a.Domain,
		Bus:            a.Bus,
		Device:         a.Device,
		PciDeviceId:    uint32(id)<<16 | nvidiaVendorID,
		PciSubSystemId: uint32(id)<<16 | nvidiaVendorID,
	}
	putString(info.BusId[:], a.nvmlBusID())
	putString(info.BusIdLegacy[:], a.legacyBusID())
	return info
}

// putString writes a C string into a field of a C struct, cut to its size.
func putString(field []int8, text string) {
	for i := range field {
		field[i] = 0
	}
	for i := 0; i < len(text) && i < len(field)-1; i++ {
		field[i] = int8(text[i])
	}
}
