package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/mica-gpu/mica/test/cluster/internal/keeper"
	"github.com/mica-gpu/mica/test/cluster/internal/layout"
	"github.com/mica-gpu/mica/test/cluster/internal/sandbox"
	"github.com/mica-gpu/mica/test/cluster/internal/supervisor"
)

// The hidden commands are the stages of one start: `up` starts `keep` on the
// machine, which starts `init` in a sandbox, which starts `supervise` there.

func newKeepCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "keep DIR", Hidden: true, Args: cobra.ExactArgs(1)}
	private := cmd.Flags().Bool("private", false, "end with the launcher")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		executable, err := os.Executable()
		if err != nil {
			return fmt.Errorf("finding this program: %w", err)
		}
		return keeper.Keep(cmd.Context(), layout.Dir(args[0]), []string{executable, "init", args[0]}, keeper.Inherit(*private))
	}
	return cmd
}

func newInitCommand() *cobra.Command {
	return &cobra.Command{
		Use: "init DIR", Hidden: true, Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			executable, err := os.Executable()
			if err != nil {
				return fmt.Errorf("finding this program: %w", err)
			}
			api, progress := keeper.InheritedBySupervisor()
			code, err := sandbox.Init([]string{executable, "supervise", args[0]}, []*os.File{api, progress})
			if err != nil {
				return err
			}
			if code != 0 {
				return exitStatus(code)
			}
			return nil
		},
	}
}

func newSuperviseCommand() *cobra.Command {
	return &cobra.Command{
		Use: "supervise DIR", Hidden: true, Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGTERM, syscall.SIGINT)
			defer stop()
			dir := layout.Dir(args[0])
			err := supervise(ctx, dir)
			if err != nil {
				// For `up` and `run`, which print it.
				return errors.Join(err, os.WriteFile(dir.Failure(), []byte(err.Error()+"\n"), 0o644))
			}
			return nil
		},
	}
}

func supervise(ctx context.Context, dir layout.Dir) error {
	api, progress := keeper.InheritedBySupervisor()
	listener, err := net.FileListener(api)
	if err != nil {
		return fmt.Errorf("taking over the API server's port: %w", err)
	}
	if err := api.Close(); err != nil {
		return fmt.Errorf("taking over the API server's port: %w", err)
	}
	spec, err := supervisor.LoadSpec(dir)
	if err != nil {
		return err
	}
	return supervisor.New(spec, listener, progress).Run(ctx)
}
