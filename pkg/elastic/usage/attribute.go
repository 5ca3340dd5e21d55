package usage

import (
	"fmt"

	"github.com/mica-gpu/mica/pkg/elastic/workload"
)

// hold is a device, or a share of one, that a claim of the workload holds.
type hold struct {
	device workload.Device
	// node has a pod that holds the device.
	node string
	// idle: no pod that could use the device has started, so no plugin is asked.
	idle     bool
	reading  Reading
	fraction fraction
	// together is the fraction of the device's memory in all its shares, including this one.
	together float64
}

// fraction is the part of a device's time and memory that a claim holds, 0 to 1.
type fraction struct{ time, memory float64 }

// alone is the fraction of a claim that does not share its device.
var alone = fraction{time: 1, memory: 1}

// attribute computes the usage of a workload from its devices' readings.
func attribute(holds []hold) Usage {
	return Usage{
		Utilization: mean(holds, hold.utilization),
		Memory:      mean(holds, hold.memory),
		Devices:     len(holds),
	}
}

// mean is a weighted mean; 0 without devices.
func mean(holds []hold, of func(hold) (value, weight float64, err error)) Mean {
	var sum, weights float64
	for _, h := range holds {
		value, weight, err := of(h)
		if err != nil {
			return Mean{Err: err}
		}
		sum += value * weight
		weights += weight
	}
	if weights == 0 {
		return Mean{}
	}
	return Mean{Value: sum / weights}
}

func (h hold) utilization() (value, weight float64, err error) {
	if h.idle {
		return 0, h.fraction.time, nil
	}
	if h.reading.Utilization == nil {
		return 0, 0, fmt.Errorf("%s %w its utilization, as partitions of many boards do not: scale the workload by its devices' memory, or by its own metrics", h, ErrNotReported)
	}
	return *h.reading.Utilization, h.fraction.time, nil
}

func (h hold) memory() (value, weight float64, err error) {
	if h.idle {
		return 0, h.fraction.memory, nil
	}
	used, total := h.reading.MemoryUsed, h.reading.MemoryTotal
	if used == nil || total == nil {
		return 0, 0, fmt.Errorf("%s %w its memory: scale the workload by its devices' utilization, or by its own metrics", h, ErrNotReported)
	}
	return min(1, h.usedBytes()/(h.fraction.memory**total)), h.fraction.memory, nil
}

// usedBytes is this share's part of the device's used memory. Over all shares of a device it sums up
// to the used memory.
func (h hold) usedBytes() float64 {
	return *h.reading.MemoryUsed * h.fraction.memory / h.together
}

// String identifies the device in errors.
func (h hold) String() string { return fmt.Sprintf("device %s of node %s", h.device.Name, h.node) }
