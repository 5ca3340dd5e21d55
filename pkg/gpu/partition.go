package gpu

import (
	"fmt"
	"strings"
)

// Partition is the shape of a MIG partition that is made when a claim gets it.
type Partition struct {
	GPU     GPU
	Profile Profile
	// Start is the first memory slice.
	Start int
}

// Name is gpu-<minor>-mig-<profile>-<profile ID>-<start>, as in NVIDIA's
// driver. Only the ID distinguishes 1g.24gb+me from 1g.24gb-me.
func (p Partition) Name() string {
	profile := inNames.Replace(strings.ToLower(p.Profile.Name))
	return fmt.Sprintf("gpu-%d-mig-%s-%d-%d", p.GPU.Minor, profile, p.Profile.ID, p.Start)
}

// inNames makes a profile's name a part of a DNS label.
var inNames = strings.NewReplacer(".", "", "+", "-")

// Type is "mig".
func (p Partition) Type() string { return "mig" }

// Physical is the GPU that the partition is cut from.
func (p Partition) Physical() GPU { return p.GPU }

// Form is that of the place in which the partition is made.
func (p Partition) Form() Form {
	return Form{Base: BasePartition, Placement: Placement{ProfileID: p.Profile.ID, Profile: p.Profile.Name, Start: p.Start, Size: p.Profile.Size}}
}

// UUID is empty: the partition has none until it is made.
func (p Partition) UUID() string { return "" }

// MemoryBytes is the profile's.
func (p Partition) MemoryBytes() uint64 { return p.Profile.MemoryBytes }

// Uses is the partition's part.
func (p Partition) Uses(c Counter) uint64 { return c.use(p.Profile, p.Start) }

// Describe describes the profile.
func (p Partition) Describe(d Description) {
	p.identify(d)
	p.Profile.describe(d)
}

func (p Partition) identify(d Description) {
	d.Text(AttributeParentUUID, p.GPU.UUID)
	d.Text(AttributeProfile, p.Profile.Name)
}

func (p Partition) sharedType(s Sharing) string { return p.Type() + "-" + s.Name() }

func (p Partition) sharedUses(c Counter) uint64 { return p.Uses(c) }

// Partitions are the partitions that can be made beside the GPU's Instances,
// in the order in which they are published. There are none unless MIG is
// enabled or can be switched on at once.
func (g GPU) Partitions() []Partition {
	if g.MIG == MIGUnsupported || g.MIG == MIGDisabled && !g.MIGSwitchable {
		return nil
	}
	free := g.FreeResources()
	var partitions []Partition
	for _, p := range g.Profiles {
		for _, start := range p.Starts {
			if free.Fits(p, start) {
				partitions = append(partitions, Partition{GPU: g, Profile: p, Start: start})
			}
		}
	}
	sortForPublication(partitions)
	return partitions
}
