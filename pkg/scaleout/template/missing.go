package template

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
)

// Missing is what a node lacks of the pools that the template promises, and of its own pools
// that are not complete; empty when it has all. Without a template it tells what the driver's
// own pool of the node lacks. A driver's pools are told apart by no more than their number:
// they may be named for the node.
func Missing(driver string, t *Template, node *corev1.Node, all []*resourceapi.ResourceSlice) []string {
	pools := poolsOf(node, all)
	var missing []string
	for _, p := range pools {
		if t == nil && p.driver != driver {
			continue
		}
		if !p.complete() {
			missing = append(missing, fmt.Sprintf("driver %s has published %d of the %d slices of pool %s", p.driver, len(p.slices), p.announced(), p.name))
		}
	}
	if t == nil {
		if len(ofDriver(pools, driver)) == 0 {
			missing = append(missing, noSlice(driver))
		}
		return missing
	}
	promised := poolsOf(t.Node, t.Slices)
	for _, name := range driversOf(promised) {
		missing = append(missing, lacking(name, ofDriver(promised, name), ofDriver(pools, name))...)
	}
	return missing
}

// lacking compares the pools of one driver. Those that are not complete were named before.
func lacking(driver string, promised, published []*pool) []string {
	switch {
	case len(published) == 0:
		return []string{noSlice(driver)}
	case len(published) < len(promised):
		return []string{fmt.Sprintf("driver %s has published %s, and nodes of the group have %d", driver, count(len(published), "pool"), len(promised))}
	}
	has, had := 0, 0
	for _, p := range promised {
		had += p.devices()
	}
	for _, p := range published {
		if !p.complete() {
			return nil
		}
		has += p.devices()
	}
	if has == 0 && had > 0 {
		return []string{fmt.Sprintf("driver %s has published its pool without a device, and nodes of the group have %d", driver, had)}
	}
	return nil
}

func noSlice(driver string) string {
	return fmt.Sprintf("driver %s has published no slice: look whether its plugin runs on the node", driver)
}

func driversOf(pools []*pool) []string {
	var drivers []string
	for _, p := range pools {
		drivers = append(drivers, p.driver)
	}
	return slices.Compact(drivers) // they are sorted
}
