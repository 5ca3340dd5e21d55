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

const releaseHelp = `Remove the controller's protections, cordons and annotations from nodes. Those of other clients stay.

A running controller sets them again: stop it first, or use --expired.`

// newReleaseCommand is for the CronJob that runs while no controller does, and for an uninstallation.
func newReleaseCommand() *cobra.Command {
	f := &flags{}
	expired := false
	command := &cobra.Command{
		Use:   "release",
		Short: "Release the nodes that the controller protects or has cordoned",
		Long:  releaseHelp,
		Args:  cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			return takeBack(klog.NewContext(command.Context(), klog.Background()), f, expired)
		},
	}
	f.addAPI(command.Flags())
	command.Flags().BoolVar(&expired, "expired", false, "Release only nodes whose hold has expired, because no controller has renewed it.")
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
