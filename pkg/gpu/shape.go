package gpu

import "fmt"

// Shape is one way in which a physical GPU can be given to a claim.
type Shape interface {
	// Name is the device's name in the node's pool: a DNS label, unique on
	// the node, the same after every restart.
	Name() string
	// Type is the value of the `type` attribute that device classes select.
	Type() string
	// Physical is the GPU that the shape is made from.
	Physical() GPU
	// Form is the shape without its GPU.
	Form() Form
	// UUID is what NVIDIA's tools call the device, or what is shared. It is empty for a
	// partition that is made when a claim gets it.
	UUID() string
	// MemoryBytes is the memory of the device, or of what is shared, 0 where it is not
	// known.
	MemoryBytes() uint64
	// Uses is how much of one of its GPU's Counters the shape takes.
	Uses(c Counter) uint64
	// Describe tells what is published of the shape.
	Describe(d Description)
}

// Base is a Shape that one claim has to itself and that several can have shares of.
type Base interface {
	Shape
	// identify tells what is published of the base and of its shares.
	identify(d Description)
	// sharedType is the Type of shares.
	sharedType(s Sharing) string
	// sharedUses is what the base takes once, however many claims have a share of it.
	sharedUses(c Counter) uint64
}

// Whole is the shape of an entire GPU, given to one claim at a time.
type Whole struct{ GPU GPU }

// Name is gpu-<minor>, as in NVIDIA's driver.
func (w Whole) Name() string { return fmt.Sprintf("gpu-%d", w.GPU.Minor) }

// Type is "gpu".
func (w Whole) Type() string { return "gpu" }

// Physical is the GPU itself.
func (w Whole) Physical() GPU { return w.GPU }

// Form is that of the entire GPU.
func (w Whole) Form() Form { return Form{Base: BaseWhole} }

// UUID is the GPU's.
func (w Whole) UUID() string { return w.GPU.UUID }

// MemoryBytes is the GPU's frame buffer.
func (w Whole) MemoryBytes() uint64 { return w.GPU.MemoryBytes }

// Uses is a part of every memory slice, which leaves no whole one to a partition.
func (w Whole) Uses(c Counter) uint64 { return c.whole }

// Describe has the engines of the GPU's largest profile where it can be partitioned at
// once, as in NVIDIA's driver; on boards where that takes a reset, the GPU has more
// than the largest profile.
func (w Whole) Describe(d Description) {
	w.identify(d)
	if w.GPU.MemoryBytes != 0 { // a claim that asks for memory must not match by accident
		d.Bytes(CapacityMemory, w.GPU.MemoryBytes)
	}
	if w.GPU.MIGSwitchable && len(w.GPU.Profiles) > 0 {
		w.GPU.FreeResources().Engines.describe(d)
	}
}

func (w Whole) identify(d Description) {
	d.Text(AttributeUUID, w.GPU.UUID)
	d.Number(AttributeIndex, &w.GPU.Index)
	d.Number(AttributeMinor, &w.GPU.Minor)
	d.Truth(AttributeECCEnabled, w.GPU.ECCEnabled)
	d.Number(AttributeNVLinkGroup, w.GPU.NVLinkGroup)
}

func (w Whole) sharedType(s Sharing) string { return s.Name() }

// sharedUses leaves neither the whole GPU nor anything else of it.
func (w Whole) sharedUses(c Counter) uint64 { return c.shared }

// bases are all bases, and what they are on a GPU.
var bases = map[string]func(g GPU, p Placement) (base Base, offered bool){
	BaseWhole: func(g GPU, _ Placement) (Base, bool) { return Whole{GPU: g}, g.OffersWhole() },
	// In the place of a partition there may be somebody else's by now, and the reverse.
	BasePartition: GPU.at,
	BaseStatic:    GPU.at,
}

// Policy is which shapes of a GPU are offered.
type Policy struct {
	// Whole offers the entire GPU to one claim at a time.
	Whole bool
	// MIG offers partitions, where the board and its mode allow, to one claim each.
	MIG bool
	// Profiles are the profiles of which partitions are offered, by name; nil for all.
	Profiles []string
	// SharedProfiles are the profiles of which partitions are offered in shares,
	// by name.
	SharedProfiles map[string]Sharing
	// TimeSlicing and MPS offer the entire GPU in shares; nil where they do not.
	TimeSlicing *TimeSlicing
	MPS         *MPS
}

// ByDefault is the policy of nodes for which there is no other: what NVIDIA's
// driver offers.
func ByDefault(GPU) Policy { return Policy{Whole: true, MIG: true} }

// Shapes lists what a node offers, in the order in which it is published: whole
// GPUs first and those in shares next, because they are few and the scheduler
// tries devices in this order, then GPU by GPU its partitions. The GPUs'
// Instances must be those that are not ours.
func Shapes(gpus []GPU, policy func(GPU) Policy) []Shape {
	sorted := SortByLocality(gpus)
	policies := make([]Policy, len(sorted))
	for i, g := range sorted {
		policies[i] = policy(g)
	}
	var shapes []Shape
	for _, coarse := range []func(Whole, Policy) (Shape, bool){whole, timeSliced, servedByMPS} {
		for i, g := range sorted {
			if shape, offered := coarse(Whole{GPU: g}, policies[i]); offered && g.OffersWhole() {
				shapes = append(shapes, shape)
			}
		}
	}
	for i, g := range sorted {
		shapes = append(shapes, g.partitioned(policies[i])...)
	}
	return shapes
}

func whole(w Whole, p Policy) (Shape, bool) { return w, p.Whole }

func timeSliced(w Whole, p Policy) (Shape, bool) {
	if p.TimeSlicing == nil {
		return nil, false
	}
	return Share{Of: w, Sharing: *p.TimeSlicing}, true
}

func servedByMPS(w Whole, p Policy) (Shape, bool) {
	if p.MPS == nil {
		return nil, false
	}
	return Share{Of: w, Sharing: *p.MPS}, true
}

// partitioned are the partitions of a GPU, those for one claim each before those
// in shares. No counter keeps apart the claims of an instance that somebody else
// has made, so one whose profile is shared is only offered in shares.
func (g GPU) partitioned(policy Policy) []Shape {
	var exclusive, shared []Shape
	statics, _ := g.Statics()
	for _, s := range statics {
		if sharing, ok := policy.SharedProfiles[s.Profile.Name]; ok {
			shared = append(shared, Share{Of: s, Sharing: sharing})
		} else if policy.offers(s.Profile.Name) {
			exclusive = append(exclusive, s)
		}
	}
	for _, p := range g.Partitions() {
		if policy.offers(p.Profile.Name) {
			exclusive = append(exclusive, p)
		}
		if sharing, ok := policy.SharedProfiles[p.Profile.Name]; ok {
			shared = append(shared, Share{Of: p, Sharing: sharing})
		}
	}
	return append(exclusive, shared...)
}

// OffersWhole tells whether a claim can have the entire GPU. One that somebody
// has partitioned cannot be given whole, and neither can one with MIG enabled,
// unless the mode can be switched at once.
func (g GPU) OffersWhole() bool {
	return g.MIG != MIGEnabled || g.MIGSwitchable && len(g.Instances) == 0
}

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
