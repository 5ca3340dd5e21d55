package catalog

import (
	"fmt"
	"slices"

	"github.com/mica-gpu/mica/pkg/gpu"
)

// Differences describes how the profiles that NVML lists on a node differ from
// those that the catalogue predicts for the product, in sentences. NVML is right:
// the catalogue is for nodes that do not exist yet. There are none for a product that
// the catalogue does not list, nor while the driver lists no profiles: old ones list
// them only while MIG is enabled.
func Differences(productName string, listed []gpu.Profile) []string {
	board, known := BoardByProductName(productName)
	if !known || board.MIG == nil || len(listed) == 0 {
		return nil
	}
	var found []string
	for _, p := range listed {
		predicted, known := board.MIG.ProfileByID(p.ID)
		if !known {
			found = append(found, fmt.Sprintf("profile %s (ID %d) is not predicted", p.Name, p.ID))
			continue
		}
		found = append(found, differences(p, predicted.GPU())...)
	}
	for _, predicted := range board.MIG.Profiles {
		if !slices.ContainsFunc(listed, func(p gpu.Profile) bool { return p.ID == predicted.ID }) {
			found = append(found, fmt.Sprintf("profile %s (ID %d) is predicted and not listed", predicted.Name, predicted.ID))
		}
	}
	return found
}

func differences(p, predicted gpu.Profile) []string {
	var found []string
	compare := func(what string, got, want any) {
		if fmt.Sprint(got) != fmt.Sprint(want) {
			found = append(found, fmt.Sprintf("profile %s (ID %d) has %s %v, predicted was %v", p.Name, p.ID, what, got, want))
		}
	}
	compare("name", p.Name, predicted.Name)
	compare("compute slices", p.Slices, predicted.Slices)
	compare("placements", p.Starts, predicted.Starts)
	compare("memory slices", p.Size, predicted.Size)
	compare("MiB of memory", p.MemoryBytes>>20, predicted.MemoryBytes>>20)
	compare("multiprocessors", p.Multiprocessors, predicted.Multiprocessors)
	compare("copy engines", p.CopyEngines, predicted.CopyEngines)
	compare("decoders", p.Decoders, predicted.Decoders)
	compare("encoders", p.Encoders, predicted.Encoders)
	compare("JPEG engines", p.JPEGEngines, predicted.JPEGEngines)
	compare("OFA engines", p.OFAEngines, predicted.OFAEngines)
	return found
}
