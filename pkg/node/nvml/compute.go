package nvml

import (
	"fmt"
	"slices"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// Compute modes: how many processes may have a context on a GPU.
const (
	// DefaultComputeMode: any number.
	DefaultComputeMode = "Default"
	// ExclusiveThread: one thread. Drivers no longer set it.
	ExclusiveThread = "ExclusiveThread"
	// ExclusiveProcess: one process, as the server of MPS needs it.
	ExclusiveProcess = "ExclusiveProcess"
	// Prohibited: none.
	Prohibited = "Prohibited"
)

// computeModes are the names by NVML's numbers (nvmlComputeMode_t in nvml.h).
var computeModes = []string{DefaultComputeMode, ExclusiveThread, Prohibited, ExclusiveProcess}

// ComputeMode returns the name of a GPU's compute mode.
func (l *Library) ComputeMode(uuid string) (name string, err error) {
	err = l.on(uuid, func(d *device) error {
		mode, ret := d.GetComputeMode()
		if ret != nvml.SUCCESS {
			return check(ret, "read the compute mode", uuid)
		}
		if mode < 0 || int(mode) >= len(computeModes) {
			return fmt.Errorf("GPU %s has the compute mode %d, and only %s are known", uuid, mode, strings.Join(computeModes, ", "))
		}
		name = computeModes[mode]
		return nil
	})
	return name, err
}

// SetComputeMode sets the compute mode of a GPU for processes that start later. It returns
// ErrNotSupported if MIG is enabled and the mode is not the default.
func (l *Library) SetComputeMode(uuid, mode string) error {
	number := slices.Index(computeModes, mode)
	if number < 0 {
		return fmt.Errorf("GPU %s cannot have the compute mode %q: choose one of %s", uuid, mode, strings.Join(computeModes, ", "))
	}
	return l.on(uuid, func(d *device) error {
		return check(d.SetComputeMode(nvml.ComputeMode(number)), "set the compute mode "+mode, uuid)
	})
}
