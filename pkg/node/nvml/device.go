package nvml

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mica-gpu/mica/pkg/gpu"
)

// device is a GPU of a session with its known handles. A handle is only a hint: its instance may be
// destroyed, and NVML may reuse the handle. So an instance is changed by its handle only right after
// its MIG device answered with the UUID that was read together with the handle. The handle then stands
// for what is in that place of the GPU, from which the driver derives the UUID. That does not prove
// that nothing was destroyed there meanwhile: callers must know which claim made the instance
// (prepare.Preparer.Seen).
type device struct {
	nvml.Device
	uuid    string
	session *session

	// disabled: MIG was disabled when the mode was last read.
	disabled atomic.Bool
	// fabricless: the driver does not report the state of the GPU's NVLink fabric.
	fabricless atomic.Bool

	// disabledAt is when this process disabled MIG, nil once the GPU is linked again. wasLinked: a look
	// has seen it linked.
	disabledAt atomic.Pointer[time.Time]
	wasLinked  atomic.Bool

	mu sync.Mutex
	// instances are the GPU instances of handles, as last read.
	instances map[nvml.GpuInstance]gpu.Instance
	// migs are MIG devices by UUID.
	migs map[string]migHandles
	// The fields below are the board's and do not change.
	profiles  []listedProfile
	resetless *bool

	// remade: this process created a MIG device since the last look, or may have. One that replaces
	// another may leave everything else as it was.
	remade atomic.Bool
	// looking guards sight during a look at the GPU.
	looking sync.Mutex
	sight   *sight
}

// migHandles are the handles of a MIG device.
type migHandles struct {
	instanceID int
	instance   nvml.GpuInstance
	compute    nvml.ComputeInstance
	device     nvml.Device
	info       gpu.MIGDevice
}

func newDevice(in *session, uuid string, handle nvml.Device) *device {
	return &device{
		Device: handle, uuid: uuid, session: in,
		instances: map[nvml.GpuInstance]gpu.Instance{},
		migs:      map[string]migHandles{},
	}
}

// maxInstances is more than any board has instances of one profile: at most one per slice. NVML's own
// count is wrong for A30 (github.com/NVIDIA/mig-parted, pkg/mig/discovery).
const maxInstances = 32

// list reads the handles of the instances of a profile.
func (d *device) list(profileID int) ([]nvml.GpuInstance, nvml.Return) {
	return d.GetGpuInstances(&nvml.GpuInstanceProfileInfo{Id: uint32(profileID), InstanceCount: maxInstances})
}

// info returns the instance of a handle, as last read.
func (d *device) info(handle nvml.GpuInstance) (gpu.Instance, nvml.Return) {
	d.mu.Lock()
	known, found := d.instances[handle]
	d.mu.Unlock()
	if found {
		return known, nvml.SUCCESS
	}
	return d.readInfo(handle)
}

func (d *device) readInfo(handle nvml.GpuInstance) (gpu.Instance, nvml.Return) {
	info, ret := handle.GetInfo()
	if ret != nvml.SUCCESS {
		return gpu.Instance{}, ret
	}
	read := gpu.Instance{
		ID: int(info.Id), ProfileID: int(info.ProfileId), Start: int(info.Placement.Start), Size: int(info.Placement.Size),
	}
	d.mu.Lock()
	d.instances[handle] = read
	d.mu.Unlock()
	// A former instance of that ID is gone.
	d.forget(func(other nvml.GpuInstance, of gpu.Instance) bool { return of.ID == read.ID && other != handle })
	return read, nvml.SUCCESS
}

// forget drops instances and the MIG devices in them.
func (d *device) forget(which func(nvml.GpuInstance, gpu.Instance) bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	maps.DeleteFunc(d.instances, which)
	maps.DeleteFunc(d.migs, func(_ string, mig migHandles) bool {
		_, known := d.instances[mig.instance]
		return !known
	})
}

// onInstance calls NVML for the instance with an ID, by a known handle if it is still valid, else by a
// new one.
func (d *device) onInstance(id int, call func(nvml.GpuInstance) nvml.Return) nvml.Return {
	if known, found := d.handleOf(id); found {
		if ret := call(known); !gone(ret) {
			return ret
		}
		d.forgetInstance(id)
	}
	opened, ret := d.GetGpuInstanceById(id)
	if ret != nvml.SUCCESS {
		return ret
	}
	return call(opened)
}

