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

func serveEventSetFree(c *call) nvml.Return {
	r := c.invoke()
	if r == nvml.SUCCESS {
		c.session.forget(HandleWord(c.args[0].number))
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
	if len(c.args) == 0 {
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

// affinity answers a bit mask of CPUs or NUMA nodes. Its length in words is
// argument 1; go-nvml's methods take a number of bits and ask for a word for
// every eight of them.
func (c *call) affinity(get func(device nvml.Device, bits int) ([]uint, nvml.Return)) nvml.Return {
	device, ok := c.device()
	words := int(c.args[1].number)
	if !ok || words == 0 || !c.args[2].present {
		return nvml.ERROR_INVALID_ARGUMENT
	}
	size := c.f.Args[2].Size
	words = min(words, c.args[2].room/size)
	mask, r := get(device, words*size)
	if r != nvml.SUCCESS {
		return r
	}
	filled := make([]uint, words)
	copy(filled, mask)
	for _, word := range filled {
		c.args[2].answer = binary.NativeEndian.AppendUint64(c.args[2].answer, uint64(word))
	}
	return nvml.SUCCESS
}

func serveCPUAffinity(c *call) nvml.Return {
	return c.affinity(nvml.Device.GetCpuAffinity)
}

func serveCPUAffinityWithinScope(c *call) nvml.Return {
	return c.affinity(func(d nvml.Device, bits int) ([]uint, nvml.Return) {
		return d.GetCpuAffinityWithinScope(bits, nvml.AffinityScope(c.args[3].number))
	})
}

func serveMemoryAffinity(c *call) nvml.Return {
	return c.affinity(func(d nvml.Device, bits int) ([]uint, nvml.Return) {
		return d.GetMemoryAffinity(bits, nvml.AffinityScope(c.args[3].number))
	})
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

// inVersion answers a versioned struct with what the client's version asks for.
func (c *call) inVersion(of map[uint32]func(model.VersionedDevice) (any, nvml.Return)) nvml.Return {
	object, ok := c.receiver()
	if !ok {
		return nvml.ERROR_INVALID_ARGUMENT
	}
	last := len(c.args) - 1
	device, ok := object.(model.VersionedDevice)
	if !ok {
		return nvml.ERROR_NOT_SUPPORTED
	}
	info, r := of[c.version(last)>>24](device)
	if r != nvml.SUCCESS {
		return r
	}
	return c.answerOne(last, reflect.ValueOf(info))
}

func serveProfileInfo(c *call) nvml.Return {
	profile := int(int32(c.args[1].number))
	return c.inVersion(map[uint32]func(model.VersionedDevice) (any, nvml.Return){
		2: func(d model.VersionedDevice) (any, nvml.Return) { return untyped(d.GpuInstanceProfileInfoV2(profile)) },
		3: func(d model.VersionedDevice) (any, nvml.Return) { return untyped(d.GpuInstanceProfileInfoV3(profile)) },
	})
}

func serveProfileInfoByID(c *call) nvml.Return {
	id := int(int32(c.args[1].number))
	return c.inVersion(map[uint32]func(model.VersionedDevice) (any, nvml.Return){
		2: func(d model.VersionedDevice) (any, nvml.Return) { return untyped(d.GpuInstanceProfileInfoByIDV2(id)) },
		3: func(d model.VersionedDevice) (any, nvml.Return) { return untyped(d.GpuInstanceProfileInfoByIDV3(id)) },
	})
}

func serveFabricInfo(c *call) nvml.Return {
	return c.inVersion(map[uint32]func(model.VersionedDevice) (any, nvml.Return){
		2: func(d model.VersionedDevice) (any, nvml.Return) { return untyped(d.GpuFabricInfoV2()) },
		3: func(d model.VersionedDevice) (any, nvml.Return) { return untyped(d.GpuFabricInfoV3()) },
	})
}

func untyped[T any](info T, r nvml.Return) (any, nvml.Return) { return info, r }
