package usage

import (
	"fmt"

	"github.com/mica-gpu/mica/pkg/elastic/workload"
)

// hold is a device, or a share of one, that a claim of the workload holds.
type hold struct {
	device workload.Device
	// node is that of a pod which holds the device: its plugin is asked.
	node string
	// idle tells that no pod has started which could use it: nobody was asked for a reading.
	idle     bool
	reading  Reading
	fraction fraction
	// together is the part of the device's memory that all who hold a share of it have; that of
	// fraction itself is in it.
	together float64
}

// fraction is how much of a device a claim holds: of its time, and of its memory. All of it is 1.
type fraction struct{ time, memory float64 }

// alone is the fraction of who shares a device with nobody.
var alone = fraction{time: 1, memory: 1}

// attribute gives a workload its devices' readings.
func attribute(holds []hold) Usage {
	return Usage{
		Utilization: mean(holds, hold.utilization),
		Memory:      mean(holds, hold.memory),
		Devices:     len(holds),
	}
}

// mean is that of the values with their weights; without a device, it is 0.
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
		return 0, 0, fmt.Errorf("%s %w its utilization, as partitions of many boards do not: scale the workload by its devices' memory, or by its own metrics", h, ErrUntold)
	}
	return *h.reading.Utilization, h.fraction.time, nil
}

func (h hold) memory() (value, weight float64, err error) {
	if h.idle {
		return 0, h.fraction.memory, nil
	}
	used, total := h.reading.MemoryUsed, h.reading.MemoryTotal
	if used == nil || total == nil {
		return 0, 0, fmt.Errorf("%s %w its memory: scale the workload by its devices' utilization, or by its own metrics", h, ErrUntold)
	}
	return min(1, h.usedBytes()/(h.fraction.memory**total)), h.fraction.memory, nil
}

// usedBytes is what is used of the device's memory, as far as it counts for this hold: over all
// who hold a share of the device, this sums up to what is used.
func (h hold) usedBytes() float64 {
	return *h.reading.MemoryUsed * h.fraction.memory / h.together
}

// String is the device for people to find.
func (h hold) String() string { return fmt.Sprintf("device %s of node %s", h.device.Name, h.node) }
