package driverroot

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/mica-gpu/mica/test/nvmlsim/model"
)

// Nodes that NVML has nothing to do with.
var otherNodes = []model.DeviceNode{
	{Name: "null", Major: 1, Minor: 3, Mode: 0o666},
	{Name: "nvidia-modeset", Major: model.NVIDIAMajor, Minor: 254, Mode: 0o666},
	{Name: "nvidia-uvm", Major: model.NVIDIAUVMMajor, Minor: 0, Mode: 0o666},
	{Name: "nvidia-uvm-tools", Major: model.NVIDIAUVMMajor, Minor: 1, Mode: 0o666},
}

// Modes of the capability devices that are there without an instance.
const (
	configMode  = 0o400
	monitorMode = 0o444
)

func (t *Tree) devices(machine *model.Machine) {
	t.dir("dev/shm") // as in the root of a driver container, in which programs run
	t.device(model.ControlNode())
	for _, node := range otherNodes {
		t.device(node)
	}
	if migCapable(machine) {
		t.device(model.CapabilityNode(model.ConfigCapability, configMode))
		t.device(model.CapabilityNode(model.MonitorCapability, monitorMode))
	}
}

func migCapable(machine *model.Machine) bool {
	for _, gpu := range machine.GPUs() {
		if gpu.Board.MIG != nil {
			return true
		}
	}
	return false
}

// device makes a node, unless the machine is one whose nodes its clients make.
func (t *Tree) device(node model.DeviceNode) {
	if t.err != nil || t.nodes == model.NodesOnOpen {
		return
	}
	path := t.path(nodePath(node))
	err := unix.Mknod(path, unix.S_IFCHR|uint32(node.Mode), int(unix.Mkdev(uint32(node.Major), uint32(node.Minor))))
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
	t.fail(os.Chmod(path, node.Mode))
	if err := t.openable(path); err != nil {
		t.fail(err)
	}
}

func (t *Tree) removeDevice(node model.DeviceNode) {
	t.remove(nodePath(node))
}

// nodePath is below the root.
func nodePath(node model.DeviceNode) string { return "dev/" + node.Name }

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
