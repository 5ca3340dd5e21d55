package model

import (
	"fmt"
	"regexp"
	"strconv"
)

// PCIAddress is where a function sits on the PCI buses of a machine.
type PCIAddress struct {
	Domain   uint32
	Bus      uint32
	Device   uint32
	Function uint32
}

var pciAddressPattern = regexp.MustCompile(`^(?:([0-9a-fA-F]{4}|[0-9a-fA-F]{8}):)?([0-9a-fA-F]{2}):([0-9a-fA-F]{2})\.([0-7])$`)

// ParsePCIAddress reads "0000:53:00.0", with a domain of four digits, eight
// digits or none, in either case.
func ParsePCIAddress(text string) (PCIAddress, error) {
	m := pciAddressPattern.FindStringSubmatch(text)
	if m == nil {
		return PCIAddress{}, fmt.Errorf("PCI address %q does not look like 0000:53:00.0", text)
	}
	var parts [4]uint32
	for i, digits := range m[1:] {
		if digits == "" {
			continue
		}
		n, err := strconv.ParseUint(digits, 16, 32)
		if err != nil {
			return PCIAddress{}, fmt.Errorf("PCI address %q: %w", text, err)
		}
		parts[i] = uint32(n)
	}
	if parts[2] > 0x1f {
		return PCIAddress{}, fmt.Errorf("PCI address %q has device number %02x; a bus has 00 to 1f", text, parts[2])
	}
	return PCIAddress{Domain: parts[0], Bus: parts[1], Device: parts[2], Function: parts[3]}, nil
}

// String renders the address as sysfs does: a domain of four digits, lower case.
func (a PCIAddress) String() string {
	return fmt.Sprintf("%04x:%02x:%02x.%x", a.Domain, a.Bus, a.Device, a.Function)
}

// nvmlBusID renders the address as nvmlPciInfo_t.busId: a domain of eight digits, upper case.
func (a PCIAddress) nvmlBusID() string {
	return fmt.Sprintf("%08X:%02X:%02X.%X", a.Domain, a.Bus, a.Device, a.Function)
}

// legacyBusID renders the address as nvmlPciInfo_t.busIdLegacy.
func (a PCIAddress) legacyBusID() string {
	return fmt.Sprintf("%04X:%02X:%02X.%X", a.Domain, a.Bus, a.Device, a.Function)
}
