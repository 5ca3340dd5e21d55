// Package nvml is the boundary to NVIDIA's management library: it finds and loads libnvidia-ml.so.1,
// reads what other packages need as plain gpu values, and turns return codes into typed errors. No
// other package calls go-nvml. It never decides about claims or slices.
package nvml

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/NVIDIA/go-nvml/pkg/dl"
	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mica-gpu/mica/pkg/node/driverroot"
)

// soname is the file name of the driver's NVML.
const soname = "libnvidia-ml.so.1"

// requiredSymbols must be in the library before go-nvml may call it: a missing symbol ends the process
// at call time instead of returning an error.
var requiredSymbols = []string{
	"nvmlInit_v2",
	"nvmlShutdown",
	"nvmlErrorString",
	"nvmlSystemGetDriverVersion",
	"nvmlSystemGetCudaDriverVersion_v2",
	"nvmlDeviceGetCount_v2",
	"nvmlDeviceGetHandleByIndex_v2",
	"nvmlDeviceGetHandleByUUID",
	"nvmlDeviceGetIndex",
	"nvmlDeviceGetMinorNumber",
	"nvmlDeviceGetUUID",
	"nvmlDeviceGetName",
	"nvmlDeviceGetBrand",
	"nvmlDeviceGetArchitecture",
	"nvmlDeviceGetCudaComputeCapability",
	"nvmlDeviceGetMemoryInfo",
	"nvmlDeviceGetMemoryInfo_v2",
	"nvmlDeviceGetUtilizationRates",
	"nvmlDeviceGetTemperature",
	"nvmlDeviceGetPowerUsage",
	"nvmlDeviceGetPciInfo_v3",
	"nvmlDeviceGetEccMode",
	"nvmlDeviceGetComputeMode",
	"nvmlDeviceGetComputeRunningProcesses_v3",
	"nvmlDeviceSetComputeMode",
	"nvmlDeviceGetMigMode",
	"nvmlDeviceGetPersistenceMode",
	"nvmlDeviceSetPersistenceMode",
	"nvmlDeviceSetMigMode",
	"nvmlDeviceGetFieldValues",
	"nvmlDeviceGetMaxMigDeviceCount",
	"nvmlDeviceGetMigDeviceHandleByIndex",
	"nvmlDeviceGetGpuInstanceId",
	"nvmlDeviceGetComputeInstanceId",
	"nvmlDeviceGetGpuInstanceProfileInfo",
	"nvmlDeviceGetGpuInstancePossiblePlacements_v2",
	"nvmlDeviceGetGpuInstances",
	"nvmlDeviceGetGpuInstanceRemainingCapacity",
	"nvmlDeviceGetAttributes_v2",
	"nvmlDeviceGetDeviceHandleFromMigDeviceHandle",
	"nvmlDeviceGetGpuInstanceById",
	"nvmlDeviceCreateGpuInstanceWithPlacement",
	"nvmlGpuInstanceGetInfo",
	"nvmlGpuInstanceDestroy",
	"nvmlGpuInstanceGetComputeInstanceProfileInfo",
	"nvmlGpuInstanceCreateComputeInstance",
	"nvmlGpuInstanceGetComputeInstanceById",
	"nvmlComputeInstanceGetInfo_v2",
	"nvmlComputeInstanceDestroy",
	"nvmlGpmQueryDeviceSupport",
	"nvmlGpmSampleAlloc",
	"nvmlGpmSampleFree",
	"nvmlGpmMigSampleGet",
	"nvmlGpmMetricsGet",
	"nvmlDeviceGetNvLinkState",
	"nvmlDeviceGetNvLinkRemotePciInfo_v2",
	"nvmlDeviceGetNvLinkRemoteDeviceType",
	"nvmlDeviceGetSupportedEventTypes",
	"nvmlDeviceRegisterEvents",
	"nvmlEventSetCreate",
	"nvmlEventSetFree",
	"nvmlEventSetWait_v2",
}

