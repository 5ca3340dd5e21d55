package wire

import (
	"encoding/binary"
	"reflect"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mica-gpu/mica/test/nvmlsim/model"
)

func serveInit(c *call) nvml.Return {
	r := c.invoke()
	if r == nvml.SUCCESS {
		c.session.countInit(1)
	}
	return r
}

func serveShutdown(c *call) nvml.Return {
	r := c.invoke()
	if r == nvml.SUCCESS {
		c.session.countInit(-1)
	}
	return r
}

// serveDeviceNodes answers for a library that makes device nodes.
func serveDeviceNodes(c *call) nvml.Return {
	session, ok := c.session.library.(interface{ DeviceNodes() (string, nvml.Return) })
	if !ok {
		return nvml.ERROR_NOT_SUPPORTED
	}
	text, r := session.DeviceNodes()
	if r != nvml.SUCCESS {
		return r
	}
	return c.answerOne(0, reflect.ValueOf(text))
}

func serveRefusal(c *call) nvml.Return {
	if len(c.f.Args) == 0 {
		return c.session.library.Refuse(c.f.Name, nil)
	}
	device, ok := c.device()
	if !ok {
		return nvml.ERROR_INVALID_ARGUMENT
	}
	return c.session.library.Refuse(c.f.Name, device)
}

// eventData is nvmlEventData_t, whose go-nvml form is not exported.
type eventData struct {
	Device            HandleWord
	EventType         uint64
	EventData         uint64
	GpuInstanceId     uint32
	ComputeInstanceId uint32
}

func serveEventSetWait(c *call) nvml.Return {
	set, ok := c.receiver()
	if !ok {
		return nvml.ERROR_INVALID_ARGUMENT
	}
	event, r := set.(nvml.EventSet).Wait(uint32(c.args[2].number))
	if r != nvml.SUCCESS {
		return r
	}
	data := eventData{
		EventType:         event.EventType,
		EventData:         event.EventData,
		GpuInstanceId:     event.GpuInstanceId,
		ComputeInstanceId: event.ComputeInstanceId,
	}
	if event.Device != nil {
		data.Device = c.session.handleOf(event.Device)
	}
	c.args[1].answer = bytesOf(reflect.ValueOf(data))
	return nvml.SUCCESS
}

// device is the object of a function whose first argument is a device.
func (c *call) device() (nvml.Device, bool) {
	object, ok := c.session.object(HandleWord(c.args[0].number), reflect.TypeFor[nvml.Device]())
	if !ok {
		return nil, false
	}
	return object.(nvml.Device), true
}

func serveFieldValues(c *call) nvml.Return {
	device, ok := c.device()
	if !ok || !c.args[2].present || c.args[2].room == 0 {
		return nvml.ERROR_INVALID_ARGUMENT
	}
	size := c.f.Args[2].Size
	var values []nvml.FieldValue
	for data := c.args[2].data; len(data) >= size; data = data[size:] {
		values = append(values, structFrom(data[:size], reflect.TypeFor[nvml.FieldValue]()).Elem().Interface().(nvml.FieldValue))
	}
	r := device.GetFieldValues(values)
	if r != nvml.SUCCESS {
		return r
	}
	for _, v := range values {
		c.args[2].answer = append(c.args[2].answer, bytesOf(reflect.ValueOf(v))...)
	}
	return nvml.SUCCESS
}

// serveFabricInfo answers in the version that the client asks for.
func serveFabricInfo(c *call) nvml.Return {
	device, ok := c.device()
	if !ok {
		return nvml.ERROR_INVALID_ARGUMENT
	}
	versioned, ok := device.(model.VersionedDevice)
	if !ok {
		return nvml.ERROR_NOT_SUPPORTED
	}
	asked := &c.args[1]
	info, r := versioned.GpuFabricInfo(int(binary.NativeEndian.Uint32(asked.data) >> 24))
	if r != nvml.SUCCESS {
		return r
	}
	asked.answer = bytesOf(reflect.ValueOf(info))[:asked.room]
	copy(asked.answer, asked.data[:4])
	return nvml.SUCCESS
}

// serveLast carries out the last call on a handle, which is invalid from then on.
func serveLast(c *call) nvml.Return {
	r := c.invoke()
	if r == nvml.SUCCESS {
		c.session.forget(HandleWord(c.args[0].number))
	}
	return r
}

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
