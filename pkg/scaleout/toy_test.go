package scaleout

import (
	"fmt"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// toyMachines are small machines, so that a plan for them can be checked by trying everything.
var toyMachines = [][]resourceapi.ResourceSliceSpec{
	{{Devices: []resourceapi.Device{toyDevice("gpu-0", 24, 0)}}},
	{{Devices: []resourceapi.Device{toyDevice("gpu-0", 40, 0), toyDevice("gpu-1", 40, 0), toyDevice("gpu-2", 40, 1), toyDevice("gpu-3", 80, 1)}}},
	toyPartitions(),
	{{Devices: []resourceapi.Device{toyShared("gpu-0"), toyShared("gpu-1")}}},
}

// toyDevice is a GPU with memory, linked to others of its group.
func toyDevice(name string, memory, group int64) resourceapi.Device {
	return resourceapi.Device{
		Name: name,
		Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
			"type": {StringValue: ptr.To("whole")}, "group": {IntValue: ptr.To(group)}, "name": {StringValue: ptr.To(name)},
		},
		Capacity: map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{"memory": {Value: *resource.NewQuantity(memory, resource.DecimalSI)}},
	}
}

// toyPartitions are two GPUs, each as a whole or in two halves.
func toyPartitions() []resourceapi.ResourceSliceSpec {
	var devices []resourceapi.Device
	var counters []resourceapi.CounterSet
	for g := range int64(2) {
		set := fmt.Sprintf("gpu-%d-counters", g)
		counters = append(counters, resourceapi.CounterSet{Name: set, Counters: map[string]resourceapi.Counter{"half": {Value: resource.MustParse("2")}}})
		add := func(name, kind string, memory int64, halves string) {
			d := toyDevice(name, memory, g)
			d.Attributes["type"] = resourceapi.DeviceAttribute{StringValue: ptr.To(kind)}
			d.ConsumesCounters = []resourceapi.DeviceCounterConsumption{{CounterSet: set, Counters: map[string]resourceapi.Counter{"half": {Value: resource.MustParse(halves)}}}}
			devices = append(devices, d)
		}
		add(fmt.Sprintf("gpu-%d", g), "whole", 40, "2")
		add(fmt.Sprintf("gpu-%d-left", g), "half", 20, "1")
		add(fmt.Sprintf("gpu-%d-right", g), "half", 20, "1")
	}
	return []resourceapi.ResourceSliceSpec{{Devices: devices}, {SharedCounters: counters}}
}

// toyShared is a GPU that any number of claims share, four shares in all.
func toyShared(name string) resourceapi.Device {
	d := toyDevice(name, 24, 0)
	d.Attributes["type"] = resourceapi.DeviceAttribute{StringValue: ptr.To("shared")}
	d.AllowMultipleAllocations = ptr.To(true)
	one := resource.MustParse("1")
	d.Capacity["shares"] = resourceapi.DeviceCapacity{Value: resource.MustParse("4"),
		RequestPolicy: &resourceapi.CapacityRequestPolicy{Default: &one, ValidRange: &resourceapi.CapacityRequestPolicyRange{Min: &one, Step: &one}}}
	return d
}

func toySlices(machine int, node string) []*resourceapi.ResourceSlice {
	return named(toyMachines[machine], node, nil)
}

func toyClass() *resourceapi.DeviceClass {
	return &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "toy", UID: "toy"},
		Spec: resourceapi.DeviceClassSpec{Selectors: selectors("device.driver == 'gpu.nvidia.com'")}}
}

// toyClaims are written as in scenarios.
var toyClaims = []string{
	"template whole", "request gpu toy cel=`device.attributes['gpu.nvidia.com'].type == 'whole'`",
	"template two", "request gpu toy count=2 cel=`device.attributes['gpu.nvidia.com'].type == 'whole'`",
	"template linked", "request gpu toy count=2 cel=`device.attributes['gpu.nvidia.com'].type == 'whole'`", "match gpu.nvidia.com/group",
	"template half", "request gpu toy cel=`device.attributes['gpu.nvidia.com'].type == 'half'`",
	"template apart", "request a toy cel=`device.attributes['gpu.nvidia.com'].type == 'half'`",
	"request b toy cel=`device.attributes['gpu.nvidia.com'].type != 'shared'`", "distinct gpu.nvidia.com/group",
	"template share", "request gpu toy cel=`device.attributes['gpu.nvidia.com'].type == 'shared'` capacity=shares:2",
	"template large", "request gpu toy cel=`device.capacity['gpu.nvidia.com'].memory.compareTo(quantity('40')) >= 0`",
	"template all", "request gpu toy all cel=`device.attributes['gpu.nvidia.com'].type == 'whole'`",
	"template either", "first gpu", "or big toy cel=`device.capacity['gpu.nvidia.com'].memory.compareTo(quantity('80')) >= 0`", "or any toy",
	"template watch", "request gpu toy all admin",
	"template huge", "request gpu toy cel=`device.capacity['gpu.nvidia.com'].memory.compareTo(quantity('800')) >= 0`",
	"claim common", "request gpu toy",
}

// toyPods ask for them.
var toyPods = []string{
	"templates=whole", "templates=two", "templates=linked", "templates=half", "templates=apart", "templates=share", "templates=large",
	"templates=all", "templates=either", "templates=watch", "templates=huge", "claims=common", "templates=whole,half", "templates=large select=zone:a",
}
