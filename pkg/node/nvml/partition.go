package nvml

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mica-gpu/mica/pkg/gpu"
)

// maxInstances is more than the instances of one profile that any board has: at
// most one a slice. NVML's own count is wrong for A30
// (github.com/NVIDIA/mig-parted, pkg/mig/discovery).
const maxInstances = 32

// MIGEnabled tells whether MIG is in force on a GPU now. It is not on a board
// without MIG.
func (l *Library) MIGEnabled(uuid string) (bool, error) {
	handle, err := l.open(uuid)
	if err != nil {
		return false, err
	}
	current, _, ret := handle.GetMigMode()
	if ret == nvml.ERROR_NOT_SUPPORTED {
		return false, nil
	}
	return current == nvml.DEVICE_MIG_ENABLE, check(ret, "read the MIG mode", uuid)
}

// SetMIG switches the MIG mode of a board where that takes effect at once. On
// others it is ErrResetRequired, and nothing is changed: a mode that is pending
// would come with a later reset that nobody expects it from. It is ErrInUse
// while instances exist or a process has the GPU open.
func (l *Library) SetMIG(uuid string, enabled bool) error {
	handle, err := l.open(uuid)
	if err != nil {
		return err
	}
	call, mode := "disable MIG", nvml.DEVICE_MIG_DISABLE
	if enabled {
		call, mode = "enable MIG", nvml.DEVICE_MIG_ENABLE
	}
	switch resetless, err := resetless(handle, uuid); {
	case err != nil:
		return err
	case !resetless:
		return &Error{Call: call, Device: uuid, Return: nvml.ERROR_RESET_REQUIRED}
	}
	activation, ret := handle.SetMigMode(mode)
	if ret != nvml.SUCCESS {
		return check(ret, call, uuid)
	}
	return check(activation, call, uuid)
}

// resetless tells whether the MIG mode changes without a reset of the GPU.
// Drivers that do not know the question are asked for the architecture:
// Hopper was the first.
func resetless(handle nvml.Device, name string) (bool, error) {
	values := []nvml.FieldValue{{FieldId: nvml.FI_DEV_IS_RESETLESS_MIG_SUPPORTED}}
	if ret := handle.GetFieldValues(values); ret == nvml.SUCCESS && nvml.Return(values[0].NvmlReturn) == nvml.SUCCESS {
		return binary.NativeEndian.Uint32(values[0].Value[:]) != 0, nil
	}
	architecture, ret := handle.GetArchitecture()
	return architecture >= nvml.DEVICE_ARCH_HOPPER && architecture != nvml.DEVICE_ARCH_UNKNOWN, check(ret, "read the architecture", name)
}

// Instances are all GPU instances of a GPU, whoever made them; none where MIG
// is not enabled.
func (l *Library) Instances(uuid string) ([]gpu.Instance, error) {
	handle, err := l.open(uuid)
	if err != nil {
		return nil, err
	}
	return readInstances(handle, uuid)
}

// readInstances reads all instances of a GPU, which errors call by the name.
func readInstances(handle nvml.Device, name string) ([]gpu.Instance, error) {
	var instances []gpu.Instance
	for number := range nvml.GPU_INSTANCE_PROFILE_COUNT {
		profile, ret := handle.GetGpuInstanceProfileInfo(number)
		if ret == nvml.ERROR_NOT_SUPPORTED || ret == nvml.ERROR_INVALID_ARGUMENT {
			continue // a profile of other boards, or newer than the driver
		}
		if ret != nvml.SUCCESS {
			return nil, check(ret, "read a MIG profile", name)
		}
		found, err := instancesOf(handle, int(profile.Id), name)
		if err != nil {
			return nil, err
		}
		instances = append(instances, found...)
	}
	return withDevices(handle, instances, name)
}

// InstanceAt finds the GPU instance of a profile that begins at a memory slice,
// nil where there is none.
func (l *Library) InstanceAt(uuid string, profileID, start int) (*gpu.Instance, error) {
	handle, err := l.open(uuid)
	if err != nil {
		return nil, err
	}
	instances, err := instancesOf(handle, profileID, uuid)
	if err != nil {
		return nil, err
	}
	for _, instance := range instances {
		if instance.Start != start {
			continue
		}
		found, err := withDevices(handle, []gpu.Instance{instance}, uuid)
		if err != nil {
			return nil, err
		}
		return &found[0], nil
	}
	return nil, nil //nolint:nilnil // none is an answer
}

// listAttempts bounds how often a list is read again in which an instance was
// destroyed since.
const listAttempts = 3

