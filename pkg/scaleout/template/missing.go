package template

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/mica-gpu/mica/pkg/devices"
	"github.com/mica-gpu/mica/pkg/excerpt"
)

// Missing says what a node lacks: pools that the template promises, and slices of its own pools; empty: nothing.
// Without a template, it considers the driver's own pools only. It compares only the number of a driver's pools,
// because they may be named for the node.
func Missing(driver string, t *Template, node *corev1.Node, all []*resourceapi.ResourceSlice) []string {
	pools := devices.OfNode(node.Name, all)
	var missing []string
	for _, p := range pools {
		if t == nil && p.ID.Driver != driver {
			continue
		}
		if !p.Complete() {
			missing = append(missing, fmt.Sprintf("driver %s has published %d of the %d slices of pool %s", p.ID.Driver, len(p.Slices), p.Announced(), p.ID.Name))
		}
	}
	if t == nil {
		if len(ofDriver(pools, driver)) == 0 {
			missing = append(missing, noSlice(driver))
		}
		return missing
	}
	promised := devices.OfNode(t.Node.Name, t.Slices)
	for _, name := range driversOf(promised) {
		missing = append(missing, lacking(name, ofDriver(promised, name), ofDriver(pools, name))...)
	}
	return missing
}

// lacking compares the pools of one driver. Missing has named the incomplete ones already.
func lacking(driver string, promised, published []devices.Pool) []string {
	switch {
	case len(published) == 0:
		return []string{noSlice(driver)}
	case len(published) < len(promised):
		return []string{fmt.Sprintf("driver %s has published %s, and nodes of the group have %d", driver, excerpt.Count(len(published), "pool"), len(promised))}
	}
	has, had := 0, 0
	for _, p := range promised {
		had += claimable(p)
	}
	for _, p := range published {
		if !p.Complete() {
			return nil
		}
		has += claimable(p)
	}
	if has == 0 && had > 0 {
		return []string{fmt.Sprintf("driver %s has published its pool without a device, and nodes of the group have %d", driver, had)}
	}
	return nil
}

func noSlice(driver string) string {
	return fmt.Sprintf("driver %s has published no slice: look whether its plugin runs on the node", driver)
}

func driversOf(pools []devices.Pool) []string {
	var drivers []string
	for _, p := range pools {
		drivers = append(drivers, p.ID.Driver)
	}
	return slices.Compact(drivers) // they are sorted
}
