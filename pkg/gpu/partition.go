package gpu

import (
	"fmt"
	"strings"
)

// Partition is the shape of a MIG partition that is created for its claim.
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

// inNames turns a profile's name into a part of a DNS label.
var inNames = strings.NewReplacer(".", "", "+", "-")

// Type is "mig".
func (p Partition) Type() string { return "mig" }

// Physical is the partition's GPU.
func (p Partition) Physical() GPU { return p.GPU }

// Form has the place in which the partition is created.
func (p Partition) Form() Form {
	return Form{Base: BasePartition, Placement: Placement{ProfileID: p.Profile.ID, Profile: p.Profile.Name, Start: p.Start, Size: p.Profile.Size}}
}

// UUID is empty: the partition has none until it is created.
func (p Partition) UUID() string { return "" }

// MemoryBytes is the profile's.
func (p Partition) MemoryBytes() uint64 { return p.Profile.MemoryBytes }

// Uses is what the profile needs at its start.
func (p Partition) Uses(c Counter) uint64 { return c.use(p.Profile, p.Start) }

// Describe adds the profile.
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

// Partitions lists the partitions that can be created beside the GPU's Instances,
// in the order of publication. There are none unless MIG is enabled, or can be
// enabled without a reset.
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
