package main

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/mica-gpu/mica/test/cluster/internal/keeper"
	"github.com/mica-gpu/mica/test/cluster/internal/launch"
	"github.com/mica-gpu/mica/test/cluster/internal/layout"
	"github.com/mica-gpu/mica/test/cluster/internal/supervisor"
)

// dirFlag adds the flag that says which cluster is meant.
func dirFlag(cmd *cobra.Command) *string {
	dir := os.Getenv("MICA_CLUSTER_DIR")
	if dir == "" {
		dir = layout.DefaultDir
	}
	return cmd.Flags().String("dir", dir, "the cluster's directory")
}

// hardwareFlags adds the flags that say which GPUs the node has, and what its control plane is.
func hardwareFlags(cmd *cobra.Command, options *launch.Options) (gpu *string) {
	cmd.Flags().StringVar(&options.SimNode, "sim-node", "", "a file that describes the machine that the NVML simulator plays")
	cmd.Flags().StringVar(&options.SimBinary, "sim-binary", "", "the NVML simulator (default bin/nvml-sim of the checkout)")
	cmd.Flags().StringVar(&options.Emulate, "emulate", "", "an older Kubernetes that the control plane behaves as, such as 1.34")
	return cmd.Flags().String("gpu", "", `"host" for the machine's own driver and GPUs`)
}

// host reads the flag --gpu.
func host(gpu string) (bool, error) {
	switch gpu {
	case "":
		return false, nil
	case "host":
		return true, nil
	}
	return false, fmt.Errorf(`--gpu %s: the only choice is "host"; --sim-node is for simulated GPUs`, gpu)
}

// complete fills in what is not a flag.
func complete(cmd *cobra.Command, options *launch.Options, gpu string) error {
	var err error
	if options.HostGPU, err = host(gpu); err != nil {
		return err
	}
	options.Progress = cmd.ErrOrStderr()
	if options.Executable, err = os.Executable(); err != nil {
		return fmt.Errorf("finding this program: %w", err)
	}
	if options.Cache, err = newCache(options.Progress); err != nil {
		return err
	}
	if options.SimBinary == "" {
		root, err := repositoryRoot()
		if err != nil {
			return err
		}
		options.SimBinary = filepath.Join(root, "bin/nvml-sim")
	}
	return nil
}

func newUpCommand() *cobra.Command {
	var options launch.Options
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Bring a cluster up and leave it running",
		Args:  cobra.NoArgs,
	}
	dir := dirFlag(cmd)
	gpu := hardwareFlags(cmd, &options)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		options.Dir = layout.Dir(*dir)
		if err := complete(cmd, &options, *gpu); err != nil {
			return err
		}
		running, err := keeper.Running(options.Dir)
		if err != nil {
			return err
		}
		if running {
			return alreadyUp(cmd, options)
		}
		if _, err := keeper.End(options.Dir); err != nil {
			return err
		}
		ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
		defer stop()
		cluster, err := launch.Start(ctx, options)
		if err != nil {
			return err
		}
		tell(cmd, cluster.Info)
		return nil
	}
	return cmd
}

// alreadyUp is the second `up`.
func alreadyUp(cmd *cobra.Command, options launch.Options) error {
	dir := options.Dir
	if err := options.CheckRunning(); err != nil {
		return err
	}
	info, err := supervisor.LoadInfo(dir)
	if err != nil {
		return fmt.Errorf("a cluster in %s is starting or ending: wait for it, or end it with `cluster down`: %w", dir, err)
	}
	fmt.Fprintf(cmd.OutOrStdout(), "the cluster in %s is running already\n", dir)
	tell(cmd, info)
	return nil
}

// tell prints what a user does next.
func tell(cmd *cobra.Command, info supervisor.Info) {
	fmt.Fprintf(cmd.OutOrStdout(), "export KUBECONFIG=%s\nlogs are in %s\n", info.Kubeconfig, info.Logs)
}

func newDownCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "down",
		Short: "Take the cluster down and remove everything it left",
		Args:  cobra.NoArgs,
	}
	dir := dirFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		ended, err := keeper.End(layout.Dir(*dir))
		if err := errors.Join(err, keeper.Sweep(layout.RunPrefix)); err != nil {
			return err
		}
		if !ended {
			fmt.Fprintf(cmd.OutOrStdout(), "there is no cluster in %s\n", *dir)
		}
		return nil
	}
	return cmd
}
