package nvml

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"k8s.io/utils/ptr"

	"github.com/mica-gpu/mica/pkg/gpu"
)

// MIGEnabled reports whether MIG is enabled on a GPU now; false on a board without MIG.
func (l *Library) MIGEnabled(uuid string) (enabled bool, err error) {
	err = l.on(uuid, func(d *device) error {
		mode, err := d.migMode()
		enabled = mode == gpu.MIGEnabled
		return err
	})
	return enabled, err
}

// SetMIG switches the MIG mode of a board that needs no reset for it. On others it returns
// ErrResetRequired and changes nothing: a pending mode would surprise whoever resets the GPU later. It
// returns ErrInUse while instances exist or a process has the GPU open.
func (l *Library) SetMIG(uuid string, enabled bool) error {
	call, mode := "disable MIG", nvml.DEVICE_MIG_DISABLE
	if enabled {
		call, mode = "enable MIG", nvml.DEVICE_MIG_ENABLE
	}
	return l.on(uuid, func(d *device) error {
		switch resetless, err := d.switchable(); {
		case err != nil:
			return err
		case !resetless:
			return &Error{Call: call, Device: uuid, Return: nvml.ERROR_RESET_REQUIRED}
		}
		before := d.disabledAt.Load()
		if !enabled {
			d.disabledAt.Store(ptr.To(time.Now())) // before a look sees the links go
		}
		activation, ret := d.SetMigMode(mode)
		if ret == nvml.SUCCESS {
			ret = activation
		}
		switch {
		case ret != nvml.SUCCESS:
			d.disabledAt.Store(before)
		case enabled:
			d.disabledAt.Store(nil)
		}
		return check(ret, call, uuid)
	})
}