// Library is NVML, initialized on demand. It is safe for concurrent use. Handles are read once and
// kept until an answer makes them doubtful or NVML is closed.
type Library struct {
	sessions sessions
	sysfs    fs.ReadLinkFS
	path     string
	// root is the directory of the library.
	root string
}

// Open finds NVML below driverRoot, loads and initializes it. It returns ErrLibrary or
// ErrDriverNotLoaded if waiting for the driver can help, and ErrReplaced if only a new process can.
func Open(driverRoot string) (*Library, error) {
	path, err := findLibrary(driverRoot)
	if err != nil {
		return nil, err
	}
	if err := checkReplaced(path); err != nil {
		return nil, err
	}
	if err := checkSymbols(path); err != nil {
		return nil, err
	}
	remember(path)
	library, err := New(nvml.New(nvml.WithLibraryPath(path)), sysfsOf(driverRoot))
	if err != nil {
		return nil, fmt.Errorf("initialize NVML from %s: %w%s", path, err, remedy(err))
	}
	library.path, library.root = path, driverRoot
	return library, nil
}

// remedy says what to do about a kernel module that does not answer.
func remedy(err error) string {
	var failed *Error
	switch {
	case errors.Is(err, ErrDriverNotLoaded):
		return ": load it with modprobe nvidia, or look at the pod of the driver container"
	case errors.As(err, &failed) && failed.Return == nvml.ERROR_LIB_RM_VERSION_MISMATCH:
		return ": the library is of another version than the kernel module, as after an upgrade of the NVIDIA driver: reboot the node, or unload the old module and load the new one"
	}
	return ""
}

// sysfsOf is the driver root's own /sys if it has one, as a driver container and a simulated driver
// do, else the machine's.
func sysfsOf(driverRoot string) fs.ReadLinkFS {
	own := filepath.Join(driverRoot, "sys")
	if _, err := os.Stat(filepath.Join(own, "bus/pci/devices")); err != nil {
		own = "/sys"
	}
	sysfs, _ := os.DirFS(own).(fs.ReadLinkFS) // it is one, says os.DirFS
	return sysfs
}

// New initializes an NVML, which may be an in-process stand-in. sysfs is the machine's /sys, which has
// the PCIe root and NUMA node of GPUs.
func New(api nvml.Interface, sysfs fs.ReadLinkFS) (*Library, error) {
	l := &Library{sessions: sessions{api: api, listening: make(chan struct{}, 1)}, sysfs: sysfs}
	return l, l.sessions.begin()
}

// Close closes NVML. Later calls fail.
func (l *Library) Close() error { return l.sessions.close() }

// Path is the loaded file, empty for an in-process stand-in.
func (l *Library) Path() string { return l.path }

// Use calls do with NVML within a session, for nvcdi, which initializes NVML itself. Closed and Rest
// do not close NVML before do returns. Only pkg/node/cdi may use it.
func (l *Library) Use(do func(nvml.Interface) error) error {
	in, leave, err := l.sessions.enter()
	if err != nil {
		return err
	}
	defer leave()
	return do(in.api)
}

func findLibrary(driverRoot string) (string, error) {
	if path, found := driverroot.Library(driverRoot, soname); found {
		return path, nil
	}
	return "", fmt.Errorf("%w: %s is in none of the library directories below %s: install the NVIDIA driver there or set --nvidia-driver-root (and the chart's nvidiaDriverRoot) to where it is installed",
		ErrLibrary, soname, driverRoot)
}

// checkSymbols verifies that the file is NVML without calling it.
func checkSymbols(path string) error {
	library := dl.New(path, dl.RTLD_LAZY|dl.RTLD_LOCAL)
	if err := library.Open(); err != nil {
		return fmt.Errorf("%w: load %s: %w: reinstall the NVIDIA driver's user-space libraries", ErrLibrary, path, err)
	}
	defer func() { _ = library.Close() }() // a handle that leaks only keeps the file mapped
	for _, symbol := range requiredSymbols {
		if err := library.Lookup(symbol); err != nil {
			return fmt.Errorf("%w: %s lacks the function %s, so it is another library or a driver older than R535: install a supported NVIDIA driver", ErrLibrary, path, symbol)
		}
	}
	return nil
}
