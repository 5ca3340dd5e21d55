package wire

import (
	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mica-gpu/mica/test/nvmlsim/model"
)

// serveReset resets the GPU behind the first argument; a MIG device cannot be reset.
func serveReset(c *call) nvml.Return {
	device, ok := c.device()
	if !ok {
		return nvml.ERROR_INVALID_ARGUMENT
	}
	resettable, ok := device.(model.ResetDevice)
	if !ok {
		return nvml.ERROR_NOT_SUPPORTED
	}
	return resettable.Reset()
}
