package driverroot

import (
	"path/filepath"

	"github.com/mica-gpu/mica/test/nvmlsim/model"
)

// programs are the tools of the driver.
var programs = []string{"nvidia-smi", "nvidia-cuda-mps-control", "nvidia-cuda-mps-server"}

// driver puts the libraries where nvcdi and the loader look for them: the file
// is named for the driver's version, the links for the interface's.
func (t *Tree) driver(binaries string, machine *model.Machine) {
	version := machine.File().DriverVersion
	for _, library := range []string{"libnvidia-ml.so", "libcuda.so"} {
		name := filepath.Join(LibraryDir, library)
		t.copy(name+"."+version, filepath.Join(binaries, library+".1"))
		t.link(name+".1", library+"."+version)
		t.link(name, library+".1")
	}
	for _, program := range programs {
		t.copy(filepath.Join("usr/bin", program), filepath.Join(binaries, program))
	}
}
