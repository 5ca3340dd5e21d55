package driverroot

import (
	"fmt"
	"os"
	"path/filepath"
)

const (
	// containerRoot is where NVIDIA's driver container shows its root file system on the host.
	containerRoot = "/run/nvidia/driver"
	// kernelVersion is there when a kernel driver is loaded, in every container too.
	kernelVersion = "driver/nvidia/version"
)

// Hint says what is odd about where the driver is looked for: below host, which this process
// sees at local. It is empty where nothing is. Proc is where procfs is mounted.
func Hint(host, local, proc string) string {
	host = filepath.Clean(host)
	inContainer := filepath.Join(local, containerRoot)
	switch {
	case installed(local) && installed(inContainer):
		return fmt.Sprintf("there is an NVIDIA driver at %s as well: set nvidiaDriverRoot=%s if the kernel has that one loaded", containerRoot, containerRoot)
	case installed(local):
		return ""
	case installed(inContainer):
		return fmt.Sprintf("the NVIDIA driver is at %s: set nvidiaDriverRoot=%s", containerRoot, containerRoot)
	case host == "/":
		return ""
	}
	if target, err := os.Readlink(local); err == nil {
		if _, err := os.Stat(local); err != nil {
			return fmt.Sprintf("%s is a symbolic link to %s, which the plugin does not see: set nvidiaDriverRoot to where the link leads", host, target)
		}
	}
	if _, err := os.Stat(filepath.Join(proc, kernelVersion)); err == nil {
		return fmt.Sprintf("%s has no driver, but the kernel has one loaded: set nvidiaDriverRoot=/ if it is installed on the node itself, else wait for the pod of the driver container", host)
	}
	return host + " has no driver, and the kernel has none loaded: look at the pod of the driver container"
}

// installed tells whether a driver root has a driver's libraries.
func installed(root string) bool {
	for _, anchor := range anchors {
		if _, found := Library(root, anchor); found {
			return true
		}
	}
	return false
}
