package prepare

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	"k8s.io/utils/ptr"

	"github.com/mica-gpu/mica/pkg/devices"
	"github.com/mica-gpu/mica/pkg/gpu"
	"github.com/mica-gpu/mica/pkg/node/journal"
)

// plan returns the record of the claim as it will be once the claim is prepared.
func (p *Preparer) plan(claim *resourceapi.ResourceClaim, pool Pool) (journal.Record, error) {
	assignments, err := assign(claim, pool)
	if err != nil {
		return journal.Record{}, err
	}
	record := journal.Record{
		ClaimUID:  string(claim.UID),
		Namespace: claim.Namespace,
		Name:      claim.Name,
		PodClaim:  claim.Annotations[resourceapi.PodResourceClaimAnnotation],
		BootID:    p.BootID,
		State:     journal.Prepared,
	}
	for _, assignment := range assignments {
		device, err := assignment.record(pool)
		if err != nil {
			return journal.Record{}, fmt.Errorf("request %q: device %s: %w", assignment.Request, assignment.Shape.Name(), err)
		}
		device.CDIDeviceIDs = []string{p.CDI.DeviceID(claim.UID, nameInClaim(device))}
		record.Devices = append(record.Devices, device)
	}
	return record, nil
}

// nameInClaim distinguishes the devices of a claim, which can have several shares of one.
func nameInClaim(device journal.Device) string {
	if device.ShareID == "" {
		return device.Device
	}
	return device.Device + "-" + device.ShareID
}

// recordsAllocation reports whether the record has exactly the devices that the claim has
// here now: a claim that was released and allocated again can have others, or more.
func (p *Preparer) recordsAllocation(record journal.Record, claim *resourceapi.ResourceClaim) bool {
	return len(record.Devices) > 0 && slices.EqualFunc(p.results(claim), record.Devices, func(r resourceapi.DeviceRequestAllocationResult, d journal.Device) bool {
		return r.Request == d.Request && r.Pool == d.Pool && r.Device == d.Device && string(ptr.Deref(r.ShareID, "")) == d.ShareID
	})
}

// results are those of a claim that are prepared here, in their order.
func (p *Preparer) results(claim *resourceapi.ResourceClaim) []resourceapi.DeviceRequestAllocationResult {
	if claim.Status.Allocation == nil {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(claim.Status.Allocation.Devices.Results), func(r resourceapi.DeviceRequestAllocationResult) bool {
		return r.Driver != p.Driver || r.Pool != p.Pool
	})
}

// Assignment is one allocation result: a device for a request.
type Assignment struct {
	// Request is the request's name, or request/alternative.
	Request string
	Shape   gpu.Shape
	// Admin results look at a device without holding it.
	Admin   bool
	ShareID types.UID
	// Part is the claim's part of the device's time.
	Part float64
	// Interval is the time-slice that the GPU must have, empty for any.
	Interval gpu.Interval
	// Client is set if the claim's processes are clients of an MPS daemon.
	Client client
}

// assign reads a claim's allocation, without the results of other drivers. Every error names
// the request or configuration at fault.
func assign(claim *resourceapi.ResourceClaim, pool Pool) ([]Assignment, error) {
	if pool.Withheld != nil {
		return nil, pool.Withheld
	}
	if claim.Status.Allocation == nil {
		return nil, errors.New("the claim is not allocated: it can only be prepared after the scheduler has placed a pod that uses it")
	}
	devices := claim.Status.Allocation.Devices
	var assignments []Assignment
	for _, result := range devices.Results {
		if result.Driver != pool.Driver {
			continue
		}
		assignment, err := assignmentOf(result, pool)
		if err != nil {
			return nil, fmt.Errorf("request %q: %w", result.Request, err)
		}
		assignments = append(assignments, assignment)
	}
	if len(assignments) == 0 {
		return nil, fmt.Errorf("the claim has no device of driver %s", pool.Driver)
	}
	if err := configure(claim.UID, devices.Config, pool.Driver, assignments); err != nil {
		return nil, err
	}
	return assignments, checkDaemons(assignments)
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
	admin := ptr.Deref(result.AdminAccess, false)
	if !admin && result.ShareID != nil && !shape.Form().Shared() {
		return Assignment{}, fmt.Errorf("device %s was allocated to several claims, but this node offers it to one at a time: unless the plugin has just started, delete the pod so that it is scheduled again", result.Device)
	}
	if several, ok := shape.(gpu.Consumable); ok && result.ShareID == nil {
		shape = several.Whole // it was allocated when the GPU was for one claim
	}
	assignment := Assignment{
		Request: result.Request,
		Shape:   shape,
		Admin:   admin,
		ShareID: ptr.Deref(result.ShareID, ""),
		Part:    1,
	}
	assignment.takeShare(result, pool.Driver)
	return assignment, nil
}

