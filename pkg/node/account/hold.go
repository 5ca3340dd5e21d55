package account

import (
	resourceapi "k8s.io/api/resource/v1"

	"github.com/mica-gpu/mica/pkg/gpu"
	"github.com/mica-gpu/mica/pkg/node/journal"
)

// Hold is a device, or a share of one, that a prepared claim has.
type Hold struct {
	Namespace, Claim string
	// Pods are the names of those that have the claim, as far as they are known.
	Pods []string
	// Device is its name in the node's pool, Type and Profile are published of it.
	Device, Type, Profile string
	// UUID is that of the physical GPU, Placement the part of it that is a partition.
	UUID      string
	Placement gpu.Placement
	// Part is what the claim has of the device's time: of a share its shares, or its cores under
	// MPS; 1 of a device that it has to itself.
	Part float64
	// GPUs is the part of a physical GPU that is charged: of a partition the part of the GPU's memory
	// slices, of a share its Part of what is shared. It is 0 for a device that is not offered (any
	// more), of whose GPU nobody here knows how large it is.
	GPUs float64
}

// Claim is what a claim's record does not have.
type Claim struct {
	Pods []string
	// shares are how many shares the claim has of devices whose time is sliced, by share ID.
	shares map[string]float64
}

// ClaimOf reads an object. driver is the one whose devices count.
func ClaimOf(claim *resourceapi.ResourceClaim, driver string) Claim {
	known := Claim{shares: map[string]float64{}}
	for _, consumer := range claim.Status.ReservedFor {
		if consumer.APIGroup == "" && consumer.Resource == "pods" {
			known.Pods = append(known.Pods, consumer.Name)
		}
	}
	if claim.Status.Allocation == nil {
		return known
	}
	for _, result := range claim.Status.Allocation.Devices.Results {
		if result.Driver != driver || result.ShareID == nil {
			continue
		}
		for _, name := range []string{gpu.CapacityShares, driver + "/" + gpu.CapacityShares} {
			if quantity, found := result.ConsumedCapacity[resourceapi.QualifiedName(name)]; found {
				known.shares[string(*result.ShareID)] = quantity.AsApproximateFloat64()
			}
		}
	}
	return known
}

// Holds are the devices of prepared claims. Of the claims and shapes that are not known yet, what
// they would tell is missing. Who only looks at a device does not hold it.
func Holds(prepared []journal.Record, claims map[string]Claim, shapes map[string]gpu.Shape) []Hold {
	var holds []Hold
	for _, record := range prepared {
		claim := claims[record.ClaimUID]
		for _, device := range record.Devices {
			if device.AdminAccess {
				continue
			}
			hold := Hold{
				Namespace: record.Namespace, Claim: record.Name, Pods: claim.Pods,
				Device: device.Device, Type: device.Type, UUID: device.UUID, Placement: device.Form().Placement,
				Part: claim.part(device),
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

// part is what the claim has of the device's time.
func (c Claim) part(device journal.Device) float64 {
	const allCores = 100
	form := device.Form()
	switch {
	case form.Shares == 0, form.Served() && device.MPS.Cores == 0:
		return 1
	case form.Served():
		return float64(device.MPS.Cores) / allCores
	}
	return max(c.shares[device.ShareID], 1) / float64(form.Shares)
}
