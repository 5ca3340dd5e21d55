package catalog

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"slices"

	"k8s.io/utils/ptr"
)

// instanceFile is instances.yaml.
type instanceFile struct {
	VirtualGPUs []Board   `json:"virtualGPUs"`
	Without     []without `json:"without"`
	Families    []family  `json:"families"`
}

// without names families that have no NVIDIA GPU.
type without struct {
	Families []string `json:"families"`
	Has      string   `json:"has"`
}

// family is a number of instance types that have the same GPUs.
type family struct {
	Family string `json:"family"`
	// Board names the board, where the sizes name no virtual GPU.
	Board string `json:"board"`
	// Missing is what was never captured and a prediction needs.
	Missing      string `json:"missing"`
	Architecture string `json:"architecture"`
	Source       string `json:"source"`
	Sizes        []size `json:"sizes"`
}

// size is one instance type of a family. Lists have an entry a GPU, or one for all.
type size struct {
	Size         string   `json:"size"`
	VirtualGPU   string   `json:"vgpu"`
	GPUs         int      `json:"gpus"`
	VCPUs        int      `json:"vcpus"`
	MemoryGiB    uint64   `json:"memoryGiB"`
	Pods         int      `json:"pods"`
	Roots        []string `json:"roots"`
	Addresses    []string `json:"addresses"`
	NUMANodes    []int    `json:"numaNodes"`
	NVLink       bool     `json:"nvlink"`
	GPUMemoryMiB uint64   `json:"gpuMemoryMiB"`
	Unverified   []string `json:"unverified"`
}

var (
	rootPattern    = regexp.MustCompile(`^pci[0-9a-f]{4}:[0-9a-f]{2}$`)
	addressPattern = regexp.MustCompile(`^[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$`)
)

// readInstances makes the instance types that can be predicted, by name.
func (t tables) readInstances(file instanceFile) (map[string]Instance, error) {
	instances := map[string]Instance{}
	seen := map[string]bool{}
	for _, f := range file.Families {
		if f.Family == "" || f.Source == "" || len(f.Sizes) == 0 {
			return nil, fmt.Errorf("catalogue family %q lacks its name, source or sizes", f.Family)
		}
		for _, s := range f.Sizes {
			name := f.Family + "." + s.Size
			if seen[name] {
				return nil, fmt.Errorf("catalogue lists instance type %q twice", name)
			}
			seen[name] = true
			if s.GPUs < 1 {
				return nil, fmt.Errorf("catalogue instance type %q has no number of GPUs", name)
			}
			if f.Missing != "" {
				continue
			}
			instance, err := t.instance(file, f, s)
			if err != nil {
				return nil, fmt.Errorf("catalogue instance type %q: %w", name, err)
			}
			instances[name] = instance
		}
	}
	return instances, nil
}

func (t tables) instance(file instanceFile, f family, s size) (Instance, error) {
	board, err := t.gpuOf(file, f, s)
	if err != nil {
		return Instance{}, err
	}
	if s.VCPUs < 1 || s.MemoryGiB < 1 {
		return Instance{}, errors.New("it lacks vCPUs or memory")
	}
	instance := f.machine(s)
	instance.Board, instance.NVLink = board, s.NVLink
	instance.GPUs, err = s.slots(board)
	return instance, err
}

// machine is the instance type without its GPUs.
func (f family) machine(s size) Instance {
	return Instance{
		Type: f.Family + "." + s.Size, Architecture: cmp.Or(f.Architecture, "amd64"),
		VCPUs: s.VCPUs, MemoryMiB: s.MemoryGiB << 10, MaxPods: s.Pods,
	}
}

// gpuOf is the board, or the virtual GPU, that the type has.
func (t tables) gpuOf(file instanceFile, f family, s size) (Board, error) {
	name, among := f.Board, t.boards
	if s.VirtualGPU != "" {
		name, among = s.VirtualGPU, file.VirtualGPUs
	}
	i := slices.IndexFunc(among, func(b Board) bool { return b.Name == name })
	if i < 0 {
		return Board{}, fmt.Errorf("there is no GPU %q", name)
	}
	if among[i].MemoryMiB == 0 {
		return Board{}, fmt.Errorf("GPU %q has no memory", name)
	}
	return among[i], nil
}

func (s size) slots(board Board) ([]Slot, error) {
	for what, n := range map[string]int{"roots": len(s.Roots), "addresses": len(s.Addresses), "numaNodes": len(s.NUMANodes)} {
		if n > 1 && n != s.GPUs {
			return nil, fmt.Errorf("it has %d GPUs and %d %s", s.GPUs, n, what)
		}
	}
	if len(s.Addresses) == 1 && s.GPUs > 1 {
		return nil, fmt.Errorf("its %d GPUs cannot have one address", s.GPUs)
	}
	slots := make([]Slot, s.GPUs)
	for i := range slots {
		slot := &slots[i]
		slot.PCIeRoot, slot.PCIBusID = entry(s.Roots, i), entry(s.Addresses, i)
		if slot.PCIeRoot != "" && !rootPattern.MatchString(slot.PCIeRoot) || slot.PCIBusID != "" && !addressPattern.MatchString(slot.PCIBusID) {
			return nil, fmt.Errorf("%q or %q is no PCI address", slot.PCIeRoot, slot.PCIBusID)
		}
		if len(s.NUMANodes) > 0 {
			slot.NUMANode = ptr.To(entry(s.NUMANodes, i))
		}
		slot.MemoryMiB = board.MemoryMiB
		if board.ECC {
			slot.ECC = ptr.To(true)
		}
		if s.GPUMemoryMiB != 0 { // memory that ECC does not take: its mode was not captured
			slot.MemoryMiB, slot.ECC = s.GPUMemoryMiB, nil
		}
	}
	return slots, nil
}

// entry is that of a GPU, or the one for all, or the zero value.
func entry[T any](list []T, i int) T {
	switch {
	case len(list) == 1:
		return list[0]
	case i < len(list):
		return list[i]
	}
	var none T
	return none
}

func (f family) sizes() []string {
	names := make([]string, len(f.Sizes))
	for i, s := range f.Sizes {
		names[i] = f.Family + "." + s.Size
	}
	return names
}
