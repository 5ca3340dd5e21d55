package account

import (
	"cmp"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/mica-gpu/mica/pkg/gpu"
	"github.com/mica-gpu/mica/pkg/node/journal"
)

// Hold is a device, or a share of one, that a prepared claim has.
type Hold struct {
	Namespace, Claim string
	// Pods are the names of the claim's pods, as far as they are known.
	Pods []string
	// Device is its name in the node's pool; Type and Profile are its published ones.
	Device, Type, Profile string
	// UUID is that of the physical GPU, Placement the partition's part of it.
	UUID      string
	Placement gpu.Placement
	// Part is the claim's part of the device's time: its shares, its cores under MPS, or an equal
	// part if the number of claims is not limited; 1 for a device that it has to itself.
	Part float64
	// GPUs is the part of a physical GPU that is charged: Part of the device's part of the
	// GPU's memory slices. It is 0 for a device that is no longer offered, whose GPU is
	// unknown.
	GPUs float64
}

// Claim has the facts about a claim that its record does not have.
type Claim struct {
	Pods []string
}

// ClaimOf reads an object.
func ClaimOf(claim *resourceapi.ResourceClaim) Claim {
	var known Claim
	for _, consumer := range claim.Status.ReservedFor {
		if consumer.APIGroup == "" && consumer.Resource == "pods" {
			known.Pods = append(known.Pods, consumer.Name)
		}
	}
	return known
}

// Holds are the devices of prepared claims, without those of admin access. Facts of claims and
// shapes that are not known yet are missing.
func Holds(prepared []journal.Record, claims map[string]Claim, shapes map[string]gpu.Shape) []Hold {
	var holds []Hold
	equal := equalParts(prepared)
	for _, record := range prepared {
		for _, device := range record.Devices {
			if device.AdminAccess {
				continue
			}
			hold := Hold{
				Namespace: record.Namespace, Claim: record.Name, Pods: claims[record.ClaimUID].Pods,
				Device: device.Device, Type: device.Type, UUID: device.UUID, Placement: device.Form.Placement,
				Part: cmp.Or(device.Part, equal[device.Device]),
			}
			if shape, offered := shapes[device.Device]; offered && shape.Physical().UUID == device.UUID {
				hold.Profile = shape.Form().Profile
				hold.GPUs = hold.Part * shape.Physical().PartOf(hold.Placement)
			}
			holds = append(holds, hold)
		}
	}
	return holds
}

// equalParts are the parts of claims without a part of their own, by device: they divide what the
// other claims of the device leave.
func equalParts(prepared []journal.Record) map[string]float64 {
	left, number := map[string]float64{}, map[string]float64{}
	for _, record := range prepared {
		for _, device := range record.Devices {
			switch {
			case device.AdminAccess:
			case device.Part == 0:
				number[device.Device]++
			default:
				left[device.Device] -= device.Part
			}
		}
	}
	parts := make(map[string]float64, len(number))
	for name, n := range number {
		parts[name] = max(0, 1+left[name]) / n
	}
	return parts
}
