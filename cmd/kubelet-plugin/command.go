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
		Use:           "kubelet-plugin",
		Short:         "Offer this node's NVIDIA GPUs to Kubernetes through Dynamic Resource Allocation",
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		PersistentPreRunE: func(command *cobra.Command, _ []string) error {
			if err != nil {
				return err
			}
			if err := settings.FromEnvironment(command.Flags(), environment); err != nil {
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
	f.addHardware(command.PersistentFlags())
	f.addCluster(command.Flags())
	command.AddCommand(newDiscoverCommand(f), newMPSCommand(f), newSelftestCommand(f), release.NewCommand(version()))
	return command
}
