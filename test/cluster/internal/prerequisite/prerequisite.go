// Package prerequisite owns what a machine must have before a cluster can run
// on it, and how to get what is missing. It changes nothing.
package prerequisite

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/mica-gpu/mica/test/cluster/internal/sandbox"
)

// Machine is what is looked at; tests make their own.
type Machine struct {
	UID          int
	Capabilities uint64
	// Has says whether a program is on PATH.
	Has func(program string) bool
	// Exists says whether a file is there.
	Exists func(path string) bool
	// Writable says whether a file may be written, mounts included.
	Writable func(path string) bool
	// Unified says that cgroups are those of v2 alone.
	Unified bool
}

// This is the machine that the program runs on.
func This() Machine {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	// Without an answer every capability counts as missing, which is reported.
	_ = unix.Capget(&header, &data[0])
	return Machine{
		UID:          os.Geteuid(),
		Capabilities: uint64(data[1].Effective)<<32 | uint64(data[0].Effective),
		Has:          func(program string) bool { _, err := exec.LookPath(program); return err == nil },
		Exists:       func(path string) bool { _, err := os.Stat(path); return err == nil },
		Writable:     func(path string) bool { return unix.Access(path, unix.W_OK) == nil },
		Unified:      sandbox.Unified(),
	}
}

// Missing is one thing that a machine lacks.
type Missing struct {
	// What is lacking and what it is for.
	What string
	// Remedy is the command, or the change, that provides it.
	Remedy string
}

// Error is all that is missing.
type Error []Missing

func (e Error) Error() string {
	var text strings.Builder
	text.WriteString("this machine cannot run the cluster yet:")
	for _, missing := range e {
		fmt.Fprintf(&text, "\n  %s\n      %s", missing.What, missing.Remedy)
	}
	return text.String()
}

// HasCapability says whether a capability, by its number, is there.
func (m Machine) HasCapability(number int) bool { return m.Capabilities&(1<<number) != 0 }

// Check returns an Error with everything that is missing; the NVIDIA driver only
// counts when the cluster uses the machine's own GPUs.
func (m Machine) Check(hostGPU bool) error {
	if m.UID != 0 {
		return Error{{What: "root: containers, mounts and network namespaces need it", Remedy: "sudo, or a root shell"}}
	}
	missing := append(m.checkPrograms(), m.checkKernel()...)
	if hostGPU {
		missing = append(missing, m.checkDriver()...)
	}
	if len(missing) > 0 {
		return Error(missing)
	}
	return nil
}

func (m Machine) checkPrograms() []Missing {
	var missing []Missing
	for _, program := range []struct{ name, use, remedy string }{
		{"go", "builds every component", "install Go 1.26 or newer from https://go.dev/dl"},
		{"gcc", "builds runc, which enters namespaces before Go starts", "apt-get install gcc libc6-dev"},
		{"mount", "is how kubelet mounts volumes", "apt-get install mount"},
		{"umount", "is how kubelet unmounts volumes", "apt-get install mount"},
	} {
		if !m.Has(program.name) {
			missing = append(missing, Missing{What: program.name + ": " + program.use, Remedy: program.remedy})
		}
	}
	return missing
}

// libraryDirs are where distributions and NVIDIA's installer put the driver's
// libraries.
var libraryDirs = []string{
	"/usr/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu/nvidia/current",
	"/usr/lib/aarch64-linux-gnu", "/usr/lib/aarch64-linux-gnu/nvidia/current",
	"/usr/lib64", "/usr/lib", "/lib/x86_64-linux-gnu", "/lib/aarch64-linux-gnu", "/lib64",
}

func (m Machine) checkDriver() []Missing {
	const library = "libnvidia-ml.so.1"
	var missing []Missing
	if !m.Exists("/dev/nvidiactl") {
		missing = append(missing, Missing{
			What:   "/dev/nvidiactl: --gpu host uses the machine's own GPUs",
			Remedy: "load the NVIDIA driver and run nvidia-smi once, which makes the device; or simulate GPUs, without --gpu host",
		})
	}
	if !slices.ContainsFunc(libraryDirs, func(dir string) bool { return m.Exists(dir + "/" + library) }) {
		missing = append(missing, Missing{
			What:   library + ": the plugin asks it for the machine's GPUs, and it is in none of " + strings.Join(libraryDirs, ", "),
			Remedy: "install the NVIDIA driver's libraries of the same version as its kernel module",
		})
	}
	return missing
}

func (m Machine) checkKernel() []Missing {
	var missing []Missing
	for _, capability := range []struct {
		number    int
		name, use string
	}{
		{unix.CAP_SYS_ADMIN, "CAP_SYS_ADMIN", "mounts and namespaces need it"},
		{unix.CAP_NET_ADMIN, "CAP_NET_ADMIN", "pod networks need it"},
		{unix.CAP_MKNOD, "CAP_MKNOD", "device nodes need it"},
	} {
		if !m.HasCapability(capability.number) {
			missing = append(missing, Missing{
				What:   capability.name + ": " + capability.use,
				Remedy: "start the machine's container with --privileged",
			})
		}
	}
	for _, namespace := range []string{"pid", "mnt", "net"} {
		if !m.Exists("/proc/self/ns/" + namespace) {
			missing = append(missing, Missing{What: namespace + " namespaces in the kernel", Remedy: "use a kernel with CONFIG_NAMESPACES"})
		}
	}
	return append(missing, m.checkCgroups()...)
}

// controllers are those that kubelet insists on.
var controllers = []string{"cpu", "cpuacct", "cpuset", "memory", "pids"}

func (m Machine) checkCgroups() []Missing {
	const root = "/sys/fs/cgroup"
	const remedy = "mount the machine's cgroups at " + root + ", writable; in a container: --privileged"
	if m.Unified {
		if !m.Writable(root + "/cgroup.subtree_control") {
			return []Missing{{What: "a writable cgroup v2 hierarchy: pods have a cgroup each", Remedy: remedy}}
		}
		return nil
	}
	var missing []Missing
	for _, controller := range controllers {
		if !m.Writable(root + "/" + controller) {
			missing = append(missing, Missing{What: "a writable cgroup v1 controller " + controller + ": pods have a cgroup each", Remedy: remedy})
		}
	}
	return missing
}
