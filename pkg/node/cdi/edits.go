package cdi

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/nvidia-container-toolkit/pkg/nvcdi"
	transform "github.com/NVIDIA/nvidia-container-toolkit/pkg/nvcdi/transform/root"
	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"
	cdilib "tags.cncf.io/container-device-interface/pkg/cdi"
	cdispec "tags.cncf.io/container-device-interface/specs-go"

	"github.com/mica-gpu/mica/pkg/node/devnode"
	"github.com/mica-gpu/mica/pkg/node/driverroot"
)

// Roots are where the NVIDIA driver is, as the host and as this process see it.
type Roots struct {
	// Host is the driver root on the host, such as "/" or "/run/nvidia/driver".
	Host string
	// Local is the same tree in this process' file system, such as "/driver-root".
	Local string
	// Machine is the host's root as this process sees it, empty if it is not mounted.
	Machine devnode.Host
	// Hook is the path of nvidia-cdi-hook on the host.
	Hook string
	// Batch is true if Hook is this repository's, which can run several hooks in one process,
	// and not NVIDIA's own.
	Batch bool
}

// localDev is the root below which this process finds the device nodes.
func (r Roots) localDev() string { return driverroot.Devices(r.Local, string(r.Machine)) }

func (r Roots) hostDev() string {
	if r.localDev() == r.Local {
		return r.Host
	}
	return "/"
}

// localProc is where this process finds the kernel driver's files: a simulated
// driver has them below its root, a real one in /proc, which no container hides.
func (r Roots) localProc() string {
	if own := filepath.Join(r.Local, "proc"); exists(filepath.Join(own, "driver/nvidia/capabilities")) {
		return own
	}
	return "/proc"
}

// Library is the NVML of the driver. nvcdi initialises NVML by itself, and must not
// while the driver has to be closed.
type Library interface {
	// Use calls do with NVML, which stays initialised until do returns.
	Use(do func(nvml.Interface) error) error
}

// Edits derives what a container needs to use a GPU, with paths of the host.
// Results are remembered for as long as every file that they name exists: a
// driver upgrade replaces the files, so the edits are derived anew. It is safe
// for concurrent use.
type Edits struct {
	library Library
	roots   Roots
	log     klog.Logger

	// deriving is held by the one caller that derives, which can wait for the reset of a
	// GPU. It is locked before mu, which is not held meanwhile: callers whose edits are
	// remembered go on.
	deriving sync.Mutex

	mu sync.Mutex
	// known are the common edits, under the empty key, and those of GPUs by UUID.
	known map[string]*remembered
}

// NewEdits derives nothing yet.
func NewEdits(library Library, roots Roots, log klog.Logger) *Edits {
	return &Edits{library: library, roots: roots, log: log, known: map[string]*remembered{}}
}

// controlDevices are those without which no CUDA program starts. The driver makes
// the last at the first use of CUDA on the host.
var controlDevices = []string{"nvidiactl", "nvidia-uvm"}

// Common are the edits that every GPU container shares: driver libraries,
// control devices, hooks.
func (e *Edits) Common() (cdispec.ContainerEdits, error) {
	return e.recallOrDerive("", e.deriveCommon)
}

// GPU are the edits that one GPU adds: its device nodes.
func (e *Edits) GPU(uuid string) (cdispec.ContainerEdits, error) {
	return e.recallOrDerive(uuid, func(generator nvcdi.Interface) (cdispec.ContainerEdits, error) { return e.deriveGPU(generator, uuid) })
}

