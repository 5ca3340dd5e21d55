package prepare

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	cdispec "tags.cncf.io/container-device-interface/specs-go"

	"github.com/mica-gpu/mica/pkg/gpu"
	"github.com/mica-gpu/mica/pkg/node/journal"
)

// preparation is how the devices of one base are prepared, in shares or not.
type preparation interface {
	// steps are the names of what is done for the base, and undone.
	steps() []string
	// inspect compares the record of a device with its GPU before anything is done, and
	// reports whether the steps have something to change. siblings are other shares of the
	// device.
	inspect(device *journal.Device, g gpu.GPU, siblings []journal.Device, tools Tools) (change bool, err error)
	// intact reports whether the prepared device is still there.
	intact(device journal.Device, tools Tools) (bool, error)
	// edits are what a container needs to use it.
	edits(device journal.Device, edits Edits) (cdispec.ContainerEdits, error)
}

// preparations are by the Base of a gpu.Form.
var preparations = map[string]preparation{
	gpu.BaseWhole:     wholeGPU{},
	gpu.BasePartition: dynamicMIG{},
	gpu.BaseStatic:    staticMIG{},
}

// preparationOf refuses an unknown base: taken for a whole GPU, the device would be given to
// a second claim, or never be undone.
func preparationOf(base string) (preparation, error) {
	p, known := preparations[base]
	if !known {
		return nil, fmt.Errorf("the shape %q is unknown to this version of the plugin: install the version again that knows it", base)
	}
	return p, nil
}

// step is one effect on a GPU, whose lock the caller holds. Both methods may be repeated.
// undo needs only the record from which the step was made: it finds the effect, a part of
// it, or nothing.
type step interface {
	do(ctx context.Context, tools Tools) error
	undo(ctx context.Context, tools Tools) error
}

// Names of steps in records.
const (
	disableMIGStep = "disable-mig"
	enableMIGStep  = "enable-mig"
	makeStep       = "make-partition"
	setTimeSlice   = "set-time-slice"
	setComputeMode = "set-compute-mode"
	runDaemon      = "run-daemon"
)

// stepType is the meaning of a step's name.
type stepType struct {
	// add makes the step for a device of the record. The step writes what it learns into it.
	add func(w *work, at spot)
	// inspect, if there is one, is for steps of sharing what it is for a preparation.
	inspect func(device *journal.Device, siblings []journal.Device, tools Tools) (change bool, err error)
	// nothing: it leaves nothing to undo.
	nothing bool
	// fades: the effect does not outlive a reset of the GPU, or a kernel driver that let
	// go of the GPU while no process held it.
	fades bool
}

// stepTypes are by their names.
var stepTypes = map[string]stepType{
	disableMIGStep: {add: addDisable, nothing: true},
	enableMIGStep:  {add: addEnable},
	makeStep:       {add: addPartition},
	setTimeSlice:   {add: addTimeSlice, inspect: inspectTimeSlice, fades: true},
	setComputeMode: {add: addComputeMode, inspect: inspectComputeMode, fades: true},
	runDaemon:      {add: addClient, inspect: inspectDaemon},
}

// leaves reports whether a step may have left effects; an unknown step may.
func leaves(s journal.Step) bool { return !stepTypes[s.Name].nothing }

// spot is where a step stands: a device of a record, beside the devices of other claims.
type spot struct {
	record *journal.Record
	index  int
	others neighbours
}

func (s spot) device() *journal.Device { return &s.record.Devices[s.index] }

// dataOf is the data of a device's step, zero without the step. Its type changes only with
// the schema of the journal, so it can be read.
func dataOf[T any](device journal.Device, step string) (data T) {
	if i := stepIndex(device, step); i >= 0 {
		_ = json.Unmarshal(device.Steps[i].Data, &data)
	}
	return data
}

func setData(device *journal.Device, step string, data any) error {
	encoded, err := json.Marshal(data)
	device.Steps[stepIndex(*device, step)].Data = encoded
	return err
}

func stepIndex(device journal.Device, step string) int {
	return slices.IndexFunc(device.Steps, func(s journal.Step) bool { return s.Name == step })
}

func hasStep(device journal.Device, step string) bool { return stepIndex(device, step) >= 0 }
