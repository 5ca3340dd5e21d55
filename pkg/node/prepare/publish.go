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
	if err = p.Journal.Put(ctx, *record); err != nil {
		err = errors.Join(fmt.Errorf("claim %s: %w", claimIn(*record), err), p.CDI.Remove(types.UID(record.ClaimUID)))
	}
	timer.phase(ctx, "record")
	return err
}

// writeSpec publishes the CDI specification of recorded devices. A device that
// several requests were given, as with admin access, appears once: as the claim has
// it, if it does not only look at it.
func (p *Preparer) writeSpec(record journal.Record, node *Node) error {
	claim := claimIn(record)
	var err error
	if claim.Record, err = copied(record); err != nil {
		return fmt.Errorf("claim %s: %w", claim, err)
	}
	common, err := node.Edits.Common()
	if err != nil {
		return fmt.Errorf("claim %s: %w", claim, err)
	}
	files, err := metadataOf(record, p.Driver)
	if err != nil {
		return fmt.Errorf("claim %s, %w", claim, err)
	}
	var devices []cdi.Device
	for _, device := range record.Devices {
		name := nameInClaim(device.Device, device.ShareID)
		had := func(d journal.Device) bool { return !d.AdminAccess && nameInClaim(d.Device, d.ShareID) == name }
		if device.AdminAccess && slices.ContainsFunc(record.Devices, had) || slices.ContainsFunc(devices, func(d cdi.Device) bool { return d.Name == name }) {
			continue
		}
		own, err := editsOf(device, node)
		if err != nil {
			return fmt.Errorf("claim %s, request %q: %w", claim, device.Request, err)
		}
		devices = append(devices, cdi.Device{Name: name, Edits: own, Files: files[name]})
	}
	return p.CDI.Write(claim, common, devices)
}

// specFits reports whether the claim's CDI file is there and fits the installed driver, which can have been
// replaced since the file was written. One that cannot be compared is left alone: the error says why.
func (p *Preparer) specFits(claim cdi.Claim, node *Node) (fits bool, err error) {
	if !p.CDI.Has(claim.UID) {
		return false, nil
	}
	if node == nil {
		return true, nil
	}
	written, err := p.CDI.Spec(claim.UID)
	if err == nil {
		fits, err = node.Edits.Fit(written)
	}
	if err != nil {
		return true, fmt.Errorf("claim %s: compare its CDI file with the installed driver: %w", claim, err)
	}
	return fits, nil
}

// editsOf are those of the device, and of a client of its daemon.
func editsOf(device journal.Device, node *Node) (cdispec.ContainerEdits, error) {
	prepared, err := preparationOf(device.Shape)
	if err != nil {
		return cdispec.ContainerEdits{}, err
	}
	own, err := prepared.edits(device, node.Edits)
	if err != nil || !device.Served() {
		return own, err
	}
	if node.Daemons == nil {
		return own, errNoSupervisor
	}
	client := node.Daemons.Edits(device.MPS.Daemon, limitsOf(device))
	own.Env = slices.Concat(own.Env, client.Env)
	own.DeviceNodes = slices.Concat(own.DeviceNodes, client.DeviceNodes)
	own.Mounts = slices.Concat(own.Mounts, client.Mounts)
	own.Hooks = slices.Concat(own.Hooks, client.Hooks)
	return own, nil
}
