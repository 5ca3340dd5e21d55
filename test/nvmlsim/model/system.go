package model

import (
	"slices"
	"strconv"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// SystemGetDriverVersion implements nvml.Interface: the kernel module's.
func (s *Session) SystemGetDriverVersion() (string, nvml.Return) {
	if ret := s.enter("nvmlSystemGetDriverVersion", nil); ret != nvml.SUCCESS {
		return "", ret
	}
	return s.machine.Driver().Module, nvml.SUCCESS
}

// SystemGetNVMLVersion implements nvml.Interface: the CUDA major version and the
// driver version, as NVIDIA's library writes it, and that this is none.
func (s *Session) SystemGetNVMLVersion() (string, nvml.Return) {
	if ret := s.enter("nvmlSystemGetNVMLVersion", nil); ret != nvml.SUCCESS {
		return "", ret
	}
	major, _, _ := strings.Cut(s.machine.file.CUDADriverVersion, ".")
	return major + "." + s.machine.Driver().Library + "-simulated", nvml.SUCCESS
}

// SystemGetCudaDriverVersion implements nvml.Interface: 13.0 is 13000.
func (s *Session) SystemGetCudaDriverVersion() (int, nvml.Return) {
	return s.cudaDriverVersion("nvmlSystemGetCudaDriverVersion")
}

// SystemGetCudaDriverVersion_v2 implements nvml.Interface.
func (s *Session) SystemGetCudaDriverVersion_v2() (int, nvml.Return) {
	return s.cudaDriverVersion("nvmlSystemGetCudaDriverVersion_v2")
}

func (s *Session) cudaDriverVersion(function string) (int, nvml.Return) {
	if ret := s.enter(function, nil); ret != nvml.SUCCESS {
		return 0, ret
	}
	parts := cudaVersionPattern.FindStringSubmatch(s.machine.file.CUDADriverVersion)
	major, err1 := strconv.Atoi(parts[1])
	minor, err2 := strconv.Atoi(parts[2])
	if err1 != nil || err2 != nil {
		return 0, nvml.ERROR_UNKNOWN
	}
	return major*1000 + minor*10, nvml.SUCCESS
}

// DeviceGetCount implements nvml.Interface. Lost GPUs count.
func (s *Session) DeviceGetCount() (int, nvml.Return) {
	if ret := s.enter("nvmlDeviceGetCount_v2", nil); ret != nvml.SUCCESS {
		return 0, ret
	}
	return len(s.attached()), nvml.SUCCESS
}

// DeviceGetHandleByIndex implements nvml.Interface.
func (s *Session) DeviceGetHandleByIndex(index int) (nvml.Device, nvml.Return) {
	var found *device
	if attached := s.attached(); index >= 0 && index < len(attached) {
		found = attached[index]
	}
	return s.handle("nvmlDeviceGetHandleByIndex_v2", found, nvml.ERROR_INVALID_ARGUMENT)
}

// DeviceGetHandleByUUID implements nvml.Interface.
func (s *Session) DeviceGetHandleByUUID(uuid string) (nvml.Device, nvml.Return) {
	missing := nvml.ERROR_NOT_FOUND
	if uuid == "" {
		missing = nvml.ERROR_INVALID_ARGUMENT
	}
	return s.handleByUUID("nvmlDeviceGetHandleByUUID", uuid, missing)
}

// handleByUUID finds a GPU or a MIG device.
func (s *Session) handleByUUID(function, uuid string, missing nvml.Return) (nvml.Device, nvml.Return) {
	if c := s.findMIGDevice(uuid); c != nil {
		d := s.migDevice(c)
		found, ret := answer[nvml.Device](d.refuser, function, d)
		if ret == nvml.SUCCESS {
			s.open(func(o *opened) { o.migDevice(c) })
		}
		return found, ret
	}
	return s.handle(function, s.find(func(g *gpu) bool { return g.spec.UUID == uuid }), missing)
}

func (s *Session) findMIGDevice(uuid string) *computeInstance {
	s.machine.mu.Lock()
	defer s.machine.mu.Unlock()
	for _, d := range s.devices {
		if d.gpu.presence == Absent {
			continue
		}
		for _, c := range s.visibleDevices(d.gpu) {
			if c != nil && c.uuid == uuid {
				return c
			}
		}
	}
	return nil
}

// DeviceGetHandleByPciBusId implements nvml.Interface.
func (s *Session) DeviceGetHandleByPciBusId(busID string) (nvml.Device, nvml.Return) {
	const function = "nvmlDeviceGetHandleByPciBusId_v2"
	address, err := ParsePCIAddress(busID)
	if err != nil {
		return s.handle(function, nil, nvml.ERROR_INVALID_ARGUMENT)
	}
	return s.handle(function, s.find(func(g *gpu) bool { return g.address == address }), nvml.ERROR_NOT_FOUND)
}

// handle returns found, or missing where there is none.
func (s *Session) handle(function string, found *device, missing nvml.Return) (nvml.Device, nvml.Return) {
	if found == nil {
		if ret := s.enter(function, nil); ret != nvml.SUCCESS {
			return nil, ret
		}
		return nil, missing
	}
	if ret := s.enter(function, found.gpu); ret != nvml.SUCCESS {
		return nil, ret
	}
	s.open(func(o *opened) { o.gpu(found.gpu) })
	return found, nvml.SUCCESS
}

// open notes what the session has opened, which it keeps until it is shut down.
func (s *Session) open(note func(*opened)) {
	s.machine.mu.Lock()
	defer s.machine.mu.Unlock()
	if s.inits > 0 {
		note(&s.opened)
	}
}

// find finds a GPU that the driver has.
func (s *Session) find(match func(*gpu) bool) *device {
	attached := s.attached()
	if i := slices.IndexFunc(attached, func(d *device) bool { return match(d.gpu) }); i >= 0 {
		return attached[i]
	}
	return nil
}

// attached are the GPUs that the process sees now, at their index.
func (s *Session) attached() []*device {
	s.machine.mu.Lock()
	defer s.machine.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(s.devices), func(d *device) bool { return d.gpu.presence == Absent })
}

// device returns the session's handle of g. It exists for every GPU that the
// session has ever named.
func (s *Session) device(g *gpu) *device {
	return s.devices[slices.IndexFunc(s.devices, func(d *device) bool { return d.gpu == g })]
}