func (d *device) handleOf(id int) (nvml.GpuInstance, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for handle, of := range d.instances {
		if of.ID == id {
			return handle, true
		}
	}
	return nil, false
}

func (d *device) forgetInstance(id int) {
	d.forget(func(_ nvml.GpuInstance, of gpu.Instance) bool { return of.ID == id })
}

// forgetInstances drops all instances, such as after a contradictory answer of the driver.
func (d *device) forgetInstances() {
	d.forget(func(nvml.GpuInstance, gpu.Instance) bool { return true })
}

// knownIn lists the known MIG devices in a GPU instance by ID.
func (d *device) knownIn(id int) []migHandles {
	d.mu.Lock()
	defer d.mu.Unlock()
	var known []migHandles
	for _, mig := range d.migs {
		if mig.instanceID == id {
			known = append(known, mig)
		}
	}
	slices.SortFunc(known, func(a, b migHandles) int { return a.info.ComputeID - b.info.ComputeID })
	return known
}

// mig returns the handles of a MIG device, if known.
func (d *device) mig(uuid string) (migHandles, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	known, found := d.migs[uuid]
	return known, found
}

func (d *device) keepMIG(mig migHandles) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.migs[mig.info.UUID] = mig
}

func (d *device) forgetMIG(uuid string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.migs, uuid)
}

// confirm reports whether a MIG device is still the one of the handles, and drops the handles if not.
func (d *device) confirm(mig migHandles) (bool, error) {
	uuid, ret := mig.device.GetUUID()
	if ret == nvml.SUCCESS && uuid == mig.info.UUID {
		return true, nil
	}
	d.forgetMIG(mig.info.UUID)
	if ret == nvml.SUCCESS || gone(ret) || ret == nvml.ERROR_NOT_SUPPORTED {
		return false, nil
	}
	return false, check(ret, "read the UUID of "+mig.info.UUID, d.uuid)
}

// listedProfile is a profile of GPU instances that the driver lists for the board.
type listedProfile struct {
	number int // NVML's constant
	info   nvml.GpuInstanceProfileInfo
}

// listProfiles lists the profiles in NVML's order. Old drivers (R535) list none while MIG is disabled.
func (d *device) listProfiles() ([]listedProfile, error) {
	d.mu.Lock()
	known := d.profiles
	d.mu.Unlock()
	if len(known) > 0 {
		return known, nil
	}
	var listed []listedProfile
	for number := range nvml.GPU_INSTANCE_PROFILE_COUNT {
		info, ret := d.GetGpuInstanceProfileInfo(number)
		if absent(ret) {
			continue // a profile of other boards, or newer than the driver
		}
		if ret != nvml.SUCCESS {
			return nil, check(ret, "read a MIG profile", d.uuid)
		}
		if !slices.ContainsFunc(listed, func(p listedProfile) bool { return p.info.Id == info.Id }) { // one can be under two constants
			listed = append(listed, listedProfile{number, info})
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.profiles = listed
	return listed, nil
}

// profile returns the profile with an ID, zero if unknown.
func (d *device) profile(id int) nvml.GpuInstanceProfileInfo {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, p := range d.profiles {
		if int(p.info.Id) == id {
			return p.info
		}
	}
	return nvml.GpuInstanceProfileInfo{}
}

// slicesOf returns the compute slices of a profile, 0 if unknown.
func (d *device) slicesOf(profileID int) int { return int(d.profile(profileID).SliceCount) }

// absent reports whether the board or driver lacks a profile.
func absent(ret nvml.Return) bool {
	return ret == nvml.ERROR_NOT_SUPPORTED || ret == nvml.ERROR_INVALID_ARGUMENT
}

func (d *device) instanceName(id int) string {
	return fmt.Sprintf("GPU instance %d on %s", id, d.uuid)
}

// gone reports whether the instance of a handle was destroyed.
func gone(ret nvml.Return) bool {
	return ret == nvml.ERROR_NOT_FOUND || ret == nvml.ERROR_INVALID_ARGUMENT
}
