package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"k8s.io/klog/v2"

	"github.com/mica-gpu/mica/test/nvmlsim/driverroot"
	"github.com/mica-gpu/mica/test/nvmlsim/model"
	"github.com/mica-gpu/mica/test/nvmlsim/wire"
)

type serveOptions struct {
	node       string
	socket     string
	root       string
	libraryDir string
}

func serveCommand(socket *string) *cobra.Command {
	o := serveOptions{}
	cmd := &cobra.Command{
		Use:   "serve --node FILE|NAME --root DIR",
		Short: "Run a simulated machine until SIGTERM",
		Long: "serve loads a machine's description, emits a driver root for it into DIR, and answers\n" +
			"the NVML library in it. On SIGTERM it removes DIR's contents and its sockets.",
		Args: exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if cmd.Flags().Changed("socket") {
				o.socket = *socket
			}
			return o.serve(cmd.Context())
		},
	}
	cmd.Flags().StringVar(&o.node, "node", "", "the machine: a file with its description, or the name of a ready-made one")
	cmd.Flags().StringVar(&o.root, "root", "", "directory to emit the driver root into")
	cmd.Flags().StringVar(&o.libraryDir, "library-dir", "",
		"directory with the libraries and programs of the driver root; default is that of this program")
	return cmd
}

func (o *serveOptions) complete() error {
	if o.node == "" || o.root == "" {
		return errors.New("serve needs --node and --root: which machine to simulate and where to emit its driver root")
	}
	var err error
	if o.root, err = filepath.Abs(o.root); err != nil {
		return fmt.Errorf("find the driver root's absolute path: %w", err)
	}
	if o.socket != "" {
		if o.socket, err = filepath.Abs(o.socket); err != nil {
			return fmt.Errorf("find the socket's absolute path: %w", err)
		}
	}
	if o.libraryDir != "" {
		return nil
	}
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find the directory of the libraries: %w", err)
	}
	o.libraryDir = filepath.Dir(self)
	return nil
}

func (o *serveOptions) serve(ctx context.Context) (err error) {
	if err := o.complete(); err != nil {
		return err
	}
	file, err := loadNode(o.node)
	if err != nil {
		return err
	}
	machine, err := model.Load(file)
	if err != nil {
		return err
	}
	tree, err := driverroot.Emit(o.root, o.libraryDir, machine)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, tree.Remove()) }()
	return o.answer(ctx, machine, tree)
}

// door is a socket that clients come by.
type door struct {
	path         string
	allowControl bool
}

// doors lists the sockets, the control client's last. The library finds the one
// beside itself on the machine and the persistence daemon's in a container;
// tests and tools may want one more at a path of their choice.
func (o *serveOptions) doors() []door {
	container := door{filepath.Join(o.root, driverroot.ContainerSocket), false}
	host := door{filepath.Join(o.root, driverroot.HostSocket), true}
	if o.socket == "" || o.socket == host.path {
		return []door{container, host}
	}
	return []door{container, host, {o.socket, true}}
}

func (o *serveOptions) answer(ctx context.Context, machine *model.Machine, tree *driverroot.Tree) error {
	server := wire.NewServer(wire.Sessions(machine), machine, machine)
	defer server.Close()

	doors := o.doors()
	failed := make(chan error, len(doors))
	var listeners []net.Listener
	defer func() {
		for _, l := range listeners {
			l.Close()
		}
	}()
	for _, d := range doors {
		listener, err := wire.Listen(d.path)
		if err != nil {
			return err
		}
		listeners = append(listeners, listener)
		go func() { failed <- server.Serve(ctx, listener, d.allowControl) }()
	}
	logger := klog.FromContext(ctx)
	logger.Info("Simulating a machine", "machine", machine.File().Name, "gpus", len(machine.GPUs()),
		"root", o.root, "socket", doors[len(doors)-1].path)
	select {
	case <-ctx.Done():
		logger.Info("Ending the simulation", "machine", machine.File().Name)
		return nil
	case err := <-failed:
		return err
	case err := <-tree.Failed():
		return err
	}
}
