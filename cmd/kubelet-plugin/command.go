package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/mica-gpu/mica/pkg/release"
	"github.com/mica-gpu/mica/pkg/settings"
)

func newCommand() *cobra.Command {
	f := &flags{}
	command := settings.NewCommand("kubelet-plugin", "Offer this node's NVIDIA GPUs to Kubernetes through Dynamic Resource Allocation", environment,
		func(ctx context.Context) error { return serve(ctx, f) })
	f.addHardware(command.PersistentFlags())
	f.addCluster(command.Flags())
	command.AddCommand(newDiscoverCommand(f), newMPSCommand(f), newSelftestCommand(f), newGatherinfoCommand(f), release.NewCommand(version()))
	return command
}
