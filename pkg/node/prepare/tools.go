package prepare

import (
	"context"

	cdispec "tags.cncf.io/container-device-interface/specs-go"

	"github.com/mica-gpu/mica/pkg/gpu"
	"github.com/mica-gpu/mica/pkg/node/mps"
)

// Tools change how GPUs are divided and shared. GPUs are named by UUID.
type Tools struct {
	// MIG is only needed where partitions are offered or recorded.
	MIG MIG
	// Modes and TimeSlices are only needed where GPUs are shared.
	Modes      Modes
	TimeSlices TimeSlices
	// Daemons is nil where the node runs no supervisor of them.
	Daemons Daemons
}

// MIG makes and unmakes partitions. GPUs are named by UUID. Errors are those of
// pkg/node/nvml; after one that does not say why, the effect may have happened.
type MIG interface {
	MIGEnabled(uuid string) (bool, error)
	// SetMIG is nvml.ErrResetRequired where it would not take effect at once.
	SetMIG(uuid string, enabled bool) error
	// Linked is nvml.ErrRetraining after MIG was disabled, until the GPU's NVLinks are back.
	Linked(uuid string) error
	// Instances are all GPU instances, whoever made them.
	Instances(uuid string) ([]gpu.Instance, error)
	// HasInstances tells in one question whether there is a GPU instance. It is
	// nvml.ErrNotSupported where MIG is not enabled.
	HasInstances(uuid string) (bool, error)
	// InstanceAt is nil where there is none.
	InstanceAt(uuid string, profileID, start int) (*gpu.Instance, error)
	// DeviceAt is the UUID of a MIG device, empty where there is none.
	DeviceAt(uuid string, instance, compute int) (string, error)
	CreateInstance(uuid string, profileID, start, size int) (instance int, err error)
	CreateComputeInstance(uuid string, instance int) (gpu.MIGDevice, error)
	// What is to be destroyed may be gone already. Nothing is left of an instance that was
	// destroyed.
	DestroyComputeInstance(uuid string, instance, compute int) error
	DestroyInstance(uuid string, instance int) error
}

// Modes reads and sets compute modes, by the names of pkg/node/nvml, whose errors it has.
type Modes interface {
	ComputeMode(uuid string) (string, error)
	SetComputeMode(uuid, mode string) error
}

// TimeSlices sets for how long a process runs on a GPU before the next one may.
// Errors name the GPU and say what to do. They are errors.ErrUnsupported for a GPU that
// has none to set, and fs.ErrNotExist where the driver's program for it is missing.
type TimeSlices interface {
	Set(ctx context.Context, uuid string, interval gpu.Interval) error
}

// Daemons are the control daemons of MPS. Errors name the daemon and say what to do.
type Daemons interface {
	// Start returns when clients can connect, or says why they cannot. A daemon that
	// runs as it is wanted is left alone; one of that name for other devices is an
	// error.
	Start(ctx context.Context, d mps.Daemon) error
	// Stop returns when the daemon has ended and everything of it is removed, also
	// where there was nothing.
	Stop(ctx context.Context, id string) error
	// Edits are what a client needs.
	Edits(id string, limits mps.Limits) cdispec.ContainerEdits
}
