package view

import (
	"fmt"
	"slices"
	"strings"

	"github.com/mica-gpu/mica/api/v1alpha1"
	"github.com/mica-gpu/mica/pkg/scaleout"
	"github.com/mica-gpu/mica/pkg/scaleout/headroom"
)

// addHeadroom adds the devices to keep free now, by name.
func (r *reading) addHeadroom(v *View) {
	v.InvalidHeadrooms = map[string]string{}
	all := pointers(r.headrooms.Items)
	slices.SortFunc(all, func(a, b *v1alpha1.GPUHeadroom) int { return strings.Compare(a.Name, b.Name) })
	for _, object := range all {
		if object.DeletionTimestamp != nil {
			continue
		}
		demand, next, err := headroom.Demand(object, r.Memo.selectors, r.Now)
		if err == nil {
			err = r.checkGroups(demand)
		}
		if err != nil {
			v.InvalidHeadrooms[object.Name] = err.Error()
			v.RefusedHeadrooms = append(v.RefusedHeadrooms, object)
			continue
		}
		v.Again = sooner(v.Again, next)
		v.Headrooms = append(v.Headrooms, object)
		v.Headroom = append(v.Headroom, demand)
	}
}

// checkGroups refuses a headroom if none of its groups exists: it could not be kept free anywhere.
func (r *reading) checkGroups(demand scaleout.Headroom) error {
	if len(demand.Groups) == 0 {
		return nil
	}
	for _, group := range r.members.groups {
		if slices.Contains(demand.Groups, group.Name) {
			return nil
		}
	}
	return fmt.Errorf("nodeGroups names no GPUNodeGroup that exists (%s): name one that does, or none for all", strings.Join(demand.Groups, ", "))
}
