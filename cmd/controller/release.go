package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/mica-gpu/mica/pkg/scaleout/leftover"
)

const releaseHelp = `Take back what the controller has written on nodes: Cluster Autoscaler's scale-down-disabled where the controller
has set it, cordons of empty nodes, and its annotations. What others have set stays.

A controller that runs sets it again: stop it first, or take back only what it has not renewed in time.`

// newReleaseCommand is what a CronJob runs, for the time when no controller does, and an administrator who uninstalls.
func newReleaseCommand() *cobra.Command {
	f := &flags{}
	expired := false
	command := &cobra.Command{
		Use:   "release",
		Short: "Take back what the controller has written on nodes",
		Long:  releaseHelp,
		Args:  cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			return takeBack(klog.NewContext(command.Context(), klog.Background()), f, expired)
		},
	}
	f.addAPI(command.Flags())
	command.Flags().BoolVar(&expired, "expired", false, "Only what has expired because no controller has renewed it.")
	return command
}

func takeBack(ctx context.Context, f *flags, expired bool) error {
	config, err := clientConfig(f)
	if err != nil {
		return err
	}
	c, err := client.New(config, client.Options{})
	if err != nil {
		return fmt.Errorf("set up the client of the API server: %w", err)
	}
	return leftover.Nodes(ctx, c, time.Now(), expired)
}
