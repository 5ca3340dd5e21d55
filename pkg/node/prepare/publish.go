package prepare

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/types"
	cdispec "tags.cncf.io/container-device-interface/specs-go"

	"github.com/mica-gpu/mica/pkg/node/cdi"
	"github.com/mica-gpu/mica/pkg/node/journal"
)

// publish lets the runtime find the claim's devices, and records that they are prepared.
func (p *Preparer) publish(ctx context.Context, timer *phaseTimer, record *journal.Record, node *Node) error {
	err := p.writeSpec(*record, node)
	timer.phase(ctx, "cdi")
	if err != nil {
		return err
	}
	record.State = journal.Prepared
	if err = p.store.Put(ctx, *record); err != nil {
		err = errors.Join(err, p.CDI.Remove(types.UID(record.ClaimUID)))
	}
	timer.phase(ctx, "record")
	return err
}

// writeSpec publishes the CDI specification of recorded devices. A device of several
// requests, as with admin access, appears once: as the request without admin access has it.
func (p *Preparer) writeSpec(record journal.Record, node *Node) error {
	claim, err := copyOf(record)
	if err != nil {
		return err
	}
	common, err := node.Edits.Common()
	if err != nil {
		return err
	}
	files, err := metadataOf(record, p.Driver)
	if err != nil {
		return err
	}
	var devices []cdi.Device
	for _, device := range record.Devices {
		name := nameInClaim(device)
		held := func(d journal.Device) bool { return !d.AdminAccess && nameInClaim(d) == name }
		if device.AdminAccess && slices.ContainsFunc(record.Devices, held) || slices.ContainsFunc(devices, func(d cdi.Device) bool { return d.Name == name }) {
			continue
		}
		own, err := editsOf(device, node)
		if err != nil {
			return fmt.Errorf("request %q: %w", device.Request, err)
		}
		devices = append(devices, cdi.Device{Name: name, Edits: own, Files: files[name]})
	}
	return p.CDI.Write(claim, common, devices)
}

// copyOf encodes a record for its claim's CDI file. The file is written when everything is
// done, before the record says so.
func copyOf(record journal.Record) (cdi.Claim, error) {
	record.State = journal.Prepared
	data, err := journal.Encode(record)
	return cdi.Claim{UID: types.UID(record.ClaimUID), NamespacedName: nameOf(record), Record: string(data)}, err
}

// editsOf are those of the device, and of a client of its daemon.
func editsOf(device journal.Device, node *Node) (cdispec.ContainerEdits, error) {
	prepared, err := preparationOf(device.Form.Base)
	if err != nil {
		return cdispec.ContainerEdits{}, err
	}
	own, err := prepared.edits(device, node.Edits)
	if err != nil || !hasStep(device, runDaemon) {
		return own, err
	}
	client, err := clientEdits(device, node.Daemons)
	own.Env = slices.Concat(own.Env, client.Env)
	own.DeviceNodes = slices.Concat(own.DeviceNodes, client.DeviceNodes)
	own.Mounts = slices.Concat(own.Mounts, client.Mounts)
	own.Hooks = slices.Concat(own.Hooks, client.Hooks)
	return own, err
}

// specFits reports whether the claim's CDI file exists and fits the installed driver, which
// may have been replaced since. A file that cannot be compared counts as fitting: the error
// says why.
func (p *Preparer) specFits(record journal.Record, node *Node) (fits bool, err error) {
	uid := types.UID(record.ClaimUID)
	if !p.CDI.Has(uid) {
		return false, nil
	}
	written, err := p.CDI.Spec(uid)
	if err == nil {
		fits, err = node.Edits.Fit(written)
	}
	if err != nil {
		return true, fmt.Errorf("compare its CDI file with the installed driver: %w", err)
	}
	return fits, nil
}
