package model

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"

	"github.com/mica-gpu/mica/pkg/catalog"
)

// maxGPUs is NVIDIA's own bound: /dev/nvidia254 and up have other uses.
const maxGPUs = 32

var (
	machineNamePattern   = regexp.MustCompile(`^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$`)
	driverVersionPattern = regexp.MustCompile(`^\d+\.\d+(\.\d+)?$`)
	cudaVersionPattern   = regexp.MustCompile(`^(\d+)\.(\d)$`)
	pciRootPattern       = regexp.MustCompile(`^pci[0-9a-f]{4}:[0-9a-f]{2}$`)
	uuidPattern          = regexp.MustCompile(`^GPU-[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$`)
)

// Validate says in sentences what is wrong with the description, everything at once.
func (f File) Validate() error {
	errs := []error{f.validateSystem(), f.Habits.validate()}
	seen := map[string]string{}
	for i, s := range f.NVSwitches {
		errs = append(errs, f.validateSwitch(i, s, seen))
	}
	if f.Habits.Fabric != "" && len(f.NVSwitches) == 0 {
		errs = append(errs, errors.New("habits have a fabric, which a machine without nvSwitches does not have"))
	}
	for i, g := range f.GPUs {
		errs = append(errs, f.validateGPU(i, g, seen))
	}
	return errors.Join(errs...)
}

func (f File) validateSystem() error {
	var errs []error
	if !machineNamePattern.MatchString(f.Name) || len(f.Name) > 63 {
		errs = append(errs, fmt.Errorf("name %q of the machine is not lower case letters, digits, dots and dashes (63 at most)", f.Name))
	}
	if !driverVersionPattern.MatchString(f.DriverVersion) {
		errs = append(errs, fmt.Errorf("driverVersion %q is not a version like 580.95.05", f.DriverVersion))
	}
	if !cudaVersionPattern.MatchString(f.CUDADriverVersion) {
		errs = append(errs, fmt.Errorf("cudaDriverVersion %q is not a version like 13.0", f.CUDADriverVersion))
	}
	if len(f.GPUs) > maxGPUs {
		errs = append(errs, fmt.Errorf("machine %q has %d GPUs; the driver handles %d at most", f.Name, len(f.GPUs), maxGPUs))
	}
	return errors.Join(errs...)
}

func (f File) validateSwitch(i int, s NVSwitch, seen map[string]string) error {
	what := fmt.Sprintf("NVSwitch %d", i)
	var errs []error
	if s.PCIBusID != "" {
		errs = append(errs, claimAddress(s.PCIBusID, what, seen))
	}
	if (s.PCIBusID == "") != (s.PCIDeviceID == 0) {
		errs = append(errs, fmt.Errorf("%s needs both pciBusID and pciDeviceID, or neither", what))
	}
	if s.LinksPerGPU < 1 {
		errs = append(errs, fmt.Errorf("%s has linksPerGPU %d; a switch that no link ends in is not one", what, s.LinksPerGPU))
	}
	return errors.Join(errs...)
}

func (f File) validateGPU(i int, g GPU, seen map[string]string) error {
	what := fmt.Sprintf("GPU %d", i)
	errs := []error{claimAddress(g.PCIBusID, what, seen), f.validateBoard(what, g)}
	if !pciRootPattern.MatchString(g.PCIRoot) {
		errs = append(errs, fmt.Errorf("%s has pciRoot %q, which does not look like pci0000:44", what, g.PCIRoot))
	}
	for _, bridge := range g.PCIBridges {
		if _, err := ParsePCIAddress(bridge); err != nil {
			errs = append(errs, fmt.Errorf("bridge above %s: %w", what, err))
		}
	}
	errs = append(errs, f.validateMinor(what, g, seen))
	if g.UUID != "" && !uuidPattern.MatchString(g.UUID) {
		errs = append(errs, fmt.Errorf("%s has UUID %q, which does not look like GPU- and 32 hexadecimal digits in five groups", what, g.UUID))
	}
	if err := g.Presence.validate(); err != nil {
		errs = append(errs, fmt.Errorf("%s has %w", what, err))
	}
	return errors.Join(errs...)
}

func (f File) validateBoard(what string, g GPU) error {
	board, found := catalog.BoardByName(g.Board)
	if !found {
		return fmt.Errorf("%s has board %q, which the catalogue does not list", what, g.Board)
	}
	links := 0
	for _, s := range f.NVSwitches {
		links += s.LinksPerGPU
	}
	if board.NVLink != nil && links > board.NVLink.Links {
		return fmt.Errorf("%s has %d NVLinks according to nvSwitches; board %q has %d", what, links, g.Board, board.NVLink.Links)
	}
	return nil
}

func (f File) validateMinor(what string, g GPU, seen map[string]string) error {
	if g.Minor < 0 || g.Minor >= 254 {
		return fmt.Errorf("%s has minor %d; /dev/nvidia0 to /dev/nvidia253 exist", what, g.Minor)
	}
	key := "minor " + strconv.Itoa(g.Minor)
	if owner, taken := seen[key]; taken {
		return fmt.Errorf("%s has minor %d, which %s has too", what, g.Minor, owner)
	}
	seen[key] = what
	return nil
}

// claimAddress checks an address and refuses one that something else has.
func claimAddress(address, what string, seen map[string]string) error {
	if _, err := ParsePCIAddress(address); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	if owner, taken := seen[address]; taken {
		return fmt.Errorf("%s has PCI address %s, which %s has too", what, address, owner)
	}
	seen[address] = what
	return nil
}
