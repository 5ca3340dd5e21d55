package prepare

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/mica-gpu/mica/pkg/gpu"
	"github.com/mica-gpu/mica/pkg/node/cdi"
	"github.com/mica-gpu/mica/pkg/node/journal"
)

// Offer is what this node offers to claims.
type Offer struct {
	// Driver and Pool select the results that are ours.
	Driver, Pool string
	// Shapes are keyed by device name.
	Shapes map[string]gpu.Shape
}

// NewOffer indexes shapes by device name.
func NewOffer(driver, pool string, shapes []gpu.Shape) Offer {
	offer := Offer{Driver: driver, Pool: pool, Shapes: make(map[string]gpu.Shape, len(shapes))}
	for _, shape := range shapes {
		offer.Shapes[shape.Name()] = shape
	}
	return offer
}

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

// Plan is what must be done to prepare a claim.
type Plan struct {
	Claim       cdi.Claim
	Assignments []Assignment
}

// parts are what the claim holds for itself.
func (p Plan) parts() []part {
	var parts []part
	for _, assignment := range p.Assignments {
		if !assignment.Admin {
			parts = append(parts, part{assignment.Shape.Physical().UUID, assignment.sharedAs(), assignment.Shape.Form().Placement})
		}
	}
	return parts
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
func (a Assignment) steps() []journal.Step {
	if a.Admin {
		return nil
	}
	form := a.Shape.Form()
	steps := slices.Clone(preparations[form.Base].steps())
	if a.Interval != "" {
		steps = append(steps, journal.SetTimeSlice)
	}
	if a.served() && form.Entire() {
		steps = append(steps, journal.SetComputeMode)
	}
	if a.served() {
		steps = append(steps, journal.RunDaemon)
	}
	return steps
}

// served tells that the claim's processes are clients of an MPS daemon.
func (a Assignment) served() bool { return a.MPS.Daemon != "" }

// Exclusive lists the UUIDs of the GPUs of which the claim holds something, sorted.
func (p Plan) Exclusive() []string {
	var uuids []string
	for _, assignment := range p.Assignments {
		if !assignment.Admin {
			uuids = append(uuids, assignment.Shape.Physical().UUID)
		}
	}
	slices.Sort(uuids)
	return slices.Compact(uuids)
}

// NewPlan reads a claim's allocation. Results of other drivers are none of our
// business. Every error names the claim and the request or configuration that
// is at fault.
func NewPlan(claim *resourceapi.ResourceClaim, offer Offer) (Plan, error) {
	plan := Plan{Claim: identify(claim)}
	if claim.Status.Allocation == nil {
		return Plan{}, fmt.Errorf("claim %s is not allocated: it can only be prepared after the scheduler has placed a pod that uses it", plan.Claim)
	}
	devices := claim.Status.Allocation.Devices
	for _, result := range devices.Results {
		if result.Driver != offer.Driver {
			continue
		}
		assignment, err := assign(result, offer)
		if err != nil {
			return Plan{}, fmt.Errorf("claim %s, request %q: %w", plan.Claim, result.Request, err)
		}
		plan.Assignments = append(plan.Assignments, assignment)
	}
	if len(plan.Assignments) == 0 {
		return Plan{}, fmt.Errorf("claim %s has no device of driver %s", plan.Claim, offer.Driver)
	}
	if err := configure(claim.UID, devices.Config, offer.Driver, plan.Assignments); err != nil {
		return Plan{}, fmt.Errorf("claim %s, %w", plan.Claim, err)
	}
	if err := checkDaemons(plan.Assignments); err != nil {
		return Plan{}, fmt.Errorf("claim %s, %w", plan.Claim, err)
	}
	return plan, nil
}

func identify(claim *resourceapi.ResourceClaim) cdi.Claim {
	return cdi.Claim{
		UID:            claim.UID,
		NamespacedName: types.NamespacedName{Namespace: claim.Namespace, Name: claim.Name},
	}
}

func assign(result resourceapi.DeviceRequestAllocationResult, offer Offer) (Assignment, error) {
	if result.Pool != offer.Pool {
		return Assignment{}, fmt.Errorf("device %s was allocated from pool %q, but this node's pool is %q: delete the pod so that it is scheduled again", result.Device, result.Pool, offer.Pool)
	}
	shape, offered := offer.Shapes[result.Device]
	if !offered {
		return Assignment{}, fmt.Errorf("device %s is not on this node, which offers %s: if its GPU was lost, repair it; else delete the pod so that it is scheduled again", result.Device, offer.names())
	}
	if _, err := preparationOf(shape.Form().Base); err != nil {
		return Assignment{}, fmt.Errorf("device %s: %w", result.Device, err)
	}
	assignment := Assignment{
		Request: result.Request,
		Shape:   shape,
		Admin:   ptr.Deref(result.AdminAccess, false),
		ShareID: ptr.Deref(result.ShareID, ""),
	}
	assignment.takeShare(result, offer.Driver)
	return assignment, nil
}

// namesShown keep an error readable on a node with hundreds of partitions.
const namesShown = 10

func (o Offer) names() string {
	if len(o.Shapes) == 0 {
		return "none"
	}
	names := slices.Sorted(maps.Keys(o.Shapes))
	if more := len(names) - namesShown; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:namesShown], ", "), more)
	}
	return strings.Join(names, ", ")
}