// instancesOf reads the GPU instances of one profile, without their devices. To
// overlook one that is there would be to forget it, so answers that contradict
// each other are errors.
func instancesOf(handle nvml.Device, profileID int, name string) ([]gpu.Instance, error) {
	var ret nvml.Return
	for range listAttempts {
		var handles []nvml.GpuInstance
		handles, ret = handle.GetGpuInstances(&nvml.GpuInstanceProfileInfo{Id: uint32(profileID), InstanceCount: maxInstances})
		if ret == nvml.ERROR_NOT_SUPPORTED {
			return nil, confirmDisabled(handle, name)
		}
		if ret != nvml.SUCCESS {
			return nil, check(ret, "list the GPU instances", name)
		}
		var instances []gpu.Instance
		if instances, ret = readInfos(handles); ret == nvml.SUCCESS {
			return instances, nil
		}
		if !gone(ret) {
			break
		}
	}
	return nil, check(ret, "read a GPU instance", name)
}

// confirmDisabled makes sure that there can be no instances.
func confirmDisabled(handle nvml.Device, name string) error {
	current, _, ret := handle.GetMigMode()
	switch {
	case ret == nvml.ERROR_NOT_SUPPORTED, ret == nvml.SUCCESS && current != nvml.DEVICE_MIG_ENABLE:
		return nil
	case ret != nvml.SUCCESS:
		return check(ret, "read the MIG mode", name)
	}
	return &Error{Call: "list the GPU instances", Device: name, Return: nvml.ERROR_NOT_SUPPORTED}
}

func readInfos(handles []nvml.GpuInstance) ([]gpu.Instance, nvml.Return) {
	instances := make([]gpu.Instance, 0, len(handles))
	for _, handle := range handles {
		info, ret := handle.GetInfo()
		if ret != nvml.SUCCESS {
			return nil, ret
		}
		instances = append(instances, gpu.Instance{
			ID:        int(info.Id),
			ProfileID: int(info.ProfileId),
			Start:     int(info.Placement.Start),
			Size:      int(info.Placement.Size),
		})
	}
	return instances, nvml.SUCCESS
}

// gone is what NVML answers about a handle whose instance was destroyed.
func gone(ret nvml.Return) bool {
	return ret == nvml.ERROR_NOT_FOUND || ret == nvml.ERROR_INVALID_ARGUMENT
}

// withDevices adds the MIG devices of instances, one a compute instance.
func withDevices(handle nvml.Device, instances []gpu.Instance, name string) ([]gpu.Instance, error) {
	if len(instances) == 0 {
		return nil, nil
	}
	count, ret := handle.GetMaxMigDeviceCount()
	if ret != nvml.SUCCESS {
		return nil, check(ret, "count the MIG devices", name)
	}
	byID := map[int]*gpu.Instance{}
	for i := range instances {
		byID[instances[i].ID] = &instances[i]
	}
	for index := range count {
		mig, ret := handle.GetMigDeviceHandleByIndex(index)
		if gone(ret) {
			continue // indices have holes
		}
		if ret != nvml.SUCCESS {
			return nil, check(ret, "open a MIG device", name)
		}
		parent, device, err := readMIGDevice(mig, name)
		if errors.Is(err, ErrNotFound) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if instance := byID[parent]; instance != nil {
			instance.Devices = append(instance.Devices, device)
		}
	}
	return instances, nil
}

// readMIGDevice reads a MIG device and the ID of its GPU instance. It is
// ErrNotFound when the device was destroyed in the meantime.
func readMIGDevice(mig nvml.Device, name string) (parent int, device gpu.MIGDevice, err error) {
	parent, ret := mig.GetGpuInstanceId()
	if ret == nvml.SUCCESS {
		device.ComputeID, ret = mig.GetComputeInstanceId()
	}
	if ret == nvml.SUCCESS {
		device.UUID, ret = mig.GetUUID()
	}
	if ret == nvml.SUCCESS {
		device.Slices, ret = computeSlices(mig)
	}
	if gone(ret) {
		ret = nvml.ERROR_NOT_FOUND
	}
	return parent, device, check(ret, "read a MIG device", name)
}

// DeviceAt is the UUID of the MIG device that is a compute instance, empty where
// there is none. Unlike a list, which is read while others change it, it overlooks
// nothing.
func (l *Library) DeviceAt(uuid string, instance, compute int) (string, error) {
	handle, err := l.openInstance(uuid, instance)
	if err != nil {
		return "", ignoreGone(err)
	}
	name := fmt.Sprintf("compute instance %d of %s", compute, instanceName(uuid, instance))
	opened, ret := handle.GetComputeInstanceById(compute)
	var info nvml.ComputeInstanceInfo
	if ret == nvml.SUCCESS {
		info, ret = opened.GetInfo()
	}
	device := ""
	if ret == nvml.SUCCESS {
		device, ret = info.Device.GetUUID()
	}
	if gone(ret) {
		return "", nil
	}
	return device, ignoreGone(check(ret, "read the MIG device", name))
}

// computeSlices are none where NVML does not tell.
func computeSlices(mig nvml.Device) (int, nvml.Return) {
	attributes, ret := mig.GetAttributes()
	if ret == nvml.ERROR_NOT_SUPPORTED {
		return 0, nvml.SUCCESS
	}
	return int(attributes.ComputeInstanceSliceCount), ret
}

