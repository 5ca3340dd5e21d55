package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/spf13/cobra"
	"k8s.io/client-go/kubernetes"

	"github.com/mica-gpu/mica/pkg/node/bugreport"
	"github.com/mica-gpu/mica/pkg/node/driver"
	"github.com/mica-gpu/mica/pkg/node/nvml"
	"github.com/mica-gpu/mica/pkg/node/selftest"
)

func newGatherinfoCommand(f *flags) *cobra.Command {
	command := &cobra.Command{
		Use:   "gatherinfo",
		Short: "Print what a bug report needs to say of this node, as YAML without secrets",
		Long: `Print what a bug report needs to say of this node, as YAML without secrets: versions, settings, what the
NVIDIA driver says, what is published and prepared.

Run it in the plugin's container. It changes nothing and takes seconds. A section that cannot be read says
why, and the others are there.`,
		Args: cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			return bugreport.Write(command.Context(), command.OutOrStdout(), bugreport.DefaultLimits, gatherinfo(command, f)...)
		},
	}
	f.addCluster(command.Flags())
	return command
}

// gatherinfo is what is told of this node, the most asked for first.
func gatherinfo(command *cobra.Command, f *flags) []bugreport.Section {
	hostDev := ""
	if f.hostRoot != "" {
		hostDev = filepath.Join(f.hostRoot, "dev")
	}
	proc, data := os.DirFS("/proc"), driver.DataDir(f.pluginsDir, f.driverName)
	bootID, _ := os.ReadFile(bootIDFile) // without it, all claims look as if they were of another boot
	open := sync.OnceValues(func() (*nvml.Library, error) { return openHardware(command.Context(), f.roots()) })
	connect := sync.OnceValues(func() (kubernetes.Interface, error) {
		client, _, err := newClients(f)
		return client, err
	})
	return []bugreport.Section{
		bugreport.Versions(version(), proc),
		bugreport.Node(connect, f.nodeName),
		bugreport.Flags(command.Flags()),
		bugreport.DriverRoot(f.hostDriverRoot, f.localDriverRoot, f.hostRoot),
		bugreport.Selftest(func(ctx context.Context) (*selftest.Report, error) {
			return selftest.Run(ctx, f.selftest(ctx, open)), nil
		}),
		bugreport.NVML(func() (bugreport.GPUs, error) { return open() }),
		bugreport.Health(filepath.Join(data, "health.json")),
		bugreport.Published(connect, f.driverName, f.nodeName),
		bugreport.Claims(filepath.Join(data, "claims"), strings.TrimSpace(string(bootID))),
		bugreport.CDI(f.cdiRoot),
		bugreport.MPS(f.mpsRoot),
		bugreport.Metrics(f.metricsPort),
		bugreport.Mounts(proc, f.localDriverRoot, hostDev, f.pluginsDir, data, f.registrarDir, f.cdiRoot, f.mpsRoot, f.hookDir),
		bugreport.Devices("/dev", hostDev),
	}
}
