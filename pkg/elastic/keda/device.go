package keda

import (
	"context"
	"fmt"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/mica-gpu/mica/pkg/elastic/workload"
	"github.com/mica-gpu/mica/pkg/scaleout"
)

// freeDevices counts the devices of a class that nobody holds. Those that the target itself
// holds count as well: else each replica would take from the number that keeps it.
type freeDevices struct {
	polled
	replica scaleout.Replica
	class   string
}

// warmDevices counts the free devices that headroom keeps.
type warmDevices struct {
	polled
	replica scaleout.Replica
	class   string
}

func readFree(f fields, _ string, _ *workload.Ref) (metric, error) {
	replica, err := readReplica(f)
	return freeDevices{replica: replica, class: f[keyDeviceClass]}, err
}

func readWarm(f fields, _ string, _ *workload.Ref) (metric, error) {
	replica, err := readReplica(f)
	return warmDevices{replica: replica, class: f[keyDeviceClass]}, err
}

// readReplica is a claim of one device: room for one is one device.
func readReplica(f fields) (scaleout.Replica, error) {
	class, err := f.class()
	if err != nil {
		return scaleout.Replica{}, err
	}
	if class == "" {
		return scaleout.Replica{}, fmt.Errorf("%s is missing: it says which devices are counted", keyDeviceClass)
	}
	selector, err := f.selector()
	if err != nil {
		return scaleout.Replica{}, err
	}
	request := resourceapi.ExactDeviceRequest{
		DeviceClassName: class,
		AllocationMode:  resourceapi.DeviceAllocationModeExactCount,
		Count:           1,
	}
	if selector != "" {
		request.Selectors = []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: selector}}}
	}
	return scaleout.Replica{
		ID: "DeviceClass/" + class + "/" + selector,
		Claim: &resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{
			Requests: []resourceapi.DeviceRequest{{Name: "device", Exactly: &request}},
		}},
	}, nil
}

func (m freeDevices) value(ctx context.Context, from *Sources, target *workload.State) (float64, error) {
	supply, err := from.devices(ctx, m.replica)
	if err != nil || target == nil {
		return float64(supply.Free), err
	}
	return float64(ofWhole(supply.Free+from.held(target, m.class), target, m.class)), nil
}

// ofWhole leaves of a number of devices those for whole replicas of the target: with the others no
// gang could be started, and rounded up they would ask for one. Where the pods do not say how many
// they ask for, all count.
func ofWhole(count int, target *workload.State, class string) int {
	each := 0
	for _, member := range target.Gang {
		each += member.Count * member.Devices[class]
	}
	if each == 0 {
		return count
	}
	return count - count%each
}

// held counts the devices of a class that pods hold of which the plan knew: what others hold was
// free to it. Pods that share a claim share its devices.
func (s *Sources) held(target *workload.State, class string) int {
	n := 0
	first := map[types.UID]types.UID{}
	for _, pod := range target.Pods {
		if !s.Forecast.Known(pod.UID) {
			continue
		}
		for _, device := range pod.Devices {
			if _, taken := first[device.Claim]; !taken {
				first[device.Claim] = pod.UID
			}
			if first[device.Claim] == pod.UID && device.Class == class {
				n++
			}
		}
	}
	return n
}

func (m warmDevices) value(ctx context.Context, from *Sources, target *workload.State) (float64, error) {
	supply, err := from.devices(ctx, m.replica)
	if err != nil || target == nil {
		return float64(supply.Kept), err
	}
	return float64(ofWhole(supply.Kept, target, m.class)), nil
}

// devices counts those that a replica of one stands for.
func (s *Sources) devices(ctx context.Context, replica scaleout.Replica) (scaleout.Supply, error) {
	supply, err := s.supply(ctx, replica)
	if err != nil {
		request := replica.Claim.Devices.Requests[0].Exactly
		return scaleout.Supply{}, fmt.Errorf("how many devices of DeviceClass %s are free is not known: %w", request.DeviceClassName, err)
	}
	return supply, nil
}
