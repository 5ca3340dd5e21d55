package prepare

import (
	"fmt"
	"slices"

	resourceapi "k8s.io/api/resource/v1"

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
