package wire

import (
	"reflect"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mica-gpu/mica/test/nvmlsim/model"
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

// serveInstanceDestroy drops the handle, which is invalid from then on.
func serveInstanceDestroy(c *call) nvml.Return {
	r := c.invoke()
	if r == nvml.SUCCESS {
		c.session.forget(HandleWord(c.args[0].number))
	}
	return r
}

func serveComputeProfileInfo(c *call) nvml.Return {
	object, ok := c.receiver()
	if !ok {
		return nvml.ERROR_INVALID_ARGUMENT
	}
	instance, ok := object.(model.VersionedGpuInstance)
	if !ok {
		return nvml.ERROR_NOT_SUPPORTED
	}
	profile, engines := int(int32(c.args[1].number)), int(int32(c.args[2].number))
	var info any
	var r nvml.Return
	switch c.version(3) >> 24 {
	case 2:
		info, r = untyped(instance.ComputeInstanceProfileInfoV2(profile, engines))
	default:
		info, r = untyped(instance.ComputeInstanceProfileInfoV3(profile, engines))
	}
	if r != nvml.SUCCESS {
		return r
	}
	return c.answerOne(3, reflect.ValueOf(info))
}
