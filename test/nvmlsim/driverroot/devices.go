package driverroot

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/mica-gpu/mica/test/nvmlsim/model"
)

// Device numbers. The first major is registered to NVIDIA; the others a kernel
// assigns when the modules load, and /proc/devices tells.
const (
	nvidiaMajor     = 195
	nvidiaCtlMinor  = 255
	nvidiaModeset   = 254
	nvidiaUVMMajor  = 510
	nvidiaCapsMajor = 511
)

// Modes of the capability devices.
const (
	configMode   = 0o400
	monitorMode  = 0o444
	instanceMode = 0o444
)

func (t *Tree) devices(machine *model.Machine) {
	t.device("dev/nvidiactl", nvidiaMajor, nvidiaCtlMinor, 0o666)
	t.device("dev/nvidia-modeset", nvidiaMajor, nvidiaModeset, 0o666)
	t.device("dev/nvidia-uvm", nvidiaUVMMajor, 0, 0o666)
	t.device("dev/nvidia-uvm-tools", nvidiaUVMMajor, 1, 0o666)
	if migCapable(machine) {
		t.device(capabilityDevice(model.ConfigCapability), nvidiaCapsMajor, model.ConfigCapability, configMode)
		t.device(capabilityDevice(model.MonitorCapability), nvidiaCapsMajor, model.MonitorCapability, monitorMode)
	}
}

func capabilityDevice(minor int) string { return fmt.Sprintf("dev/nvidia-caps/nvidia-cap%d", minor) }

func migCapable(machine *model.Machine) bool {
	for _, gpu := range machine.GPUs() {
		if gpu.Board.MIG != nil {
			return true
		}
	}
	return false
}

func (t *Tree) device(name string, major uint32, minor int, mode os.FileMode) {
	if t.err != nil {
		return
	}
	path := t.path(name)
	err := unix.Mknod(path, unix.S_IFCHR|uint32(mode), int(unix.Mkdev(major, uint32(minor))))
	if errors.Is(err, unix.EPERM) {
		t.fail(fmt.Errorf("make the character device %s: this user may not: "+
			"run as root with CAP_MKNOD, on a file system that is not mounted for a user namespace", path))
		return
	}
	if err != nil {
		t.fail(fmt.Errorf("make the character device %s: %w", path, err))
		return
	}
	// The process's umask does not apply to what a driver makes.
	t.fail(os.Chmod(path, mode))
	if err := t.openable(path); err != nil {
		t.fail(err)
	}
}

// openable notices a file system that is mounted without devices: everything
// that is given one of these nodes from there could not open it. That there is
// no driver behind the number is as it should be.
func (t *Tree) openable(path string) error {
	var statfs unix.Statfs_t
	if err := unix.Statfs(filepath.Dir(path), &statfs); err != nil {
		return fmt.Errorf("look at the file system of %s: %w", path, err)
	}
	if statfs.Flags&unix.ST_NODEV != 0 {
		return fmt.Errorf("%s lies on a file system that is mounted nodev: choose a driver root elsewhere", path)
	}
	return nil
}
