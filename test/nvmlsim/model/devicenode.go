package model

import (
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// DeviceNodes says who makes the device nodes of the machine's /dev. The zero value is
// present.
type DeviceNodes string

const (
	// NodesPresent is a machine whose nodes something has made at boot: udev's rule that
	// runs nvidia-modprobe, nvidia-persistenced, nvidia-cdi-refresh.
	NodesPresent DeviceNodes = "present"
	// NodesOnOpen is a machine that has none of these services. "When a user-space NVIDIA
	// driver component needs to communicate with the NVIDIA kernel module, and the NVIDIA
	// character device files do not yet exist, the user-space component will […] create
	// the device files itself" (README of the driver, "How and when are the NVIDIA device
	// files created?"): in the /dev of its own process, which in a container is not the
	// machine's. Seen with R595 on A30 in a plugin's container: kubernetes-sigs/
	// dra-driver-nvidia-gpu #1380 and #1458.
	//
	// Root's processes make nvidiactl in nvmlInit, which initialises no GPU; nvidia<minor>
	// in nvmlDeviceGetHandleBy*, which "causes NVML to initialize the target GPU" (nvml.h);
	// and the capability nodes of a MIG device with its handle ("nvidia-smi -L will cause
	// any missing device nodes to be created", NVIDIA/gpu-monitoring-tools #142). NVML
	// does not make nvidia-uvm: CUDA does (NVIDIA/nvidia-container-toolkit #50). Guessed: that
	// another user's nvmlInit says that the driver is not loaded.
	NodesOnOpen DeviceNodes = "onOpen"
)

func (d DeviceNodes) validate() error {
	if d == NodesPresent || d == NodesOnOpen || d == "" {
		return nil
	}
	return fmt.Errorf("deviceNodes %q; they are %s or %s", d, NodesPresent, NodesOnOpen)
}

// Majors of the device nodes. The first is registered to NVIDIA; the others a kernel
// assigns when the modules load, and /proc/devices lists.
const (
	NVIDIAMajor     = 195
	NVIDIAUVMMajor  = 510
	NVIDIACapsMajor = 511
)

// DeviceNode is a character device in /dev.
type DeviceNode struct {
	// Name is its path below /dev.
	Name         string
	Major, Minor int
	Mode         fs.FileMode
}

// ControlNode is the node that every client of the driver opens.
func ControlNode() DeviceNode { return DeviceNode{"nvidiactl", NVIDIAMajor, 255, 0o666} }

// GPUNode is the node of one GPU.
func GPUNode(minor int) DeviceNode {
	return DeviceNode{fmt.Sprintf("nvidia%d", minor), NVIDIAMajor, minor, 0o666}
}

// CapabilityNode is a node that guards MIG.
func CapabilityNode(minor int, mode fs.FileMode) DeviceNode {
	return DeviceNode{fmt.Sprintf("nvidia-caps/nvidia-cap%d", minor), NVIDIACapsMajor, minor, mode}
}

// InstanceCapabilityMode is that of the capability nodes of MIG instances.
const InstanceCapabilityMode = 0o444

// opened is what a session has got handles of, and has the device nodes of open until it
// is shut down. Machine.mu guards it.
type opened struct {
	gpus         map[*gpu]bool
	capabilities map[int]bool
}

func (o *opened) gpu(g *gpu) {
	if o.gpus == nil {
		o.gpus = map[*gpu]bool{}
	}
	o.gpus[g] = true
}

func (o *opened) migDevice(c *computeInstance) {
	o.gpu(c.parent.gpu)
	if o.capabilities == nil {
		o.capabilities = map[int]bool{}
	}
	o.capabilities[c.parent.capability()], o.capabilities[c.capability()] = true, true
}

// held reports whether a process other than the session's has a handle of the GPU that
// stands in others' way. It is called with Machine.mu held.
func (m *Machine) held(g *gpu, except *Session) bool {
	if !m.file.Habits.ClientsHold {
		return false
	}
	for s := range m.sessions {
		if s != except && s.opened.gpus[g] {
			return true
		}
	}
	return false
}

// clients counts the processes with a handle of the GPU. It is called with Machine.mu held.
func (m *Machine) clients(g *gpu) int {
	count := 0
	for s := range m.sessions {
		if s.opened.gpus[g] {
			count++
		}
	}
	return count
}

// DeviceNodes are the nodes that the session's process makes where it lacks them, a line
// each: name, major, minor and, octal, mode. It is NOT_SUPPORTED on a machine that has
// its nodes.
func (s *Session) DeviceNodes() (string, nvml.Return) {
	m := s.machine
	if m.file.Habits.DeviceNodes != NodesOnOpen {
		return "", nvml.ERROR_NOT_SUPPORTED
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	nodes := []DeviceNode{ControlNode()}
	for g := range s.opened.gpus {
		nodes = append(nodes, GPUNode(g.spec.Minor))
	}
	for minor := range s.opened.capabilities {
		nodes = append(nodes, CapabilityNode(minor, InstanceCapabilityMode))
	}
	slices.SortFunc(nodes, func(a, b DeviceNode) int { return strings.Compare(a.Name, b.Name) })
	var text strings.Builder
	for _, n := range nodes {
		fmt.Fprintf(&text, "%s %d %d %o\n", n.Name, n.Major, n.Minor, n.Mode)
	}
	return text.String(), nvml.SUCCESS
}
