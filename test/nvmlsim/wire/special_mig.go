package wire

import (
	"reflect"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// gpuInstanceInfo is nvmlGpuInstanceInfo_t, whose go-nvml form is not exported.
type gpuInstanceInfo struct {
	Device    HandleWord
	Id        uint32
	ProfileId uint32
	Placement nvml.GpuInstancePlacement
}

// computeInstanceInfo is nvmlComputeInstanceInfo_t, likewise.
type computeInstanceInfo struct {
	Device      HandleWord
	GpuInstance HandleWord
	Id          uint32
	ProfileId   uint32
	Placement   nvml.ComputeInstancePlacement
}

func serveGPUInstanceInfo(c *call) nvml.Return {
	object, ok := c.receiver()
	if !ok {
		return nvml.ERROR_INVALID_ARGUMENT
	}
	info, r := object.(nvml.GpuInstance).GetInfo()
	if r != nvml.SUCCESS {
		return r
	}
	c.args[1].answer = bytesOf(reflect.ValueOf(gpuInstanceInfo{
		Device:    c.session.handleOf(info.Device),
		Id:        info.Id,
		ProfileId: info.ProfileId,
		Placement: info.Placement,
	}))
	return nvml.SUCCESS
}

func serveComputeInstanceInfo(c *call) nvml.Return {
	object, ok := c.receiver()
	if !ok {
		return nvml.ERROR_INVALID_ARGUMENT
	}
	info, r := object.(nvml.ComputeInstance).GetInfo()
	if r != nvml.SUCCESS {
		return r
	}
	c.args[1].answer = bytesOf(reflect.ValueOf(computeInstanceInfo{
		Device:      c.session.handleOf(info.Device),
		GpuInstance: c.session.handleOf(info.GpuInstance),
		Id:          info.Id,
		ProfileId:   info.ProfileId,
		Placement:   info.Placement,
	}))
	return nvml.SUCCESS
}
