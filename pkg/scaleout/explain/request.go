package explain

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

	"github.com/mica-gpu/mica/pkg/devices"
	"github.com/mica-gpu/mica/pkg/excerpt"
	"github.com/mica-gpu/mica/pkg/scaleout/fit"
)

// request is a request of a claim, or an alternative of firstAvailable, named request/alternative.
type request struct {
	resourceapi.DeviceSubRequest
	admin bool
}

// alternatives are the ways to satisfy a request, best first.
func alternatives(r resourceapi.DeviceRequest) []request {
	admin := r.Exactly != nil && ptr.Deref(r.Exactly.AdminAccess, false)
	var found []request
	for _, sub := range fit.Alternatives(r) {
		found = append(found, request{DeviceSubRequest: sub, admin: admin})
	}
	return found
}

// all reports whether every device that matches is requested.
func (r request) all() bool { return r.AllocationMode == resourceapi.DeviceAllocationModeAll }

// least is the number of devices that the request needs: 1 if it asks for all.
func (r request) least() int {
	if r.all() {
		return 1
	}
	return int(r.Count)
}

func (r request) wanted() string {
	if r.all() {
		return "all devices"
	}
	return excerpt.Count(r.least(), "device")
}

// tooSmall says why the capacities of the device do not suffice when no claim uses it; empty: they do.
func (r request) tooSmall(d *devices.Device) string {
	if r.Capacity == nil {
		return ""
	}
	for _, name := range slices.Sorted(maps.Keys(r.Capacity.Requests)) {
		capacity, ok := d.Capacity[name]
		asked := r.Capacity.Requests[name]
		if !ok {
			return fmt.Sprintf("%s of %s is requested, and %s has no such capacity", amount(asked), name, d.Name)
		}
		most := capacity.Value
		takes := d.Consumes(name, r.Capacity)
		tooMuch := false
		if p := capacity.RequestPolicy; p != nil {
			if p.ValidRange != nil && p.ValidRange.Max != nil && p.ValidRange.Max.Cmp(most) < 0 {
				most = *p.ValidRange.Max
			}
			if n := len(p.ValidValues); n > 0 && !slices.ContainsFunc(p.ValidValues, func(v resource.Quantity) bool { return v.Cmp(takes) == 0 }) {
				most, tooMuch = p.ValidValues[n-1], true
			}
		}
		if tooMuch || takes.Cmp(most) > 0 {
			return fmt.Sprintf("%s of %s is requested%s, and %s gives %s at most", amount(asked), name, roundedTo(asked, takes), d.Name, amount(most))
		}
	}
	return ""
}

// roundedTo says what a request is rounded up to, if it is.
func roundedTo(asked, takes resource.Quantity) string {
	if asked.Cmp(takes) == 0 {
		return ""
	}
	return fmt.Sprintf(" (%s in the device's steps)", amount(takes))
}

// withCount is the request of a claim that asks for n devices, or for all if the request does.
func (r request) withCount(n int) []resourceapi.DeviceRequest {
	exactly := &resourceapi.ExactDeviceRequest{
		DeviceClassName: r.DeviceClassName, Selectors: r.Selectors, AllocationMode: r.AllocationMode,
		Tolerations: r.Tolerations, Capacity: r.Capacity, AdminAccess: ptr.To(r.admin),
	}
	if !r.all() {
		exactly.Count = int64(n)
	}
	name, _, _ := strings.Cut(r.Name, "/")
	return []resourceapi.DeviceRequest{{Name: name, Exactly: exactly}}
}
