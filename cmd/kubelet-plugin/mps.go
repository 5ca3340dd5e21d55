package main

import (
	"context"
	"errors"
	"net"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	"k8s.io/klog/v2"

	"github.com/mica-gpu/mica/pkg/node/driverroot"
	"github.com/mica-gpu/mica/pkg/node/mps"
	"github.com/mica-gpu/mica/pkg/node/probe"
	"github.com/mica-gpu/mica/pkg/settings"
)

// supervision are the settings of the MPS supervisor.
type supervision struct {
	root, shm  string
	healthPort int
}

func newMPSCommand(f *flags) *cobra.Command {
	var s supervision
	command := &cobra.Command{
		Use:   "mps",
		Short: "Run the MPS control daemons that the plugin of this node needs",
		Args:  cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			ctx, stop := signal.NotifyContext(command.Context(), syscall.SIGTERM, syscall.SIGINT)
			defer stop()
			return superviseMPS(klog.NewContext(ctx, klog.Background()), f, s)
		},
	}
	command.Flags().StringVar(&s.root, "mps-root", "/run/nvidia/mps", "The --mps-root of this node's plugin, at the same path. Put it on a tmpfs: daemons end with a reboot.")
	command.Flags().StringVar(&s.shm, "mps-shm", "/dev/shm", "Where the directory shm of --mps-root is mounted in this container. Empty: no check.")
	command.Flags().IntVar(&s.healthPort, "healthcheck-port", 51515, "TCP port of the gRPC health service. 0: any free port. Negative: none.")
	return command
}

// superviseMPS runs the supervisor until ctx ends.
func superviseMPS(ctx context.Context, f *flags, s supervision) error {
	if s.root == "" {
		return errors.New("no directory for MPS: set --mps-root or MPS_ROOT to that of the plugin")
	}
	if err := settings.CheckPort("healthcheck-port", s.healthPort); err != nil {
		return err
	}
	log := klog.FromContext(ctx)
	log.Info("Starting the MPS supervisor", "version", version(), "driverRoot", f.hostDriverRoot, "directory", s.root)
	if s.shm != "" {
		if err := mps.CheckShm(s.root, s.shm); err != nil {
			return err
		}
		if err := mps.IgnoreLinks(s.shm); err != nil {
			log.Info("MPS servers follow symbolic links in the shared memory of their clients; give MPS shares only to containers that are not root", "directory", s.shm, "reason", err.Error())
		}
	}
	tools := driverroot.NewTools(f.localDriverRoot, mps.LibraryLinks(s.root))
	supervisor := mps.NewSupervisor(s.root, mps.NewPrograms(tools))
	group, ctx := errgroup.WithContext(ctx)
	if err := startServer(ctx, group, "health checks", "healthcheck-port", s.healthPort, func(ctx context.Context, listener net.Listener) error {
		alive, ready := supervising(supervisor)
		return probe.Serve(ctx, listener, alive, ready)
	}); err != nil {
		return err
	}
	group.Go(func() error { return supervisor.Run(ctx) })
	return group.Wait()
}

// supervising returns the checks of the probes. A supervisor that waits for another one is alive
// and not ready.
func supervising(s *mps.Supervisor) (alive, ready probe.Check) {
	alive = func(context.Context) error {
		if _, hanging := s.Alive(); hanging {
			return errors.New("the MPS supervisor hangs")
		}
		return nil
	}
	ready = func(ctx context.Context) error {
		if supervising, _ := s.Alive(); !supervising {
			return errors.New("another MPS supervisor of this node has not ended yet")
		}
		return alive(ctx)
	}
	return alive, ready
}
