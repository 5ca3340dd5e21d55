package driverroot

import (
	"path/filepath"

	"github.com/mica-gpu/mica/test/nvmlsim/model"
)

// programs are the tools of the driver.
var programs = []string{"nvidia-smi", "nvidia-cuda-mps-control", "nvidia-cuda-mps-server"}

var libraries = []string{"libnvidia-ml.so", "libcuda.so", "libnvidia-sandboxutils.so"}

// driver shows what of the driver is there and, from then on, its changes.
func (t *Tree) driver(machine *model.Machine) {
	now := machine.Driver()
	t.install(now.Library)
	t.load(machine, now.Module)
	machine.WatchDriver(func(next model.Driver, installed bool) {
		t.follow(func() {
			if installed {
				t.uninstall(now.Library, next.Library)
				t.install(next.Library)
			}
			if next.Module != now.Module {
				t.unload()
				t.load(machine, next.Module)
			}
			now = next
		})
	})
}

// install puts the libraries where nvcdi and the loader look for them: the file
// is named for the driver's version, the links for the interface's. What was there
// is replaced by other files, as a package manager does: who has it open keeps it.
func (t *Tree) install(version string) {
	if version == model.NoDriver {
		return
	}
	for _, library := range libraries {
		name := filepath.Join(LibraryDir, library)
		t.copy(name+"."+version, filepath.Join(t.binaries, library+".1"))
		t.link(name+".1", library+"."+version)
		t.link(name, library+".1")
	}
	for _, program := range programs {
		t.copy(filepath.Join("usr/bin", program), filepath.Join(t.binaries, program))
	}
}

// uninstall removes what the next installation does not replace.
func (t *Tree) uninstall(version, next string) {
	for _, library := range libraries {
		name := filepath.Join(LibraryDir, library)
		if next != version {
			t.remove(name + "." + version)
		}
		if next == model.NoDriver {
			t.remove(name + ".1")
			t.remove(name)
		}
	}
	if next == model.NoDriver {
		for _, program := range programs {
			t.remove(filepath.Join("usr/bin", program))
		}
	}
}

// load shows what the kernel module shows in /proc and /sys. What the PCI devices
// have in /sys stays without it.
func (t *Tree) load(machine *model.Machine, version string) {
	if t.module = version; version == model.NoDriver {
		return
	}
	t.file("sys/module/nvidia/version", version+"\n")
	t.file("sys/module/nvidia/initstate", "live\n")
	t.proc(machine)
	for _, gpu := range machine.GPUs() {
		if t.attached[gpu.Index] {
			t.information(gpu)
		}
	}
}

func (t *Tree) unload() {
	t.remove("sys/module/nvidia")
	t.remove("proc/devices")
	t.remove("proc/driver")
}
