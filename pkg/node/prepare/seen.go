package prepare

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/mica-gpu/mica/pkg/gpu"
	"github.com/mica-gpu/mica/pkg/node/journal"
)

// Missing reports whether a look at GPUs did not show the partition that was made for a recorded
// device. A GPU that is not among them has shown nothing.
func Missing(device journal.Device, gpus []gpu.GPU) bool {
	i := slices.IndexFunc(gpus, func(g gpu.GPU) bool { return g.UUID == device.UUID })
	return i >= 0 && ours(device) && device.Partition.UUID != "" &&
		!slices.ContainsFunc(gpus[i].Instances, func(instance gpu.Instance) bool { return isInstance(device.Partition, instance) })
}

// Seen notes which partitions a look at GPUs has shown to be destroyed, after it has asked for
// each by its IDs: claims come and go during a look. It has to know each look, because the UUID of a
// partition does not distinguish it from the next one in its place.
func (p *Preparer) Seen(ctx context.Context, gpus []gpu.GPU) error {
	records, err := p.records(ctx)
	if err != nil {
		return fmt.Errorf("look for partitions that were destroyed: %w", err)
	}
	var failures []error
	for _, record := range records {
		if p.current(record) && slices.ContainsFunc(record.Devices, func(d journal.Device) bool { return Missing(d, gpus) }) {
			failures = append(failures, p.restoreSoon(ctx, types.UID(record.ClaimUID)))
		}
	}
	return errors.Join(failures...)
}

// restoreSoon does not wait long for a claim that is being prepared or unprepared.
func (p *Preparer) restoreSoon(ctx context.Context, claim types.UID) error {
	ctx, cancel := context.WithTimeout(ctx, takeOverLimit)
	defer cancel()
	return p.RestoreSpec(ctx, claim)
}

// noteGone writes down which partitions of a prepared claim are no more, so that what
// takes their place is never taken for them.
func (p *Preparer) noteGone(ctx context.Context, record journal.Record, node *Node) error {
	record, noted := record.Clone(), false
	for i := range record.Devices {
		device := &record.Devices[i]
		if !ours(*device) || device.AdminAccess {
			continue
		}
		var instance *gpu.Instance
		err := persist(ctx, func() (err error) {
			instance, err = ownInstance(node.MIG, device)
			return err
		})
		if err != nil {
			return fmt.Errorf("claim %s, request %q: %w", claimIn(record), device.Request, advised(err, device.UUID))
		}
		if instance == nil {
			device.Partition.Gone, noted = true, true
		}
	}
	if !noted {
		return nil
	}
	return p.Journal.Put(ctx, record)
}
