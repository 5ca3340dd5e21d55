package driver

import (
	"context"
	"fmt"
	"strings"
)

// State describes the node, its claims and its offer for troubleshooting, one fact per line, without
// secrets.
func (d *Driver) State(ctx context.Context) string {
	var text strings.Builder
	say := func(format string, arguments ...any) { fmt.Fprintf(&text, format+"\n", arguments...) }
	ready := "yes"
	if err := d.Ready(); err != nil {
		ready = err.Error()
	}
	say("ready: %s", ready)
	state := d.offer.State()
	say("NVIDIA driver: %q, %d GPUs", state.Node.DriverVersion, len(state.Node.GPUs))
	for _, g := range state.Node.GPUs {
		say("GPU %d: %s, %s at %s, MIG %v, %d instances", g.Minor, g.UUID, g.ProductName, g.PCIBusID, g.MIG, len(g.Instances))
	}
	records, err := d.preparer.Prepared(ctx)
	if err != nil {
		say("claims: cannot be listed: %v", err)
	}
	for _, record := range records {
		say("claim %s/%s (%s):", record.Namespace, record.Name, record.ClaimUID)
		for _, device := range record.Devices {
			say("  request %s has %s of %s", device.Request, device.Device, device.UUID)
		}
	}
	for _, offered := range state.Offered {
		say("offered: %s", offered)
	}
	return text.String()
}