// takeShare reads how the claim's share of a device is used, and how much of it the
// scheduler has given to the claim.
func (a *Assignment) takeShare(result resourceapi.DeviceRequestAllocationResult, driver string) {
	form := a.Shape.Form()
	if a.Admin || !form.Shared() {
		return
	}
	if form.Entire() && form.Interval != gpu.DefaultInterval {
		a.Interval = form.Interval
	}
	if !form.Served() {
		a.Part = partOf(a.Shape, result, driver)
		return
	}
	a.Client = client{
		Daemon:      a.Shape.Name(),
		MemoryBytes: uint64(consumed(result, driver, gpu.CapacityMemory)),
		Cores:       int(consumed(result, driver, gpu.CapacityCores)),
		MultiUser:   true, // claims of a namespace do not know each other's users
	}
	if a.Client.Cores > 0 {
		a.Part = float64(a.Client.Cores) / 100
	}
}

// partOf is the part of a device whose claims take turns: its shares, or else its memory. It is 0 if
// the number of claims is not limited.
func partOf(shape gpu.Shape, result resourceapi.DeviceRequestAllocationResult, driver string) float64 {
	form := shape.Form()
	switch memory := consumed(result, driver, gpu.CapacityMemory); {
	case form.Shares > 0:
		return float64(max(1, consumed(result, driver, gpu.CapacityShares))) * form.DefaultPart()
	case form.Sharing == gpu.ByMemory && memory > 0:
		return min(1, float64(memory)/float64(shape.MemoryBytes()))
	}
	return form.DefaultPart()
}

// consumed returns how much of a capacity a result consumes, 0 if it does not say. The
// scheduler copies the slice's name, which may be qualified by the driver's.
func consumed(result resourceapi.DeviceRequestAllocationResult, driver, capacity string) int64 {
	quantity, _ := devices.Lookup(result.ConsumedCapacity, driver, driver, capacity)
	return max(0, quantity.Value())
}

// served reports whether the claim's processes are clients of an MPS daemon.
func (a Assignment) served() bool { return a.Client.Daemon != "" }

// shared reports whether other claims may have shares of the device.
func (a Assignment) shared() bool { return a.Shape.Form().Shared() }

// isOf reports whether a configuration's request reference means this assignment: the
// request, or one of its alternatives.
func (a Assignment) isOf(reference string) bool {
	return reference == a.Request || reference == resourceclaim.BaseRequestRef(a.Request)
}

// checkDaemons refuses what no container can use: MPS reads its daemon and a client's limits
// from the environment, so a container can have one of each.
func checkDaemons(assignments []Assignment) error {
	for i, a := range assignments {
		for _, b := range assignments[:i] {
			if a.Admin || b.Admin || a.Request != b.Request || !a.served() && !b.served() {
				continue
			}
			if !a.shared() && !b.shared() && a.Client.Daemon == b.Client.Daemon {
				continue
			}
			return fmt.Errorf("request %q: it was given %s and %s, but a container can be the client of one MPS daemon only, with one share: ask for each in a request of its own, and use them in different containers",
				a.Request, b.Shape.Name(), a.Shape.Name())
		}
	}
	return nil
}

// record is what will be remembered of the device.
func (a Assignment) record(pool Pool) (journal.Device, error) {
	device := journal.Device{
		Request:     a.Request,
		Pool:        pool.Name,
		Device:      a.Shape.Name(),
		UUID:        a.Shape.Physical().UUID,
		AdminAccess: a.Admin,
		ShareID:     string(a.ShareID),
		Form:        a.Shape.Form(),
		Type:        a.Shape.Type(),
		Part:        a.Part,
	}
	if uuid := a.Shape.UUID(); uuid != device.UUID {
		device.PartUUID = uuid
	}
	var err error
	device.Steps, err = a.steps()
	return device, err
}

// steps are those of the shape, then those of its sharing. Admin access changes nothing.
func (a Assignment) steps() ([]journal.Step, error) {
	form := a.Shape.Form()
	shape, err := preparationOf(form.Base)
	if err != nil || a.Admin {
		return nil, err
	}
	var steps []journal.Step
	for _, name := range shape.steps() {
		steps = append(steps, journal.Step{Name: name})
	}
	add := func(name string, data any) {
		encoded, encodeErr := json.Marshal(data)
		err = errors.Join(err, encodeErr)
		steps = append(steps, journal.Step{Name: name, Data: encoded})
	}
	if a.Interval != "" {
		add(setTimeSlice, timeSlice{a.Interval})
	}
	if a.served() && form.Entire() {
		add(setComputeMode, computeMode{})
	}
	if a.served() {
		add(runDaemon, a.Client)
	}
	return steps, err
}
