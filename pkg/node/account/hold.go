package account

import (
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
	// Part is the claim's part of the device's time: its shares, or its cores under MPS; 1
	// for a device that it has to itself.
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
	for _, record := range prepared {
		for _, device := range record.Devices {
			if device.AdminAccess {
				continue
			}
			hold := Hold{
				Namespace: record.Namespace, Claim: record.Name, Pods: claims[record.ClaimUID].Pods,
				Device: device.Device, Type: device.Type, UUID: device.UUID, Placement: device.Form.Placement,
				Part: device.Part,
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
