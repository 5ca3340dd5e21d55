package sandbox

import (
	"fmt"

	"github.com/vishvananda/netlink"
)

// Address gives the loopback interface of this network namespace further
// addresses, each a /32, and brings it up.
func Address(addresses ...string) error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("finding the loopback interface: %w", err)
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return fmt.Errorf("bringing the loopback interface up: %w", err)
	}
	for _, address := range addresses {
		parsed, err := netlink.ParseAddr(address + "/32")
		if err != nil {
			return fmt.Errorf("reading the address %s: %w", address, err)
		}
		if err := netlink.AddrAdd(lo, parsed); err != nil {
			return fmt.Errorf("adding the address %s to the loopback interface: %w", address, err)
		}
	}
	return nil
}
