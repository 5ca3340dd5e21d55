package catalog

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Instance is a machine type of EC2.
type Instance struct {
	// Type is EC2's name, such as "p5.48xlarge".
	Type string
	// Architecture is Kubernetes' name for that of the CPU: "amd64" or "arm64".
	Architecture string
	// VCPUs, MemoryMiB and MaxPods are zero if unknown. MemoryMiB is EC2's figure; the
	// kernel reports less.
	VCPUs     int
	MemoryMiB uint64
	MaxPods   int
	// Board is what each GPU is. That of a virtual GPU has no PCI device ID.
	Board Board
	// GPUs are ordered as NVML enumerates them.
	GPUs []Slot
	// NVLink reports that every GPU reaches every other over NVLink.
	NVLink bool
}

// Slot is where a GPU of an Instance sits; what was not captured is left out.
type Slot struct {
	// PCIBusID is in sysfs' form, such as "0000:53:00.0".
	PCIBusID string
	// PCIeRoot is the root complex, such as "pci0000:44".
	PCIeRoot string
	NUMANode *int
	// MemoryMiB and ECC are as NVML reports them.
	MemoryMiB uint64
	ECC       *bool
}

// Errors of InstanceByType.
var (
	// ErrNotPredicted means that the catalogue lacks numbers of the board, so that only
	// NVML on a node shows what it offers. A prediction that is nearly right would start
	// nodes on which the claim does not fit.
	ErrNotPredicted = errors.New("not predicted")
	// ErrUnknownInstance means that the catalogue does not list the type.
	ErrUnknownInstance = errors.New("unknown instance type")
	// ErrNoGPU means that a type has no NVIDIA GPU.
	ErrNoGPU = errors.New("no NVIDIA GPU")
)

// InstanceByType returns the instance type that EC2 calls name. With ErrNotPredicted, it
// returns the machine without its GPUs.
func InstanceByType(name string) (Instance, error) {
	t := load()
	if i, known := t.instances[name]; known {
		return i, nil
	}
	familyName, _, _ := strings.Cut(name, ".")
	for _, w := range t.without {
		if slices.Contains(w.Families, familyName) {
			return Instance{}, fmt.Errorf("instance type %s has %w: it has %s", name, ErrNoGPU, w.Has)
		}
	}
	i := slices.IndexFunc(t.families, func(f family) bool { return f.Family == familyName })
	if i < 0 {
		return Instance{}, fmt.Errorf("%w %s: the catalogue does not have it", ErrUnknownInstance, name)
	}
	f := t.families[i]
	j := slices.IndexFunc(f.Sizes, func(s size) bool { return f.Family+"."+s.Size == name })
	if j < 0 {
		return Instance{}, fmt.Errorf("%w %s: of %s, the catalogue has %s", ErrUnknownInstance, name, familyName, strings.Join(f.sizes(), ", "))
	}
	return f.machine(f.Sizes[j]), fmt.Errorf("GPUs of instance type %s are %w: %s was never captured", name, ErrNotPredicted, f.Missing)
}

// InstanceTypes lists the names of all types that can be predicted, sorted.
func InstanceTypes() []string { return slices.Sorted(maps.Keys(load().instances)) }
