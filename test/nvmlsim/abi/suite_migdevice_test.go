package abi_test

import (
	"regexp"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mica-gpu/mica/pkg/catalog"
)

var migUUIDPattern = regexp.MustCompile(`^MIG-[0-9a-f]{8}-[0-9a-f]{4}-5[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`)

func (s suite) migDevices(t *testing.T) {
	s.partition(t, func(t *testing.T, lib nvml.Interface, gpu int, d nvml.Device) {
		board := s.board(t, gpu)
		for _, p := range board.MIG.Profiles {
			gi := place(t, d, p, p.Starts[0])
			ci := fill(t, gi, p.Slices)
			mig := migDevice(t, ci)
			s.migIdentity(t, lib, d, mig, board, p)
			id := uuid(t, mig)
			returns(t, "Destroy", nvml.SUCCESS, ci.Destroy())

			const gone = nvml.ERROR_INVALID_ARGUMENT
			refuses(t, "GetUUID of a MIG device that is gone", gone)(mig.GetUUID())
			refuses(t, "GetMemoryInfo of one", gone)(mig.GetMemoryInfo())
			refuses(t, "IsMigDeviceHandle of one", gone)(mig.IsMigDeviceHandle())
			refuses(t, "one by UUID", nvml.ERROR_NOT_FOUND)(lib.DeviceGetHandleByUUID(id))
			again := fill(t, gi, p.Slices)
			if next := uuid(t, migDevice(t, again)); next != id {
				t.Errorf("the next %s in the same place has the UUID %s, want %s again", p.Name, next, id)
			}
			refuses(t, "GetUUID of the one before", gone)(mig.GetUUID())
			returns(t, "Destroy", nvml.SUCCESS, again.Destroy())
			returns(t, "Destroy", nvml.SUCCESS, gi.Destroy())
		}
	})
}

// migIdentity checks what a MIG device that takes all of a GPU instance answers.
func (s suite) migIdentity(t *testing.T, lib nvml.Interface, d, mig nvml.Device, board catalog.Board, p catalog.Profile) {
	t.Helper()
	id := uuid(t, mig)
	if !migUUIDPattern.MatchString(id) {
		t.Errorf("the UUID %q of a MIG device does not look like one of version 5", id)
	}
	gives(t, "a MIG device by UUID", mig)(lib.DeviceGetHandleByUUID(id))
	gives(t, "a MIG device by index", mig)(d.GetMigDeviceHandleByIndex(0))
	gives(t, "the index", 0)(mig.GetIndex())
	gives(t, "whether it is a MIG device", true)(mig.IsMigDeviceHandle())
	gives(t, "the name", board.ProductName+" MIG "+p.Name)(mig.GetName())
	memory := p.MemoryMiB << 20
	gives(t, "the memory", nvml.Memory{Total: memory, Free: memory})(mig.GetMemoryInfo())
	parent, ret := mig.GetDeviceHandleFromMigDeviceHandle()
	returns(t, "GetDeviceHandleFromMigDeviceHandle", nvml.SUCCESS, ret)
	if uuid(t, parent) != uuid(t, d) {
		t.Error("the parent of a MIG device is another GPU")
	}
	gives(t, "the attributes", nvml.DeviceAttributes{
		MultiprocessorCount: uint32(p.Multiprocessors), SharedCopyEngineCount: uint32(p.CopyEngines), SharedDecoderCount: uint32(p.Decoders),
		SharedEncoderCount: uint32(p.Encoders), SharedJpegCount: uint32(p.JPEGEngines), SharedOfaCount: uint32(p.OFAEngines),
		GpuInstanceSliceCount: uint32(p.Slices), ComputeInstanceSliceCount: uint32(p.Slices), MemorySizeMB: p.MemoryMiB,
	})(mig.GetAttributes())
	gives(t, "the compute mode", nvml.COMPUTEMODE_DEFAULT)(mig.GetComputeMode())

	const no = nvml.ERROR_NOT_SUPPORTED
	refuses(t, "GetMinorNumber of a MIG device", no)(mig.GetMinorNumber())
	refuses(t, "GetSupportedEventTypes of a MIG device", no)(mig.GetSupportedEventTypes())
	refuses(t, "GetMigDeviceHandleByIndex of a MIG device", no)(mig.GetMigDeviceHandleByIndex(0))
	_, _, ret = mig.GetMigMode()
	returns(t, "GetMigMode of a MIG device", no, ret)
	returns(t, "SetComputeMode of a MIG device", no, mig.SetComputeMode(nvml.COMPUTEMODE_EXCLUSIVE_PROCESS))
	refuses(t, "GetAttributes of a GPU", no)(d.GetAttributes())
	refuses(t, "GetDeviceHandleFromMigDeviceHandle of a GPU", no)(d.GetDeviceHandleFromMigDeviceHandle())
}

func (s suite) migIndices(t *testing.T) {
	s.partition(t, func(t *testing.T, _ nvml.Interface, gpu int, d nvml.Device) {
		one := smallest(t, s.board(t, gpu))
		var all []nvml.ComputeInstance
		for _, start := range one.Starts {
			all = append(all, fill(t, place(t, d, one, start), 1))
		}
		count, ret := d.GetMaxMigDeviceCount()
		gives(t, "the number of MIG devices", len(all))(count, ret)
		for i, ci := range all {
			gives(t, "a MIG device by index", migDevice(t, ci))(d.GetMigDeviceHandleByIndex(i))
		}
		refuses(t, "an index past the end", nvml.ERROR_INVALID_ARGUMENT)(d.GetMigDeviceHandleByIndex(count))
		// One that goes leaves a hole; the next one takes it.
		info, ret := all[1].GetInfo()
		returns(t, "GetInfo", nvml.SUCCESS, ret)
		returns(t, "Destroy", nvml.SUCCESS, all[1].Destroy())
		refuses(t, "a hole", nvml.ERROR_NOT_FOUND)(d.GetMigDeviceHandleByIndex(1))
		gives(t, "the one after the hole", migDevice(t, all[2]))(d.GetMigDeviceHandleByIndex(2))
		next := migDevice(t, fill(t, info.GpuInstance, 1))
		gives(t, "the next one", next)(d.GetMigDeviceHandleByIndex(1))
		gives(t, "its index", 1)(next.GetIndex())
		gpuInstance, ret := next.GetGpuInstanceId()
		returns(t, "GetGpuInstanceId", nvml.SUCCESS, ret)
		computeInstance, ret := next.GetComputeInstanceId()
		returns(t, "GetComputeInstanceId", nvml.SUCCESS, ret)
		gi := s.state(t).GPUs[gpu].Instances[1]
		if gi.ID != gpuInstance || gi.ComputeInstances[0].ID != computeInstance || gi.ComputeInstances[0].UUID != uuid(t, next) {
			t.Errorf("the MIG device is %d/%d, the machine's state has %+v", gpuInstance, computeInstance, gi)
		}
	})
}
