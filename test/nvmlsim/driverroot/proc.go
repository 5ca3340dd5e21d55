package driverroot

import (
	"fmt"
	"os"
	"strings"

	"github.com/mica-gpu/mica/test/nvmlsim/model"
)

func (t *Tree) proc(machine *model.Machine) {
	t.file("proc/driver/nvidia/version", fmt.Sprintf(
		"NVRM version: NVIDIA UNIX x86_64 Kernel Module  %s  (nvml-sim: simulated, there is no kernel module)\n",
		t.module))
	t.file("proc/driver/nvidia/params", "ModifyDeviceFiles: 1\n"+
		"DeviceFileUID: 0\nDeviceFileGID: 0\nDeviceFileMode: 438\n")
	t.file("proc/devices", fmt.Sprintf("Character devices:\n"+
		"%3d nvidia\n%3d nvidia-modeset\n%3d nvidiactl\n%3d nvidia-uvm\n%3d nvidia-caps\n\nBlock devices:\n",
		model.NVIDIAMajor, model.NVIDIAMajor, model.NVIDIAMajor, model.NVIDIAUVMMajor, model.NVIDIACapsMajor))
	if migCapable(machine) {
		t.capabilities(machine)
	}
}

// information is what the kernel module, if it is loaded, shows of a GPU.
func (t *Tree) information(gpu model.GPUInfo) {
	if t.module == model.NoDriver {
		return
	}
	if gpu.Board.MIG != nil {
		t.dir(instancesDir(gpu.Minor))
	}
	t.file(informationFile(gpu), fmt.Sprintf("Model: \t\t %s\nGPU UUID: \t %s\nBus Location: \t %s\nDevice Minor: \t %d\n",
		gpu.Board.ProductName, gpu.UUID, gpu.Address, gpu.Minor))
}

func informationFile(gpu model.GPUInfo) string {
	return "proc/driver/nvidia/gpus/" + gpu.Address.String() + "/information"
}

// capabilities shows the devices that guard MIG. Instances add theirs when there
// are any; a GPU without instances has an empty directory. mig-minors lists
// those of all GPUs that the machine can have.
func (t *Tree) capabilities(machine *model.Machine) {
	t.file("proc/driver/nvidia/capabilities/mig/config", access(model.ConfigCapability, configMode))
	t.file("proc/driver/nvidia/capabilities/mig/monitor", access(model.MonitorCapability, monitorMode))
	var minors strings.Builder
	fmt.Fprintf(&minors, "config %d\nmonitor %d\n", model.ConfigCapability, model.MonitorCapability)
	for _, gpu := range machine.GPUs() {
		if gpu.Board.MIG == nil {
			continue
		}
		writeMIGMinors(&minors, gpu.Minor)
	}
	t.file("proc/driver/nvidia-caps/mig-minors", minors.String())
}

func instancesDir(gpuMinor int) string {
	return fmt.Sprintf("proc/driver/nvidia/capabilities/gpu%d/mig", gpuMinor)
}

// access is the content of a capability's file.
func access(minor int, mode os.FileMode) string {
	return fmt.Sprintf("DeviceFileMinor: %d\nDeviceFileMode: %d\nDeviceFileModify: 1\n", minor, mode)
}

// writeMIGMinors lists every capability device that instances of a GPU can have.
func writeMIGMinors(to *strings.Builder, gpuMinor int) {
	for gi := range model.MaxGPUInstances {
		fmt.Fprintf(to, "gpu%d/gi%d/access %d\n", gpuMinor, gi, model.GPUInstanceCapability(gpuMinor, gi))
		for ci := range model.MaxComputeInstances {
			fmt.Fprintf(to, "gpu%d/gi%d/ci%d/access %d\n", gpuMinor, gi, ci, model.ComputeInstanceCapability(gpuMinor, gi, ci))
		}
	}
}
