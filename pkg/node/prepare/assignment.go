package prepare

import (
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/resourceclaim"

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

// isOf tells whether a configuration's request reference means this
// assignment: the request, or one of its alternatives.
func (a Assignment) isOf(reference string) bool {
	return reference == a.Request || reference == resourceclaim.BaseRequestRef(a.Request)
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

// record is what will be remembered of the device.
func (a Assignment) record(pool Pool) (journal.Device, error) {
	steps, err := a.steps()
	form := a.Shape.Form()
	return journal.Device{
		Request:     a.Request,
		Pool:        pool.Name,
		Device:      a.Shape.Name(),
		UUID:        a.Shape.Physical().UUID,
		AdminAccess: a.Admin,
		ShareID:     string(a.ShareID),
		Shape:       form.Base,
		Type:        a.Shape.Type(),
		Partition:   a.partition(),
		Shares:      form.Shares,
		Sharing:     form.Sharing,
		Interval:    string(a.Interval),
		MPS:         a.MPS,
		Steps:       steps,
	}, err
}

// partition is what a record says of the shape's partition, zero for an entire GPU. What
// exists already, or is only looked at, is never ours.
func (a Assignment) partition() journal.Partition {
	form := a.Shape.Form()
	if form.Entire() {
		return journal.Partition{}
	}
	uuid := a.Shape.UUID()
	return journal.Partition{
		ProfileID: form.ProfileID, Start: form.Start, Size: form.Size, Foreign: a.Admin || uuid != "",
		UUID: uuid, InstanceID: form.InstanceID, ComputeID: form.ComputeID,
	}
}

// steps are what the preparation does: what the shape takes, and then what its sharing
// takes. Who only looks at a device changes nothing.
func (a Assignment) steps() ([]journal.Step, error) {
	form := a.Shape.Form()
	shape, err := preparationOf(form.Base)
	if err != nil || a.Admin {
		return nil, err
	}
	steps := slices.Clone(shape.steps())
	if a.Interval != "" {
		steps = append(steps, journal.SetTimeSlice)
	}
	if a.served() && form.Entire() {
		steps = append(steps, journal.SetComputeMode)
	}
	if a.served() {
		steps = append(steps, journal.RunDaemon)
	}
	return steps, nil
}
