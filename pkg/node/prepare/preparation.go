package prepare

import (
	"fmt"

	cdispec "tags.cncf.io/container-device-interface/specs-go"

	"github.com/mica-gpu/mica/pkg/gpu"
	"github.com/mica-gpu/mica/pkg/node/journal"
)

// preparation is how the devices of one base are prepared, in shares or not.
type preparation interface {
	// inspect compares the record of a device with its GPU before anything is done, and
	// tells whether the steps have something to change. siblings are other shares of
	// the device.
	inspect(device *journal.Device, g gpu.GPU, siblings []journal.Device, tools Tools) (change bool, err error)
	// steps are what is done for the base, and undone.
	steps() []journal.Step
	// intact tells whether what the claim was given is still there.
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

// preparationOf refuses what it does not know: taken for a whole GPU, it would be given to
// a second claim, or stay as it is for ever.
func preparationOf(base string) (preparation, error) {
	p, known := preparations[base]
	if !known {
		return nil, fmt.Errorf("the shape %q is unknown to this version of the plugin: install the version again that knows it", base)
	}
	return p, nil
}

// stepType is what a Step of a record stands for.
type stepType struct {
	// add makes the step for a device of the record, and writes what it learns into it.
	add func(w *work, record *journal.Record, device int, others neighbours)
	// nothing tells that it leaves nothing that would have to be undone.
	nothing bool
	// fades tells that the effect does not outlive a reset, or a kernel driver that let
	// go of the GPU while no process held it.
	fades bool
}

// steps are by the name that a record has.
var steps = map[journal.Step]stepType{
	journal.DisableMIG:     {add: (*work).addDisable, nothing: true},
	journal.MakePartition:  {add: (*work).addPartition},
	journal.SetTimeSlice:   {add: (*work).addInterval, fades: true},
	journal.SetComputeMode: {add: (*work).addMode, fades: true},
	journal.RunDaemon:      {add: (*work).addClient},
}
