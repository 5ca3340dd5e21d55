package prepare

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	cdispec "tags.cncf.io/container-device-interface/specs-go"

	"github.com/mica-gpu/mica/pkg/gpu"
	"github.com/mica-gpu/mica/pkg/node/mps"
)

// Node is the driver's view of its node at one time.
type Node struct {
	Pool  Pool
	Edits Edits
	Tools
}

// Pool is what this node offers to claims.
type Pool struct {
	// Driver and Name select the results that are prepared here.
	Driver, Name string
	// Shapes are keyed by device name.
	Shapes map[string]gpu.Shape
	// Withheld is the reason why no further claim is prepared, if there is one. Shapes are
	// then valid for claims that are prepared already.
	Withheld error
	// InUse names the GPUs that are left out because something else uses them, and why.
	InUse string
}

// NewPool indexes shapes by device name.
func NewPool(driver, name string, shapes []gpu.Shape) Pool {
	pool := Pool{Driver: driver, Name: name, Shapes: make(map[string]gpu.Shape, len(shapes))}
	for _, shape := range shapes {
		pool.Shapes[shape.Name()] = shape
	}
	return pool
}

// namesShown keeps an error readable on a node with hundreds of partitions.
const namesShown = 10

func (p Pool) deviceNames() string {
	if len(p.Shapes) == 0 {
		return "none"
	}
	names := slices.Sorted(maps.Keys(p.Shapes))
	if more := len(names) - namesShown; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:namesShown], ", "), more)
	}
	return strings.Join(names, ", ")
}

// Edits derives what a container needs to use GPUs.
type Edits interface {
	Common() (cdispec.ContainerEdits, error)
	GPU(uuid string) (cdispec.ContainerEdits, error)
	// Partition is a MIG device, named by its GPU and NVML's IDs.
	Partition(uuid string, instance, compute int) (cdispec.ContainerEdits, error)
	// Fit reports whether a specification made of these edits is still what containers need.
	Fit(written cdispec.Spec) (bool, error)
}

// Tools change how GPUs are divided and shared. They name GPUs by UUID.
type Tools struct {
	// MIG is only needed if partitions are offered or recorded.
	MIG MIG
	// Modes and TimeSlices are only needed if GPUs are shared.
	Modes      Modes
	TimeSlices TimeSlices
	// Daemons is nil if the node runs no supervisor of MPS daemons.
	Daemons Daemons
}

// MIG makes and destroys partitions. Errors are those of pkg/node/nvml. After an error that
// gives no reason, the effect may have happened.
type MIG interface {
	MIGEnabled(uuid string) (bool, error)
	// SetMIG returns nvml.ErrResetRequired if the mode would not change at once.
	SetMIG(uuid string, enabled bool) error
	// Linked returns nvml.ErrRetraining after MIG was disabled, until the GPU's NVLinks are back.
	Linked(uuid string) error
	// HasInstances is one call of NVML. It counts all GPU instances, whoever made them, and
	// returns nvml.ErrNotSupported if MIG is not enabled.
	HasInstances(uuid string) (bool, error)
	// InstanceAt returns nil if there is none.
	InstanceAt(uuid string, profileID, start int) (*gpu.Instance, error)
	// DeviceAt is the UUID of a MIG device, empty if there is none.
	DeviceAt(uuid string, instance, compute int) (string, error)
	CreateInstance(uuid string, profileID, start, size int) (instance int, err error)
	CreateComputeInstance(uuid string, instance int) (gpu.MIGDevice, error)
	// Destroying what is gone already is no error.
	DestroyComputeInstance(uuid string, instance, compute int) error
	DestroyInstance(uuid string, instance int) error
}

// Modes reads and sets compute modes, with the names and errors of pkg/node/nvml.
type Modes interface {
	ComputeMode(uuid string) (string, error)
	SetComputeMode(uuid, mode string) error
}

// TimeSlices sets how long a process runs on a GPU before the next one may. Errors name the
// GPU and the remedy: errors.ErrUnsupported if the GPU has no time-slice to set,
// fs.ErrNotExist if the driver's program for it is missing.
type TimeSlices interface {
	Set(ctx context.Context, uuid string, interval gpu.Interval) error
}

// Daemons are the control daemons of MPS. Errors name the daemon and the remedy.
type Daemons interface {
	// Start returns when clients can connect, or why they cannot. It leaves a daemon alone
	// that runs as desired; for one of that name with other devices it returns mps.ErrOther.
	Start(ctx context.Context, d mps.Daemon) error
	// Stop returns when the daemon has ended, if there was one, and all of it is removed.
	Stop(ctx context.Context, id string) error
	// Edits are what a client needs.
	Edits(id string, limits mps.Limits) cdispec.ContainerEdits
}
