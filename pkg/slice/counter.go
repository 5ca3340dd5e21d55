package slice

import (
	"fmt"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/mica-gpu/mica/pkg/gpu"
)

// counterSet has the same name in NVIDIA's driver.
func counterSet(g gpu.GPU, counters []gpu.Counter) resourceapi.CounterSet {
	set := resourceapi.CounterSet{
		Name:     fmt.Sprintf("gpu-%d-counter-set", g.Minor),
		Counters: make(map[string]resourceapi.Counter, len(counters)),
	}
	for _, c := range counters {
		set.Counters[c.Name] = counter(c, c.Total)
	}
	return set
}

// consumption is nil for a shape that takes none of the counters.
func consumption(set string, counters []gpu.Counter, shape gpu.Shape) []resourceapi.DeviceCounterConsumption {
	used := map[string]resourceapi.Counter{}
	for _, c := range counters {
		if n := c.UsedBy(shape); n > 0 {
			used[c.Name] = counter(c, n)
		}
	}
	if len(used) == 0 {
		return nil
	}
	return []resourceapi.DeviceCounterConsumption{{CounterSet: set, Counters: used}}
}

func counter(c gpu.Counter, n uint64) resourceapi.Counter {
	format := resource.DecimalSI
	if c.Bytes() {
		format = resource.BinarySI
	}
	return resourceapi.Counter{Value: *resource.NewQuantity(int64(n), format)}
}
