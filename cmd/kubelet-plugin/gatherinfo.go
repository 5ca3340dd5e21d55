package main

import (
	"context"
	"os"
	"path/filepath"
	"sync"

	"github.com/spf13/cobra"
	"k8s.io/client-go/kubernetes"

	"github.com/mica-gpu/mica/pkg/node/diagnosis"
	"github.com/mica-gpu/mica/pkg/node/driver"
	"github.com/mica-gpu/mica/pkg/node/nvml"
)

func newGatherinfoCommand(f *flags) *cobra.Command {
	command := &cobra.Command{
		Use:   "gatherinfo",
		Short: "Print what a bug report needs to say of this node, as YAML without secrets",
		Long: `Print what a bug report needs to say of this node, as YAML without secrets: versions, settings, what the
NVIDIA driver reports, what is published and prepared.

Run it in the plugin's container. It changes nothing and takes seconds. A section that cannot be read has an
error; the others are complete.`,
		Args: cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			return diagnosis.Gather(command.Context(), command.OutOrStdout(), diagnosis.DefaultLimits, gatherinfo(command, f)...)
		},
	}
	f.addCluster(command.Flags())
	return command
}

// gatherinfo are the sections, the most useful first.
func gatherinfo(command *cobra.Command, f *flags) []diagnosis.Section {
	hostDev := ""
	if f.hostRoot != "" {
		hostDev = filepath.Join(f.hostRoot, "dev")
	}
	proc, data := os.DirFS("/proc"), driver.DataDir(f.pluginsDir, f.driverName)
	bootID, _ := readBootID() // without it, all claims seem to be of another boot
	open := sync.OnceValues(func() (*nvml.Library, error) { return openHardware(command.Context(), f.roots()) })
	connect := sync.OnceValues(func() (kubernetes.Interface, error) {
		client, _, err := newClients(f)
		return client, err
	})
	return []diagnosis.Section{
		diagnosis.Versions(version(), proc),
		diagnosis.Node(connect, f.nodeName),
		diagnosis.Flags(command.Flags()),
		diagnosis.DriverRoot(f.hostDriverRoot, f.localDriverRoot, f.hostRoot),
		diagnosis.Selftest(func(ctx context.Context) *diagnosis.Report { return diagnosis.Run(ctx, f.selftest(ctx, open)) }),
		diagnosis.NVML(func() (diagnosis.GPUs, error) { return open() }),
		diagnosis.Health(filepath.Join(data, "health.json")),
		diagnosis.Published(connect, f.driverName, f.nodeName),
		diagnosis.Recorded(filepath.Join(data, "claims"), bootID),
		diagnosis.CDI(f.cdiRoot),
		diagnosis.MPS(f.mpsRoot),
		diagnosis.Metrics(f.metricsPort),
		diagnosis.Mounts(proc, f.localDriverRoot, hostDev, f.pluginsDir, data, f.registrarDir, f.cdiRoot, f.mpsRoot, f.hookDir),
		diagnosis.Devices("/dev", hostDev),
	}
}