// CreateInstance makes a GPU instance of a profile at a placement of memory
// slices and returns its ID. It is ErrInsufficientResources where another
// instance is in the way. After any other error the instance may exist all the
// same.
func (l *Library) CreateInstance(uuid string, profileID, start, size int) (instance int, err error) {
	handle, err := l.open(uuid)
	if err != nil {
		return 0, err
	}
	created, ret := handle.CreateGpuInstanceWithPlacement(
		&nvml.GpuInstanceProfileInfo{Id: uint32(profileID)},
		&nvml.GpuInstancePlacement{Start: uint32(start), Size: uint32(size)},
	)
	if ret != nvml.SUCCESS {
		return 0, check(ret, fmt.Sprintf("create a GPU instance of profile %d at memory slice %d", profileID, start), uuid)
	}
	info, ret := created.GetInfo()
	return int(info.Id), check(ret, "read the new GPU instance", uuid)
}

// CreateComputeInstance makes the compute instance that takes all of a GPU
// instance, which is a MIG device. After an error it may exist all the same.
func (l *Library) CreateComputeInstance(uuid string, instance int) (gpu.MIGDevice, error) {
	handle, err := l.openInstance(uuid, instance)
	if err != nil {
		return gpu.MIGDevice{}, err
	}
	name := instanceName(uuid, instance)
	profile, err := largestCompute(handle, name)
	if err != nil {
		return gpu.MIGDevice{}, err
	}
	created, ret := handle.CreateComputeInstance(&profile)
	if ret != nvml.SUCCESS {
		return gpu.MIGDevice{}, check(ret, "create the compute instance", name)
	}
	info, ret := created.GetInfo()
	if ret != nvml.SUCCESS {
		return gpu.MIGDevice{}, check(ret, "read the new compute instance", name)
	}
	device := gpu.MIGDevice{ComputeID: int(info.Id), Slices: int(profile.SliceCount)}
	device.UUID, ret = info.Device.GetUUID()
	return device, check(ret, "read the UUID of the new MIG device", name)
}

// largestCompute is the profile of a compute instance with all slices. The
// first of those with equally many is the plain one.
func largestCompute(handle nvml.GpuInstance, name string) (nvml.ComputeInstanceProfileInfo, error) {
	var largest nvml.ComputeInstanceProfileInfo
	for number := range nvml.COMPUTE_INSTANCE_PROFILE_COUNT {
		profile, ret := handle.GetComputeInstanceProfileInfo(number, nvml.COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED)
		if ret == nvml.ERROR_NOT_SUPPORTED || ret == nvml.ERROR_INVALID_ARGUMENT {
			continue
		}
		if ret != nvml.SUCCESS {
			return largest, check(ret, "read a compute instance profile", name)
		}
		if profile.SliceCount > largest.SliceCount {
			largest = profile
		}
	}
	if largest.SliceCount == 0 {
		return largest, &Error{Call: "find a compute instance profile", Device: name, Return: nvml.ERROR_NOT_SUPPORTED}
	}
	return largest, nil
}

// DestroyComputeInstance ends a MIG device. One that is gone already is no
// error; one that a process uses is ErrInUse.
func (l *Library) DestroyComputeInstance(uuid string, instance, compute int) error {
	handle, err := l.openInstance(uuid, instance)
	if err != nil {
		return ignoreGone(err)
	}
	name := instanceName(uuid, instance)
	device, ret := handle.GetComputeInstanceById(compute)
	if ret == nvml.SUCCESS {
		ret = device.Destroy()
	}
	return ignoreGone(check(ret, fmt.Sprintf("destroy compute instance %d", compute), name))
}

// DestroyInstance ends a GPU instance. One that is gone already is no error;
// one with compute instances is ErrInUse.
func (l *Library) DestroyInstance(uuid string, instance int) error {
	handle, err := l.openInstance(uuid, instance)
	if err != nil {
		return ignoreGone(err)
	}
	return ignoreGone(check(handle.Destroy(), "destroy the instance", instanceName(uuid, instance)))
}

// ignoreGone forgives that what should go is not there, or that MIG, without
// which nothing can be there, is not enabled.
func ignoreGone(err error) error {
	if errors.Is(err, ErrNotFound) || errors.Is(err, ErrNotSupported) {
		return nil
	}
	return err
}

func (l *Library) open(uuid string) (nvml.Device, error) {
	handle, ret := l.api.DeviceGetHandleByUUID(uuid)
	if ret == nvml.ERROR_NOT_FOUND {
		return nil, &Error{Call: "open", Device: uuid, Return: ret, unknownGPU: true}
	}
	return handle, check(ret, "open", uuid)
}

func (l *Library) openInstance(uuid string, instance int) (nvml.GpuInstance, error) {
	handle, err := l.open(uuid)
	if err != nil {
		return nil, err
	}
	opened, ret := handle.GetGpuInstanceById(instance)
	return opened, check(ret, "open", instanceName(uuid, instance))
}

func instanceName(uuid string, instance int) string {
	return fmt.Sprintf("GPU instance %d on %s", instance, uuid)
}
