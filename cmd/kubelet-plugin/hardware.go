package main

import (
	"cmp"
	"context"
	"fmt"
	"path/filepath"

	"k8s.io/klog/v2"

	"github.com/mica-gpu/mica/pkg/node/cdi"
	"github.com/mica-gpu/mica/pkg/node/devnode"
	"github.com/mica-gpu/mica/pkg/node/driver"
	"github.com/mica-gpu/mica/pkg/node/driverroot"
	"github.com/mica-gpu/mica/pkg/node/nvml"
	"github.com/mica-gpu/mica/pkg/node/prepare"
	"github.com/mica-gpu/mica/pkg/node/reset"
	"github.com/mica-gpu/mica/pkg/node/sample"
	"github.com/mica-gpu/mica/pkg/node/timeslice"
)

// openForClaims opens the NVIDIA driver with a CDI hook that containers can run.
func openForClaims(ctx context.Context, f *flags, installer *hookInstaller) (driver.Hardware, error) {
	roots := f.roots()
	if roots.Batch {
		if err := installer.install(ctx, roots.Hook); err != nil {
			return driver.Hardware{}, fmt.Errorf("install the CDI hook: %w", err)
		}
	}
	library, err := openHardware(ctx, roots)
	if err != nil {
		return driver.Hardware{}, err
	}
	return driver.Hardware{
		GPUs:   library,
		Edits:  cdi.NewEdits(library, roots, klog.FromContext(ctx)),
		Tools:  prepare.Tools{MIG: library, Modes: library, TimeSlices: timeslice.NewSetter(newTools(f))},
		Health: library,
		Resets: reset.Hardware{GPUs: library, Program: reset.NewSMI(newTools(f))},
		Meter:  func(uuid string) sample.Meter { return library.Meter(uuid) },
		Check:  library.CheckFile,
		Close:  library.Close,
	}, nil
}

// roots are the driver's, with the hook of containers: the plugin's own, or one on the host.
func (f *flags) roots() cdi.Roots {
	roots := cdi.Roots{Host: f.hostDriverRoot, Local: f.localDriverRoot, Machine: devnode.Host(f.hostRoot), Hook: f.hookPath}
	if f.hookPath == "" {
		roots.Hook = filepath.Join(cmp.Or(f.hookDir, driver.DataDir(f.pluginsDir, f.driverName)), hookName)
		roots.Batch = true
	}
	return roots
}

// openHardware opens the NVIDIA driver below the driver root.
func openHardware(ctx context.Context, roots cdi.Roots) (*nvml.Library, error) {
	library, err := nvml.Open(roots.Local)
	hint := driverroot.Hint(roots.Host, roots.Local, "/proc")
	switch {
	case err != nil && hint != "":
		return nil, fmt.Errorf("%w: %s", err, hint)
	case err != nil:
		return nil, err
	case hint != "":
		klog.FromContext(ctx).Info("Opened an NVIDIA driver, possibly the wrong one", "driverRoot", roots.Host, "hint", hint)
	}
	return library, nil
}

// newTools runs the driver's programs. The links to its libraries are in the plugin's directory.
func newTools(f *flags) *driverroot.Tools {
	return driverroot.NewTools(f.localDriverRoot, filepath.Join(driver.DataDir(f.pluginsDir, f.driverName), "libraries"))
}
