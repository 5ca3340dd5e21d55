package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/spf13/cobra"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/mica-gpu/mica/pkg/node/cdi"
	"github.com/mica-gpu/mica/pkg/node/devnode"
	"github.com/mica-gpu/mica/pkg/node/diagnosis"
	"github.com/mica-gpu/mica/pkg/node/driver"
	"github.com/mica-gpu/mica/pkg/node/mps"
	"github.com/mica-gpu/mica/pkg/node/nvml"
	"github.com/mica-gpu/mica/pkg/node/podresources"
	"github.com/mica-gpu/mica/pkg/node/prepare"
	"github.com/mica-gpu/mica/pkg/node/timeslice"
)

func newSelftestCommand(f *flags) *cobra.Command {
	output, mutate := "text", false
	command := &cobra.Command{
		Use:   "selftest",
		Short: "Check this node's GPUs, driver and privileges, and print a report for a bug",
		Long: `Check this node's GPUs, driver and privileges with the plugin's own code, and print a report for a bug.

It changes no GPU, unless --mutate is given: then it makes and unmakes a partition, sets and resets a
time-slice, and starts and stops an MPS daemon, on a GPU that no claim and no process uses.

The exit status is 1 if a check failed.`,
		Args: cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			print, known := diagnosis.Printers[output]
			if !known {
				return fmt.Errorf("output format %q is unknown: use -o text, -o json or -o yaml", output)
			}
			report, err := runSelftest(command.Context(), f, mutate)
			if err != nil {
				return err
			}
			if err := print(command.OutOrStdout(), report); err != nil {
				return fmt.Errorf("print the report: %w", err)
			}
			if failed := report.Count(diagnosis.Failed); failed > 0 {
				return fmt.Errorf("%d of %d checks failed: follow the findings of the report, or attach it to a bug", failed, len(report.Checks))
			}
			return nil
		},
	}
	command.Flags().StringVarP(&output, "output", "o", output, "Output format: text, json or yaml.")
	command.Flags().BoolVar(&mutate, "mutate", mutate, "Also make and unmake a partition, a time-slice and an MPS daemon on an idle GPU.")
	f.addState(command.Flags())
	return command
}

func runSelftest(ctx context.Context, f *flags, mutate bool) (*diagnosis.Report, error) {
	var library *nvml.Library
	options := f.selftest(ctx, func() (opened *nvml.Library, err error) {
		library, err = openHardware(ctx, f.roots())
		return library, err
	})
	if mutate {
		bootID, err := readBootID()
		if err != nil {
			return nil, err
		}
		if options.Claims, _, err = driver.NewPreparer(driver.Options{
			Name: f.driverName, PluginsDir: f.pluginsDir, CDIRoot: f.cdiRoot, BootID: bootID,
		}, noClaims{}); err != nil {
			return nil, err
		}
	}
	report := diagnosis.Run(ctx, options)
	if library != nil {
		_ = library.Close() // the process ends here
	}
	return report, nil
}

// selftest has the subjects of a self-test that changes nothing.
func (f *flags) selftest(ctx context.Context, open func() (*nvml.Library, error)) diagnosis.Options {
	roots := f.roots()
	installed := ""
	if roots.Batch {
		installed = roots.Hook
	}
	var containers diagnosis.Containers
	if !f.ignoreDevicePlugin {
		containers = podresources.New(podresources.Directory(f.pluginsDir))
	}
	return diagnosis.Options{
		Version:     version(),
		Containers:  containers,
		Privileges:  diagnosis.OwnPrivileges(),
		Directories: f.written(),
		Driver:      f.driverName,
		Hook:        installed,
		Open: func() (found diagnosis.Hardware, err error) {
			library, err := open()
			if err != nil {
				return found, err
			}
			tools := prepare.Tools{MIG: library, Modes: library, TimeSlices: timeslice.NewSetter(newTools(f))}
			if f.mpsRoot != "" {
				tools.Daemons = mps.NewDirectory(f.mpsRoot)
			}
			return diagnosis.Hardware{GPUs: library, Edits: cdi.NewEdits(library, roots, klog.FromContext(ctx)), Tools: tools}, nil
		},
	}
}

// written are the host directories that the plugin writes into.
func (f *flags) written() []string {
	directories := []string{driver.DataDir(f.pluginsDir, f.driverName), f.cdiRoot}
	for _, optional := range []string{f.hookDir, f.mpsRoot} {
		if optional != "" {
			directories = append(directories, optional)
		}
	}
	if f.hostRoot != "" {
		for _, directory := range devnode.Directories {
			directories = append(directories, filepath.Join(f.hostRoot, directory))
		}
	}
	return directories
}

// noClaims replaces the API server. A self-test uses GPUs without claims, so only a claim that
// came meanwhile is looked up.
type noClaims struct{}

// Get implements prepare.Claims.
func (noClaims) Get(context.Context, types.NamespacedName) (*resourceapi.ResourceClaim, error) {
	return nil, errors.New("another claim was prepared meanwhile, and a self-test cannot read claims: try again on an idle GPU")
}
