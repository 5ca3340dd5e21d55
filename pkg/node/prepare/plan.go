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

// plan says what is to be done for a claim, as the record of it that will be kept.
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
			return journal.Record{}, fmt.Errorf("claim %s, request %q: device %s: %w", identify(claim), assignment.Request, assignment.Shape.Name(), err)
		}
		device.CDIDeviceIDs = []string{p.CDI.DeviceID(claim.UID, nameInClaim(device.Device, device.ShareID))}
		record.Devices = append(record.Devices, device)
	}
	return record, nil
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

func identify(claim *resourceapi.ResourceClaim) cdi.Claim {
	return cdi.Claim{
		UID:            claim.UID,
		NamespacedName: types.NamespacedName{Namespace: claim.Namespace, Name: claim.Name},
	}
}

func assignmentOf(result resourceapi.DeviceRequestAllocationResult, pool Pool) (Assignment, error) {
	if result.Pool != pool.Name {
		return Assignment{}, fmt.Errorf("device %s was allocated from pool %q, but this node's pool is %q: delete the pod so that it is scheduled again", result.Device, result.Pool, pool.Name)
	}
	shape, offered := pool.Shapes[result.Device]
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

// Pool is what this node offers to claims.
type Pool struct {
	// Driver and Name select the results that are ours.
	Driver, Name string
	// Shapes are keyed by device name.
	Shapes map[string]gpu.Shape
	// Withheld says why no further claim is prepared; nil: they are. Shapes are then good
	// for claims that are prepared already.
	Withheld error
}

// NewPool indexes shapes by device name.
func NewPool(driver, name string, shapes []gpu.Shape) Pool {
	pool := Pool{Driver: driver, Name: name, Shapes: make(map[string]gpu.Shape, len(shapes))}
	for _, shape := range shapes {
		pool.Shapes[shape.Name()] = shape
	}
	return pool
}

// namesShown keep an error readable on a node with hundreds of partitions.
const namesShown = 10

func (p Pool) deviceNames() string {
	if len(p.Shapes) == 0 {
		return "none"
	}
	names := slices.Sorted(maps.Keys(p.Shapes))
	if more := len(names) - namesShown; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:namesShown], ", "), more)
	}
	return strings.Join(names, ", ")
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
