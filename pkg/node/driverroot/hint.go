package driverroot

import (
	"fmt"
	"os"
	"path/filepath"
)

const (
	// containerRoot is the root file system of NVIDIA's driver container on the host.
	containerRoot = "/run/nvidia/driver"
	// kernelVersion exists if a kernel driver is loaded, also in containers.
	kernelVersion = "driver/nvidia/version"
)

// Hint describes what is odd about the driver root: host, which this process sees at local. It is
// empty if nothing is odd. proc is where procfs is mounted.
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
			return fmt.Sprintf("%s is a symbolic link to %s, which the plugin cannot see: set nvidiaDriverRoot to the target of the link", host, target)
		}
	}
	if _, err := os.Stat(filepath.Join(proc, kernelVersion)); err == nil {
		return fmt.Sprintf("%s has no driver, but the kernel has one loaded: set nvidiaDriverRoot=/ if it is installed on the node itself, else wait for the pod of the driver container", host)
	}
	return host + " has no driver, and the kernel has none loaded: look at the pod of the driver container"
}

// installed reports whether a driver root has a driver's libraries.
func installed(root string) bool {
	for _, anchor := range anchors {
		if _, found := Library(root, anchor); found {
			return true
		}
	}
	return false
}
