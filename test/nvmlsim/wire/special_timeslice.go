package wire

import (
	"encoding/binary"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mica-gpu/mica/test/nvmlsim/model"
)

// timesliceDevice is the GPU behind the first argument; a MIG device has no time
// slice of its own.
func (c *call) timesliceDevice() (model.TimesliceDevice, nvml.Return) {
	device, ok := c.device()
	if !ok {
		return nil, nvml.ERROR_INVALID_ARGUMENT
	}
	sliced, ok := device.(model.TimesliceDevice)
	if !ok {
		return nil, nvml.ERROR_NOT_SUPPORTED
	}
	return sliced, nvml.SUCCESS
}

func serveGetTimeslice(c *call) nvml.Return {
	device, ret := c.timesliceDevice()
	if ret != nvml.SUCCESS {
		return ret
	}
	slice, ret := device.GetTimeslice()
	if ret == nvml.SUCCESS {
		c.args[1].answer = binary.NativeEndian.AppendUint32(nil, uint32(slice))
	}
	return ret
}

func serveSetTimeslice(c *call) nvml.Return {
	device, ret := c.timesliceDevice()
	if ret != nvml.SUCCESS {
		return ret
	}
	return device.SetTimeslice(model.Timeslice(c.args[1].number))
}
