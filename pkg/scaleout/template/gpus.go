package template

import (
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/deviceattribute"

	"github.com/mica-gpu/mica/pkg/devices"
)

// GPUs counts the GPUs of a driver in the slices of a node, each once even if it is offered in several forms. It
// distinguishes them by their PCI bus ID, and on nodes that do not exist yet by the counters that their forms share.
func GPUs(driver string, published []*resourceapi.ResourceSlice) int {
	type gpu struct {
		pool devices.PoolID
		id   string
	}
	known := sets.New[gpu]()
	for _, slice := range published {
		if slice.Spec.Driver != driver {
			continue
		}
		for i := range slice.Spec.Devices {
			device := &slice.Spec.Devices[i]
			id := device.Name
			if bus := device.Attributes[deviceattribute.StandardDeviceAttributePCIBusID].StringValue; bus != nil {
				id = *bus
			} else if len(device.ConsumesCounters) > 0 {
				id = device.ConsumesCounters[0].CounterSet
			}
			known.Insert(gpu{devices.PoolOf(slice), id})
		}
	}
	return known.Len()
}
