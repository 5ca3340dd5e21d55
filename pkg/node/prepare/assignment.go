package prepare

import (
	"fmt"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	"k8s.io/utils/ptr"

	"github.com/mica-gpu/mica/pkg/gpu"
	"github.com/mica-gpu/mica/pkg/node/journal"
)

// Assignment is one allocation result: a device for a request.
type Assignment struct {
	// Request is the request's name, or request/alternative.
	Request string
	Shape   gpu.Shape
	// Admin results look at a device without holding it.
	Admin   bool
	ShareID types.UID
	// Interval is the time-slice that the GPU must have, empty for any.
	Interval gpu.Interval
	// MPS is whose client the claim's processes are, zero for nobody's.
	MPS journal.MPS
}

// assign reads a claim's allocation. Results of other drivers are none of our
// business. Every error names the claim and the request or configuration that
// is at fault.
func assign(claim *resourceapi.ResourceClaim, pool Pool) ([]Assignment, error) {
	name := identify(claim)
	if pool.Withheld != nil {
		return nil, fmt.Errorf("claim %s: %w", name, pool.Withheld)
	}
	if claim.Status.Allocation == nil {
		return nil, fmt.Errorf("claim %s is not allocated: it can only be prepared after the scheduler has placed a pod that uses it", name)
	}
	devices := claim.Status.Allocation.Devices
	var assignments []Assignment
	for _, result := range devices.Results {
		if result.Driver != pool.Driver {
			continue
		}
		assignment, err := assignmentOf(result, pool)
		if err != nil {
			return nil, fmt.Errorf("claim %s, request %q: %w", name, result.Request, err)
		}
		assignments = append(assignments, assignment)
	}
	if len(assignments) == 0 {
		return nil, fmt.Errorf("claim %s has no device of driver %s", name, pool.Driver)
	}
	if err := configure(claim.UID, devices.Config, pool.Driver, assignments); err != nil {
		return nil, fmt.Errorf("claim %s, %w", name, err)
	}
	if err := checkDaemons(assignments); err != nil {
		return nil, fmt.Errorf("claim %s, %w", name, err)
	}
	return assignments, nil
}

func assignmentOf(result resourceapi.DeviceRequestAllocationResult, pool Pool) (Assignment, error) {
	if result.Pool != pool.Name {
		return Assignment{}, fmt.Errorf("device %s was allocated from pool %q, but this node's pool is %q: delete the pod so that it is scheduled again", result.Device, result.Pool, pool.Name)
	}
	shape, offered := pool.Shapes[result.Device]
	if !offered && pool.InUse != "" {
		return Assignment{}, fmt.Errorf("device %s is not offered by this node: %s", result.Device, pool.InUse)
	}
	if !offered {
		return Assignment{}, fmt.Errorf("device %s is not on this node, which offers %s: if its GPU was lost, repair it; else delete the pod so that it is scheduled again", result.Device, pool.deviceNames())
	}
	assignment := Assignment{
		Request: result.Request,
		Shape:   shape,
		Admin:   ptr.Deref(result.AdminAccess, false),
		ShareID: ptr.Deref(result.ShareID, ""),
	}
	assignment.takeShare(result, pool.Driver)
	return assignment, nil
}

// takeShare reads how the claim's share of a device is used, and how much of it the
// scheduler has given to the claim.
func (a *Assignment) takeShare(result resourceapi.DeviceRequestAllocationResult, driver string) {
	form := a.Shape.Form()
	if a.Admin || form.Shares == 0 {
		return
	}
	if form.Entire() && form.Interval != gpu.DefaultInterval {
		a.Interval = form.Interval
	}
	if form.Served() {
		a.MPS = journal.MPS{
			Daemon:      a.Shape.Name(),
			MemoryBytes: uint64(consumed(result, driver, gpu.CapacityMemory)),
			Cores:       int(consumed(result, driver, gpu.CapacityCores)),
			MultiUser:   true, // the claims of a namespace know nothing of another's users
		}
	}
}

// consumed is how much of a capacity a result has, 0 where it does not say. The
// scheduler copies the slice's name, which may be qualified by the driver's.
func consumed(result resourceapi.DeviceRequestAllocationResult, driver, capacity string) int64 {
	for _, name := range []string{capacity, driver + "/" + capacity} {
		if quantity, found := result.ConsumedCapacity[resourceapi.QualifiedName(name)]; found {
			return max(0, quantity.Value())
		}
	}
	return 0
}

// served tells that the claim's processes are clients of an MPS daemon.
func (a Assignment) served() bool { return a.MPS.Daemon != "" }

// shares is the number of shares of default size, 0 for a device that the claim has to
// itself.
func (a Assignment) shares() int {
	return a.Shape.Form().Shares
}

// isOf tells whether a configuration's request reference means this
// assignment: the request, or one of its alternatives.
func (a Assignment) isOf(reference string) bool {
	return reference == a.Request || reference == resourceclaim.BaseRequestRef(a.Request)
}

// checkDaemons refuses what no container can use: MPS finds its daemon, and a client's
// limits, in the environment, of which a container has one.
func checkDaemons(assignments []Assignment) error {
	for i, a := range assignments {
		for _, b := range assignments[:i] {
			if a.Admin || b.Admin || a.Request != b.Request || !a.served() && !b.served() {
				continue
			}
			if a.shares()+b.shares() == 0 && a.MPS.Daemon == b.MPS.Daemon {
				continue
			}
			return fmt.Errorf("request %q: it was given %s and %s, but a container can be the client of one MPS daemon only, with one share: ask for each in a request of its own, and use them in different containers",
				a.Request, b.Shape.Name(), a.Shape.Name())
		}
	}
	return nil
}
