package model

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Habits are what real machines do and a simulated one does only if its
// description says so. Each is a claim about real machines and has its source
// beside it. Control changes them while the machine runs.
type Habits struct {
	// Latency is how long NVML's functions take; nothing if unset.
	Latency Latency `json:"latency,omitzero"`
	// Fabric is how far the fabric manager has come when the machine starts:
	// "notStarted", "inProgress" or "completed". Unset: completed.
	Fabric Fabric `json:"fabric,omitempty"`
	// DeviceNodes says who makes the device nodes: "present" for whoever made them before,
	// "onOpen" for root's clients of NVML. Unset: present.
	DeviceNodes DeviceNodes `json:"deviceNodes,omitempty"`
	// Driver is what of the driver there is when the machine starts. Unset: all of the
	// driverVersion.
	Driver Driver `json:"driver,omitzero"`
	// ClientsHold says that a process with a handle of a GPU from NVML, such as a metrics
	// exporter, uses the GPU as far as others are concerned: it cannot be reset or
	// detached, and before Hopper a change of its MIG mode stays pending with IN_USE
	// ("currently being used by one or more other processes (e.g. CUDA application or a
	// monitoring application such as another instance of nvidia-smi)", A100,
	// NVIDIA/gpu-operator #118; nvmlDeviceRemoveGpu_v2 in nvml.h). Off by default, because
	// newer drivers let some clients pass (NVIDIA/k8s-device-plugin #201). Whether handles
	// of MIG devices keep their instances from being destroyed is not known
	// (NVIDIA/DCGM #95 is of processes that compute): here they do not.
	ClientsHold bool `json:"clientsHold,omitempty"`
	// MIGRetrain is how long a GPU's links into NVSwitches and its state in the fabric are away after
	// MIG was disabled on it, beginning with Hopper. The kernel driver trains the links again and
	// resumes its probe of the fabric, which it repeats every 5 s, after the call has
	// returned (kernel_mig_manager.c, and GPU_FABRIC_PROBE_DEFAULT_DELAY in gpu_fabric_probe.h of
	// NVIDIA/open-gpu-kernel-modules). Read, not seen on hardware. Assumed: that the state is
	// "inProgress" meanwhile. Unset: not at all.
	MIGRetrain metav1.Duration `json:"migRetrain,omitzero"`
}

// Latency is how long NVML's functions take, before their effect.
type Latency struct {
	// Default is for every function that Functions does not name.
	Default metav1.Duration `json:"default,omitzero"`
	// Functions has the latencies of single functions by their C name. Without a
	// version it stands for all versions of the function.
	Functions map[string]metav1.Duration `json:"functions,omitempty"`
}

// AnyFunction stands for every function that has no latency of its own.
const AnyFunction = "*"

func (h Habits) validate() error {
	var errs []error
	if _, err := h.Latency.faults(); err != nil {
		errs = append(errs, fmt.Errorf("habits.latency: %w", err))
	}
	for _, err := range []error{cmp.Or(h.Fabric, FabricCompleted).validate(), h.DeviceNodes.validate(), h.Driver.validate()} {
		if err != nil {
			errs = append(errs, fmt.Errorf("habits: %w", err))
		}
	}
	return errors.Join(errs...)
}

// faults are those of a machine that starts with the latencies.
func (l Latency) faults() (faults, error) {
	var f faults
	errs := []error{f.setLatency(AnyFunction, l.Default.Duration, false)}
	for _, function := range slices.Sorted(maps.Keys(l.Functions)) {
		errs = append(errs, f.setLatency(function, l.Functions[function].Duration, false))
	}
	return f, errors.Join(errs...)
}
