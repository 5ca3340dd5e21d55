package main

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/spf13/cobra"
	"k8s.io/klog/v2"

	"github.com/mica-gpu/mica/pkg/gpu"
	"github.com/mica-gpu/mica/pkg/node/cdi"
	"github.com/mica-gpu/mica/pkg/node/driver"
	"github.com/mica-gpu/mica/pkg/node/driverroot"
	"github.com/mica-gpu/mica/pkg/node/nvml"
	"github.com/mica-gpu/mica/pkg/node/offer"
	"github.com/mica-gpu/mica/pkg/node/timeslice"
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

// hardware is the NVIDIA driver below the driver root.
type hardware struct {
	library *nvml.Library
	sysfs   fs.ReadLinkFS
	edits   *cdi.Edits
}

// newTimeSlices runs the driver's programs with links to its libraries in a directory
// of the plugin.
func newTimeSlices(f *flags) *timeslice.Setter {
	links := filepath.Join(driver.DataDir(f.pluginsDir, f.driverName), "libraries")
	return timeslice.NewSetter(driverroot.NewTools(f.localDriverRoot, links))
}

func openHardware(ctx context.Context, roots cdi.Roots) (*hardware, error) {
	library, err := nvml.Open(roots.Local)
	hint := driverroot.Hint(roots.Host, roots.Local, "/proc")
	switch {
	case err != nil && hint != "":
		return nil, fmt.Errorf("%w: %s", err, hint)
	case err != nil:
		return nil, err
	case hint != "":
		klog.FromContext(ctx).Info("The NVIDIA driver is opened, but it may not be the one that is meant", "driverRoot", roots.Host, "hint", hint)
	}
	sysfs, ok := os.DirFS(sysfsRoot(roots.Local)).(fs.ReadLinkFS)
	if !ok {
		return nil, fmt.Errorf("the file system below %s has no symbolic links", roots.Local)
	}
	return &hardware{
		library: library,
		sysfs:   sysfs,
		edits:   cdi.NewEdits(library.API(), roots, klog.FromContext(ctx)),
	}, nil
}

// sysfsRoot is the driver root's own /sys where it has one, as the root of a
// driver container does and a simulated one, else the machine's.
func sysfsRoot(driverRoot string) string {
	own := filepath.Join(driverRoot, "sys")
	if _, err := os.Stat(filepath.Join(own, "bus/pci/devices")); err == nil {
		return own
	}
	return "/sys"
}

// Discover implements offer.GPUs.
func (h *hardware) Discover() (gpu.Node, []error, error) { return h.library.Discover(h.sysfs) }

// Refresh implements offer.GPUs.
func (h *hardware) Refresh(gpus []gpu.GPU) ([]gpu.GPU, error) { return h.library.Refresh(gpus) }

// Persistent implements offer.GPUs.
func (h *hardware) Persistent() (bool, error) { return h.library.Persistent() }

// Rest implements offer.GPUs.
func (h *hardware) Rest() (bool, error) { return h.library.Rest() }

var _ offer.GPUs = (*hardware)(nil)
