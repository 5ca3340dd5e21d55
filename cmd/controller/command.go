package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/mica-gpu/mica/pkg/release"
	"github.com/mica-gpu/mica/pkg/settings"
)

func newCommand() *cobra.Command {
	f := newFlags()
	command := settings.NewCommand("controller", "Make GPU node groups grow for claims that no node can satisfy", nil,
		func(ctx context.Context) error { return serve(ctx, f) })
	f.addCluster(command.Flags())
	f.addScaleOut(command.Flags())
	f.addKEDA(command.Flags())
	command.AddCommand(release.NewCommand(version()), newPauseCommand(), newReleaseCommand())
	return command
}
