package catalog

import (
	"errors"
	"fmt"
	"slices"

	"github.com/mica-gpu/mica/pkg/gpu"
)

// ErrNotPredicted means that nobody has captured all numbers of a board, so that
// only NVML on a node can tell what it offers.
var ErrNotPredicted = errors.New("not predicted")

// incomplete is a board whose MIG profiles are known in part.
type incomplete struct {
	Board        string        `json:"board"`
	PCIDeviceIDs []PCIDeviceID `json:"pciDeviceIDs"`
	Missing      string        `json:"missing"`
}

// Predict returns the MIG profiles of boards with a PCI device ID, as NVML will
// list them on a node that does not exist yet; none for a board that is known
// to have no MIG. It is ErrNotPredicted where a number is missing: a prediction
// that is nearly right starts nodes on which the claim does not fit.
func Predict(id PCIDeviceID) ([]gpu.Profile, error) {
	if g, known := GeometryByPCIDeviceID(id); known {
		return g.GPUProfiles(), nil
	}
	if _, known := BoardByPCIDeviceID(id); known {
		return nil, nil
	}
	all := load().incomplete
	i := slices.IndexFunc(all, func(b incomplete) bool { return slices.Contains(b.PCIDeviceIDs, id) })
	if i < 0 {
		return nil, fmt.Errorf("MIG profiles of PCI device ID %s are %w: the catalogue does not know the board; use a node that is there as the template", id, ErrNotPredicted)
	}
	return nil, fmt.Errorf("MIG profiles of %s (PCI device ID %s) are %w: %s was never captured; use a node that is there as the template",
		all[i].Board, id, ErrNotPredicted, all[i].Missing)
}