// recallOrDerive returns the known edits of a key, or derives and remembers them.
func (e *Edits) recallOrDerive(key string, derive func(nvcdi.Interface) (cdispec.ContainerEdits, error)) (cdispec.ContainerEdits, error) {
	if known, ok := e.recall(key); ok {
		return known, nil
	}
	e.deriving.Lock()
	defer e.deriving.Unlock()
	if known, ok := e.recall(key); ok {
		return known, nil // another caller has derived them
	}
	var edits cdispec.ContainerEdits
	if err := e.library.Use(func(api nvml.Interface) error {
		generator, err := e.generator(api)
		if err == nil {
			edits, err = derive(generator)
		}
		return err
	}); err != nil {
		return cdispec.ContainerEdits{}, err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.known[key] = e.remember(edits)
	return edits, nil
}

func (e *Edits) recall(key string) (edits cdispec.ContainerEdits, ok bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if known := e.known[key]; known != nil && known.complete() {
		return known.edits, true
	}
	return edits, false
}

func (e *Edits) deriveCommon(generator nvcdi.Interface) (cdispec.ContainerEdits, error) {
	edits, err := generator.GetCommonEdits()
	if err != nil {
		return cdispec.ContainerEdits{}, fmt.Errorf("find the NVIDIA driver's files below %s: %w", e.roots.Host, err)
	}
	common := *edits.ContainerEdits
	for _, name := range controlDevices {
		if !hasDeviceNode(common, name) {
			return cdispec.ContainerEdits{}, fmt.Errorf("device node /dev/%s is missing below %s: load the NVIDIA driver and let it create its device nodes (nvidia-modprobe -u -c=0)", name, e.roots.hostDev())
		}
	}
	return e.forHost(common)
}

func (e *Edits) deriveGPU(generator nvcdi.Interface, uuid string) (cdispec.ContainerEdits, error) {
	devices, err := generator.GetDeviceSpecsByID(uuid)
	if err != nil {
		return cdispec.ContainerEdits{}, fmt.Errorf("find the device nodes of GPU %s below %s: %w", uuid, e.roots.hostDev(), err)
	}
	if len(devices) == 0 {
		return cdispec.ContainerEdits{}, fmt.Errorf("nvcdi finds no device for GPU %s: see the plugin's log with -v=4", uuid)
	}
	// The GPU's own node may be missing although those of its display engine exist.
	if _, err := minorOf(devices[0].ContainerEdits, uuid, e.roots.hostDev()); err != nil {
		return cdispec.ContainerEdits{}, err
	}
	return e.forHost(devices[0].ContainerEdits)
}

func (e *Edits) generator(api nvml.Interface) (nvcdi.Interface, error) {
	namer, err := nvcdi.NewDeviceNamer(nvcdi.DeviceNameStrategyUUID)
	if err != nil {
		return nil, fmt.Errorf("prepare to derive CDI edits: %w", err)
	}
	generator, err := nvcdi.New(
		nvcdi.WithNvmlLib(api),
		nvcdi.WithMode(nvcdi.ModeNvml),
		nvcdi.WithDriverRoot(e.roots.Local),
		nvcdi.WithDevRoot(e.roots.localDev()),
		nvcdi.WithNVIDIACDIHookPath(e.roots.Hook),
		nvcdi.WithDeviceNamers(namer),
		nvcdi.WithLogger(logAdapter{e.log}),
		// nvcdi initialises that library for each call, and it crashes in the end:
		// NVIDIA/nvidia-container-toolkit#935.
		nvcdi.WithFeatureFlags(nvcdi.FeatureDisableNvsandboxUtils),
	)
	if err != nil {
		return nil, fmt.Errorf("prepare to derive CDI edits: %w", err)
	}
	return generator, nil
}

// forHost replaces this process' paths by the host's and validates the result.
func (e *Edits) forHost(edits cdispec.ContainerEdits) (cdispec.ContainerEdits, error) {
	transformer := transform.NewDriverTransformer(
		transform.WithDriverRoot(e.roots.Local),
		transform.WithTargetDriverRoot(e.roots.Host),
		transform.WithDevRoot(e.roots.localDev()),
		transform.WithTargetDevRoot(e.roots.hostDev()),
	)
	spec := cdispec.Spec{ContainerEdits: edits}
	if err := transformer.Transform(&spec); err != nil {
		return cdispec.ContainerEdits{}, fmt.Errorf("translate CDI edits from %s to %s: %w", e.roots.Local, e.roots.Host, err)
	}
	if err := (&cdilib.ContainerEdits{ContainerEdits: &spec.ContainerEdits}).Validate(); err != nil {
		return cdispec.ContainerEdits{}, fmt.Errorf("derived CDI edits are invalid: %w", err)
	}
	if e.roots.Batch {
		hooks, err := batchHooks(spec.ContainerEdits.Hooks, e.roots.Hook)
		if err != nil {
			return cdispec.ContainerEdits{}, fmt.Errorf("batch CDI hooks: %w", err)
		}
		spec.ContainerEdits.Hooks = hooks
	}
	for _, node := range spec.ContainerEdits.DeviceNodes {
		e.link(node)
	}
	return spec.ContainerEdits, nil
}

// link lets systemd find a device. A container can be started without.
func (e *Edits) link(node *cdispec.DeviceNode) {
	path, major, minor := hostPath(node), node.Major, node.Minor
	if node.Type == "" { // the runtime looks at the device
		var stat unix.Stat_t
		if err := unix.Stat(e.local(path, e.roots.hostDev(), e.roots.localDev()), &stat); err != nil {
			return // the runtime reports that it is missing
		}
		major, minor = int64(unix.Major(stat.Rdev)), int64(unix.Minor(stat.Rdev))
	}
	if err := e.roots.Machine.Link(path, major, minor); err != nil {
		e.log.Error(err, "A container can lose its GPU when systemd reloads: let the plugin write to /dev/char of the host, as the chart does")
	}
}

// local is a path of the host in this process' file system.
func (e *Edits) local(path, hostRoot, localRoot string) string {
	relative, err := filepath.Rel(hostRoot, path)
	if err != nil || strings.HasPrefix(relative, "..") {
		return path
	}
	return filepath.Join(localRoot, relative)
}

func hostPath(node *cdispec.DeviceNode) string {
	if node.HostPath != "" {
		return node.HostPath
	}
	return node.Path
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

func hasDeviceNode(edits cdispec.ContainerEdits, name string) bool {
	for _, node := range edits.DeviceNodes {
		if filepath.Base(node.Path) == name {
			return true
		}
	}
	return false
}
