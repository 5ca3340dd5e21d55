package prepare

import (
	"fmt"

	"github.com/mica-gpu/mica/pkg/gpu"
	"github.com/mica-gpu/mica/pkg/node/journal"
)

// staticMIG is the preparation of a partition that somebody else has made: there is nothing
// to do.
type staticMIG struct{ migDevice }

func (staticMIG) steps() []journal.Step { return nil }

// inspect makes sure that the partition is still the one that was published.
func (staticMIG) inspect(device *journal.Device, _ gpu.GPU, _ []journal.Device, tools Tools) (change bool, err error) {
	there, err := exists(*device, tools.MIG)
	if err == nil && !there {
		err = fmt.Errorf("the MIG device %s of %s on %s is gone: whoever made it has destroyed it; delete the pod so that it is scheduled again", device.Partition.UUID, device.Device, device.UUID)
	}
	return false, err
}
