package gpu

import (
	"fmt"
	"slices"
)

// Static is the shape of a MIG partition that an administrator created. Claims get it
// unchanged, and it is never destroyed.
type Static struct {
	GPU      GPU
	Profile  Profile
	Instance Instance
	Device   MIGDevice
}

// Name equals that of a Partition in the same place.
func (s Static) Name() string {
	return Partition{GPU: s.GPU, Profile: s.Profile, Start: s.Instance.Start}.Name()
}

// Type is "mig".
func (s Static) Type() string { return "mig" }

// Physical is the partition's GPU.
func (s Static) Physical() GPU { return s.GPU }

// Form has the IDs of the instance and its device.
func (s Static) Form() Form {
	return Form{Base: BaseStatic, Placement: Placement{
		ProfileID: s.Profile.ID, Profile: s.Profile.Name, Start: s.Instance.Start, Size: s.Instance.Size,
		InstanceID: s.Instance.ID, ComputeID: s.Device.ComputeID,
	}}
}

// UUID is the MIG device's.
func (s Static) UUID() string { return s.Device.UUID }

// MemoryBytes is the profile's.
func (s Static) MemoryBytes() uint64 { return s.Profile.MemoryBytes }

// Describe adds the profile and the memory slices.
func (s Static) Describe(d Description) {
	s.identify(d)
	s.Profile.describe(d)
	for i := range s.Instance.Size {
		d.Pieces(fmt.Sprint(capacityMemorySlice, s.Instance.Start+i), 1)
	}
}

func (s Static) identify(d Description) {
	d.Text(AttributeParentUUID, s.GPU.UUID)
	d.Text(AttributeProfile, s.Profile.Name)
	d.Text(AttributeUUID, s.Device.UUID)
}

func (s Static) sharedType(sharing Sharing) string { return s.Type() + "-" + sharing.Name() }

func (s Static) sharedUses(c Counter) uint64 { return s.Uses(c) }

// Uses is nothing of the FreeResources, which exclude the instance: only the counter that keeps
// its claims apart.
func (s Static) Uses(c Counter) uint64 {
	if c.ofInstances && c.start == s.Instance.Start {
		return c.Total
	}
	return 0
}

// Statics are the instances that claims can get: those of a known profile with
// exactly one compute instance, which fills them. The others are obstacles: their
// part of the GPU is not offered.
func (g GPU) Statics() (statics []Static, obstacles []Instance) {
	for _, i := range g.Instances {
		p, known := g.profile(i.ProfileID)
		if !known || len(i.Devices) != 1 || i.Devices[0].Slices != p.Slices {
			obstacles = append(obstacles, i)
			continue
		}
		statics = append(statics, Static{GPU: g, Profile: p, Instance: i, Device: i.Devices[0]})
	}
	slices.SortFunc(statics, func(a, b Static) int { return a.Instance.Start - b.Instance.Start })
	return statics, obstacles
}