// switchable reports whether the MIG mode changes without a reset. For drivers that cannot say, it
// goes by the architecture: Hopper was the first.
func (d *device) switchable() (bool, error) {
	d.mu.Lock()
	known := d.resetless
	d.mu.Unlock()
	if known != nil {
		return *known, nil
	}
	values := []nvml.FieldValue{{FieldId: nvml.FI_DEV_IS_RESETLESS_MIG_SUPPORTED}}
	resetless := false
	if ret := d.GetFieldValues(values); ret == nvml.SUCCESS && nvml.Return(values[0].NvmlReturn) == nvml.SUCCESS {
		resetless = binary.NativeEndian.Uint32(values[0].Value[:]) != 0
	} else {
		architecture, ret := d.GetArchitecture()
		if ret != nvml.SUCCESS {
			return false, check(ret, "read the architecture", d.uuid)
		}
		resetless = architecture >= nvml.DEVICE_ARCH_HOPPER && architecture != nvml.DEVICE_ARCH_UNKNOWN
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.resetless = &resetless
	return resetless, nil
}

// Instances lists all GPU instances, including foreign ones; none if MIG is disabled. It returns
// ErrSilent if the GPU does not answer.
func (l *Library) Instances(uuid string) ([]gpu.Instance, error) {
	return ask(l, "list the GPU instances", uuid, func(d *device) ([]gpu.Instance, error) {
		instances, _, err := d.readInstances()
		return instances, err
	})
}

// HasInstances reports whether a GPU has any GPU instance, including foreign ones. It returns
// ErrNotSupported if MIG is disabled.
func (l *Library) HasInstances(uuid string) (some bool, err error) {
	err = l.on(uuid, func(d *device) error {
		profiles, err := d.listProfiles()
		if err != nil {
			return err
		}
		if len(profiles) == 0 {
			return &Error{Call: "list the MIG profiles", Device: uuid, Return: nvml.ERROR_NOT_SUPPORTED}
		}
		// Beside any instance there is no room for one with all slices.
		largest := slices.MaxFunc(profiles, func(a, b listedProfile) int { return int(a.info.SliceCount) - int(b.info.SliceCount) })
		room, ret := d.GetGpuInstanceRemainingCapacity(&largest.info)
		some = room == 0
		return check(ret, "count the room for GPU instances", uuid)
	})
	return some, err
}

// readInstances reads all instances of a GPU, with their handles by profile ID.
func (d *device) readInstances() ([]gpu.Instance, map[int][]nvml.GpuInstance, error) {
	profiles, err := d.listProfiles()
	if err != nil {
		return nil, nil, err
	}
	var instances []gpu.Instance
	handles := map[int][]nvml.GpuInstance{}
	for _, profile := range profiles {
		id := int(profile.info.Id)
		listed, found, err := d.instancesOf(id)
		if err != nil {
			return nil, nil, err
		}
		handles[id] = listed
		for i, instance := range found {
			if instance.Devices, err = d.devicesIn(listed[i], instance); err != nil {
				return nil, nil, err
			}
			instances = append(instances, instance)
		}
	}
	return instances, handles, nil
}

// InstanceAt finds the GPU instance of a profile that begins at a memory slice, or nil.
func (l *Library) InstanceAt(uuid string, profileID, start int) (found *gpu.Instance, err error) {
	err = l.on(uuid, func(d *device) error {
		for range listAttempts {
			listed, instances, err := d.instancesOf(profileID)
			if err != nil {
				return err
			}
			i := slices.IndexFunc(instances, func(instance gpu.Instance) bool { return instance.Start == start })
			if i < 0 {
				return nil
			}
			instance, ret := d.readInfo(listed[i]) // the caller may destroy it
			if gone(ret) || ret == nvml.SUCCESS && (instance.Start != start || instance.ProfileID != profileID) {
				d.forgetInstances()
				continue
			}
			if ret == nvml.SUCCESS {
				instance.Devices, err = d.devicesIn(listed[i], instance)
				found = &instance
			}
			return cmp.Or(check(ret, "read a GPU instance", uuid), err)
		}
		return check(nvml.ERROR_NOT_FOUND, "read a GPU instance", uuid)
	})
	if err != nil {
		return nil, err
	}
	return found, nil
}

// listAttempts bounds how often a list is read again because an instance in it was destroyed.
const listAttempts = 3

// instancesOf reads the GPU instances of one profile, without their devices. It must not overlook an
// instance, so contradictory answers are errors.
func (d *device) instancesOf(profileID int) ([]nvml.GpuInstance, []gpu.Instance, error) {
	if d.disabled.Load() { // when it was last asked
		if mode, err := d.migMode(); err != nil || mode != gpu.MIGEnabled {
			return nil, nil, err
		}
	}
	var ret nvml.Return
	for range listAttempts {
		var listed []nvml.GpuInstance
		listed, ret = d.list(profileID)
		if ret == nvml.ERROR_NOT_SUPPORTED {
			return nil, nil, d.confirmDisabled()
		}
		if ret != nvml.SUCCESS {
			return nil, nil, check(ret, "list the GPU instances", d.uuid)
		}
		d.forget(func(handle nvml.GpuInstance, of gpu.Instance) bool {
			return of.ProfileID == profileID && !slices.Contains(listed, handle)
		})
		instances := make([]gpu.Instance, len(listed))
		for i := 0; i < len(listed) && ret == nvml.SUCCESS; i++ {
			instances[i], ret = d.info(listed[i])
		}
		if ret == nvml.SUCCESS {
			return listed, instances, nil
		}
		if !gone(ret) {
			break
		}
	}
	return nil, nil, check(ret, "read a GPU instance", d.uuid)
}

// confirmDisabled verifies that there can be no instances.
func (d *device) confirmDisabled() error {
	mode, err := d.migMode()
	if err == nil && mode == gpu.MIGEnabled {
		err = &Error{Call: "list the GPU instances", Device: d.uuid, Return: nvml.ERROR_NOT_SUPPORTED}
	}
	return err
}

// maxComputeInstances is how many compute instances fit into a GPU instance, with IDs from 0: NVIDIA's
// kernel driver has that many capability devices for each.
const maxComputeInstances = 8

// devicesIn reads the MIG devices in a GPU instance, one per compute instance. If the known ones fill
// it, it only confirms them.
func (d *device) devicesIn(handle nvml.GpuInstance, instance gpu.Instance) ([]gpu.MIGDevice, error) {
	slices, known := d.slicesOf(instance.ProfileID), []gpu.MIGDevice(nil)
	for _, mig := range d.knownIn(instance.ID) {
		there, err := d.confirm(mig)
		if err != nil {
			return nil, err
		}
		if there {
			known = append(known, mig.info)
		}
	}
	if slices > 0 && slicesIn(known) == slices {
		return known, nil
	}
	var devices []gpu.MIGDevice
	for id := range maxComputeInstances {
		if slices > 0 && slicesIn(devices) == slices {
			break
		}
		mig, err := d.readMIG(handle, instance.ID, id)
		if errors.Is(err, ErrNotFound) {
			continue
		}
		if err != nil {
			return nil, err
		}
		devices = append(devices, mig.info)
	}
	return devices, nil
}

func slicesIn(devices []gpu.MIGDevice) (sum int) {
	for _, device := range devices {
		sum += device.Slices
	}
	return sum
}

// readMIG reads a MIG device by its IDs. It returns ErrNotFound if there is none.
func (d *device) readMIG(instance nvml.GpuInstance, instanceID, computeID int) (migHandles, error) {
	mig := migHandles{instanceID: instanceID, instance: instance, info: gpu.MIGDevice{ComputeID: computeID}}
	var ret nvml.Return
	if mig.compute, ret = instance.GetComputeInstanceById(computeID); ret == nvml.SUCCESS {
		ret = mig.read()
	}
	if ret == nvml.SUCCESS {
		mig.info.Slices, ret = computeSlices(mig.device)
	}
	if gone(ret) {
		ret = nvml.ERROR_NOT_FOUND
	}
	if ret == nvml.SUCCESS {
		d.keepMIG(mig)
	}
	return mig, check(ret, fmt.Sprintf("read the MIG device of compute instance %d", computeID), d.instanceName(instanceID))
}

// read reads the MIG device of a compute instance.
func (m *migHandles) read() nvml.Return {
	info, ret := m.compute.GetInfo()
	if ret == nvml.SUCCESS {
		m.device, m.info.ComputeID = info.Device, int(info.Id)
		m.info.UUID, ret = m.device.GetUUID()
	}
	return ret
}

// computeSlices is 0 if NVML does not report them.
func computeSlices(mig nvml.Device) (int, nvml.Return) {
	attributes, ret := mig.GetAttributes()
	if ret == nvml.ERROR_NOT_SUPPORTED {
		return 0, nvml.SUCCESS
	}
	return int(attributes.ComputeInstanceSliceCount), ret
}

// DeviceAt is the UUID of the MIG device of a compute instance, empty if there is none. Unlike a list
// that others change meanwhile, it overlooks nothing.
func (l *Library) DeviceAt(uuid string, instance, compute int) (mig string, err error) {
	err = l.on(uuid, func(d *device) error {
		for _, known := range d.knownIn(instance) {
			if known.info.ComputeID != compute {
				continue
			}
			if there, err := d.confirm(known); err != nil || there {
				mig = known.info.UUID
				return err
			}
		}
		opened, ret := d.GetGpuInstanceById(instance)
		if gone(ret) || ret == nvml.ERROR_NOT_SUPPORTED {
			return nil
		}
		if ret != nvml.SUCCESS {
			return check(ret, "open", d.instanceName(instance))
		}
		read, err := d.readMIG(opened, instance, compute)
		mig = read.info.UUID
		return ignoreGone(err)
	})
	if err != nil {
		return "", err
	}
	return mig, nil
}

// CreateInstance creates a GPU instance of a profile at a placement of memory slices and returns its
// ID. It returns ErrInsufficientResources if another instance is in the way. After any other error the
// instance may exist.
func (l *Library) CreateInstance(uuid string, profileID, start, size int) (instance int, err error) {
	err = l.on(uuid, func(d *device) error {
		created, ret := d.CreateGpuInstanceWithPlacement(
			&nvml.GpuInstanceProfileInfo{Id: uint32(profileID)},
			&nvml.GpuInstancePlacement{Start: uint32(start), Size: uint32(size)},
		)
		if ret == nvml.ERROR_INSUFFICIENT_RESOURCES {
			d.forgetInstances() // the known handles showed the place as free
		}
		if ret != nvml.SUCCESS {
			return check(ret, fmt.Sprintf("create a GPU instance of profile %d at memory slice %d", profileID, start), uuid)
		}
		info, ret := d.readInfo(created)
		instance = info.ID
		return check(ret, "read the new GPU instance", uuid)
	})
	return instance, err
}

// CreateComputeInstance creates the compute instance that fills a GPU instance, which is a MIG device.
// After an error it may exist.
func (l *Library) CreateComputeInstance(uuid string, instance int) (made gpu.MIGDevice, err error) {
	err = l.on(uuid, func(d *device) error {
		handle, known := d.handleOf(instance)
		if !known {
			var ret nvml.Return
			if handle, ret = d.GetGpuInstanceById(instance); ret != nvml.SUCCESS {
				return check(ret, "open", d.instanceName(instance))
			}
		}
		profile, err := d.fillerOf(handle, instance)
		if err != nil {
			return err
		}
		mig := migHandles{instanceID: instance, instance: handle}
		var ret nvml.Return
		mig.compute, ret = handle.CreateComputeInstance(&profile)
		d.remade.Store(true)
		if ret != nvml.SUCCESS {
			d.forgetInstance(instance)
			return check(ret, "create the compute instance", d.instanceName(instance))
		}
		if ret = mig.read(); ret != nvml.SUCCESS {
			return check(ret, "read the new MIG device", d.instanceName(instance))
		}
		mig.info.Slices = int(profile.SliceCount)
		d.keepMIG(mig)
		made = mig.info
		return nil
	})
	return made, err
}

// fillerOf returns the profile of the compute instance that fills a GPU instance. All GPU instances
// of one profile share it.
func (d *device) fillerOf(handle nvml.GpuInstance, id int) (nvml.ComputeInstanceProfileInfo, error) {
	of, ret := d.info(handle)
	if ret != nvml.SUCCESS {
		return nvml.ComputeInstanceProfileInfo{}, check(ret, "read a GPU instance", d.uuid)
	}
	profile := d.profile(of.ProfileID)
	if filler, known := d.session.filler(profile); known {
		return filler, nil
	}
	filler, err := largestCompute(handle, d.instanceName(id))
	if err == nil {
		d.session.keepFiller(profile, filler)
	}
	return filler, err
}

// largestCompute is the profile of a compute instance with all slices; of several, the first is the
// plain one.
func largestCompute(handle nvml.GpuInstance, name string) (nvml.ComputeInstanceProfileInfo, error) {
	var largest nvml.ComputeInstanceProfileInfo
	for number := range nvml.COMPUTE_INSTANCE_PROFILE_COUNT {
		profile, ret := handle.GetComputeInstanceProfileInfo(number, nvml.COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED)
		if absent(ret) {
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

// DestroyComputeInstance destroys a MIG device that DeviceAt or a list has just returned. It returns
// nil if the device is gone, and ErrInUse if a process uses it.
func (l *Library) DestroyComputeInstance(uuid string, instance, compute int) error {
	return ignoreGone(l.on(uuid, func(d *device) error {
		ret := nvml.ERROR_NOT_FOUND
		for _, mig := range d.knownIn(instance) {
			if mig.info.ComputeID == compute {
				if ret = mig.compute.Destroy(); ret == nvml.SUCCESS || gone(ret) {
					d.forgetMIG(mig.info.UUID)
				}
			}
		}
		if gone(ret) {
			ret = d.onInstance(instance, func(handle nvml.GpuInstance) nvml.Return {
				opened, ret := handle.GetComputeInstanceById(compute)
				if ret == nvml.SUCCESS {
					ret = opened.Destroy()
				}
				return ret
			})
		}
		return check(ret, fmt.Sprintf("destroy compute instance %d", compute), d.instanceName(instance))
	}))
}

// DestroyInstance destroys a GPU instance and verifies that it is gone: a forgotten one would never be
// found again. It returns nil if the instance is gone, and ErrInUse if it has compute instances.
func (l *Library) DestroyInstance(uuid string, instance int) error {
	return ignoreGone(l.on(uuid, func(d *device) error {
		ret := d.onInstance(instance, func(handle nvml.GpuInstance) nvml.Return { return handle.Destroy() })
		d.forgetInstance(instance)
		if ret != nvml.SUCCESS && !gone(ret) && ret != nvml.ERROR_NOT_SUPPORTED {
			return check(ret, "destroy the instance", d.instanceName(instance))
		}
		if _, ret = d.GetGpuInstanceById(instance); ret == nvml.SUCCESS {
			ret = nvml.ERROR_UNKNOWN
		}
		return check(ret, "make sure of the end", d.instanceName(instance))
	}))
}

// ignoreGone ignores errors that mean that the object is gone, or that MIG is disabled and there can
// be none.
func ignoreGone(err error) error {
	if errors.Is(err, ErrNotFound) || errors.Is(err, ErrNotSupported) {
		return nil
	}
	return err
}
