package main

import (
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
	"k8s.io/klog/v2"

	"github.com/mica-gpu/mica/pkg/release"
	"github.com/mica-gpu/mica/pkg/settings"
)

func newCommand() *cobra.Command {
	f, err := newFlags()
	command := &cobra.Command{
		Use:           "controller",
		Short:         "Make GPU node groups grow for claims that no node can satisfy",
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		PersistentPreRunE: func(command *cobra.Command, _ []string) error {
			if err != nil {
				return err
			}
			if err := settings.FromEnvironment(command.Flags(), nil); err != nil {
				return err
			}
			return f.logging.Apply(command.Flags())
		},
		RunE: func(command *cobra.Command, _ []string) error {
			ctx, stop := signal.NotifyContext(command.Context(), syscall.SIGTERM, syscall.SIGINT)
			defer stop()
			return serve(klog.NewContext(ctx, klog.Background()), f)
		},
	}
	f.addCluster(command.Flags())
	f.addScaleOut(command.Flags())
	f.addKEDA(command.Flags())
	f.logging.AddFlags(command.PersistentFlags())
	command.AddCommand(release.NewCommand(version()), newPauseCommand())
	return command
}
