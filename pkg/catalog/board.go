package catalog

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// PCIDeviceID is the device ID that NVIDIA (vendor 10de) gave a board.
type PCIDeviceID uint16

// String renders the ID as lspci does: four hexadecimal digits.
func (id PCIDeviceID) String() string { return fmt.Sprintf("%04x", uint16(id)) }

// UnmarshalJSON reads an ID written as a string of four hexadecimal digits.
func (id *PCIDeviceID) UnmarshalJSON(raw []byte) error {
	var text string
	if err := json.Unmarshal(raw, &text); err != nil {
		return fmt.Errorf("PCI device ID %s is not a string; quote its four hexadecimal digits", raw)
	}
	n, err := strconv.ParseUint(text, 16, 16)
	if err != nil || len(text) != 4 {
		return fmt.Errorf("PCI device ID %q is not four hexadecimal digits", text)
	}
	*id = PCIDeviceID(n)
	return nil
}

// Board is one product as NVML describes it.
type Board struct {
	// Name identifies the board in this catalogue, for example "h100-sxm-80gb".
	Name string `json:"name"`
	// ProductName is what nvmlDeviceGetName returns.
	ProductName string `json:"productName"`
	// PCIDeviceID is the board's device ID under vendor 10de.
	PCIDeviceID PCIDeviceID `json:"pciDeviceID"`
	// Brand is NVML's brand type, written as go-nvlib writes it: "Nvidia", "Tesla", "NvidiaRTX".
	Brand string `json:"brand"`
	// Architecture is NVML's architecture, written as go-nvlib writes it: "Hopper", "Ada Lovelace".
	Architecture string `json:"architecture"`
	// ComputeCapability is the CUDA compute capability, "major.minor".
	ComputeCapability string `json:"computeCapability"`
	// MemoryMiB is the total that NVML reports in nvmlMemory_t, in MiB. It is
	// less than the product name says where the driver reserves some.
	MemoryMiB uint64 `json:"memoryMiB"`
	// ECC reports whether the board has an ECC mode to report.
	ECC bool `json:"ecc"`
	// NVLink describes the board's NVLink ports; nil for a board without.
	NVLink *NVLink `json:"nvlink,omitempty"`
	// Geometry names the board's MIG geometry; empty for a board without MIG.
	Geometry string `json:"geometry,omitempty"`
	// Source says where the numbers above were captured.
	Source string `json:"source"`
	// Unverified names the fields above that were not captured from hardware,
	// in the data file's spelling.
	Unverified []string `json:"unverified,omitempty"`

	// MIG is the geometry that Geometry names; nil for a board without MIG.
	MIG *Geometry `json:"-"`
}

// NVLink describes the NVLink ports of a board.
type NVLink struct {
	// Links is how many links the board has.
	Links int `json:"links"`
	// Version is the NVLink generation, "major.minor".
	Version string `json:"version"`
}

// MemoryBytes is the total memory that NVML reports, in bytes. The driver's
// total is a whole number of MiB on every board of the catalogue.
func (b Board) MemoryBytes() uint64 { return b.MemoryMiB << 20 }

// CUDAComputeCapability returns the two parts of ComputeCapability.
func (b Board) CUDAComputeCapability() (major, minor int) {
	first, second, _ := strings.Cut(b.ComputeCapability, ".")
	major, _ = strconv.Atoi(first)
	minor, _ = strconv.Atoi(second)
	return major, minor
}

var (
	boardNamePattern  = regexp.MustCompile(`^[a-z0-9]+(-[a-z0-9]+)*$`)
	majorMinorPattern = regexp.MustCompile(`^\d+\.\d+$`)
)

func (b Board) validate() error {
	if !boardNamePattern.MatchString(b.Name) {
		return fmt.Errorf("catalogue board name %q is not lower case words joined by dashes", b.Name)
	}
	for field, value := range map[string]string{
		"productName": b.ProductName, "brand": b.Brand, "architecture": b.Architecture, "source": b.Source,
	} {
		if value == "" {
			return fmt.Errorf("catalogue board %q has no %s", b.Name, field)
		}
	}
	if !majorMinorPattern.MatchString(b.ComputeCapability) {
		return fmt.Errorf("catalogue board %q has compute capability %q, which is not major.minor", b.Name, b.ComputeCapability)
	}
	if b.MemoryMiB == 0 || b.PCIDeviceID == 0 {
		return fmt.Errorf("catalogue board %q lacks its memory or its PCI device ID", b.Name)
	}
	if b.NVLink != nil && (b.NVLink.Links < 1 || !majorMinorPattern.MatchString(b.NVLink.Version)) {
		return fmt.Errorf("catalogue board %q has NVLink without links or version", b.Name)
	}
	return nil
}
