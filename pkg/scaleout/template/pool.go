package template

import (
	"slices"

	"github.com/mica-gpu/mica/pkg/devices"
)

// claimable counts the devices of a pool that new claims can get.
func claimable(p devices.Pool) int {
	n := 0
	for _, s := range p.Slices {
		for _, d := range s.Spec.Devices {
			if !isWithdrawn(d) {
				n++
			}
		}
	}
	return n
}

func ofDriver(pools []devices.Pool, driver string) []devices.Pool {
	return slices.DeleteFunc(slices.Clone(pools), func(p devices.Pool) bool { return p.ID.Driver != driver })
}
