package gpu

import "slices"

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
	// MemoryBytes is the memory of the device, or of what is shared, 0 if unknown.
	MemoryBytes() uint64
	// Uses is how much of one of its GPU's Counters that decide the shape takes.
	Uses(c Counter) uint64
	// Describe describes what is published about the shape.
	Describe(d Description)
}

// Base is a Shape that one claim has to itself and that several can have shares of.
type Base interface {
	Shape
	// identify describes what is published about the base and its shares.
	identify(d Description)
	// sharedType is the Type of shares.
	sharedType(s Sharing) string
	// sharedUses is what the base takes once, however many claims have a share of it.
	sharedUses(c Counter) uint64
}

// bases are all bases, and what they are on a GPU.
var bases = map[string]func(g GPU, p Placement) (base Base, offered bool){
	BaseWhole: func(g GPU, _ Placement) (Base, bool) { return Whole{GPU: g}, g.OffersWhole() },
	// An administrator's partition may have replaced Mica's in the same place, and the reverse.
	BasePartition: GPU.at,
	BaseStatic:    GPU.at,
}

// Policy is which shapes of a GPU are offered.
type Policy struct {
	// Whole offers the entire GPU to one claim at a time.
	Whole bool
	// MIG offers partitions to one claim each, if the board and its mode allow.
	MIG bool
	// Profiles are the names of the profiles whose partitions are offered; nil for all.
	Profiles []string
	// SharedProfiles are the profiles whose partitions are offered in shares, by name.
	SharedProfiles map[string]Sharing
	// TimeSlicing and MPS offer the entire GPU in shares, unless they are nil.
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
	var whole, timeSliced, served, partitions []Shape
	for _, g := range SortByLocality(gpus) {
		p, w := policy(g), Whole{GPU: g}
		if g.OffersWhole() && p.Whole {
			whole = append(whole, w)
		}
		if g.OffersWhole() && p.TimeSlicing != nil {
			timeSliced = append(timeSliced, Share{Of: w, Sharing: *p.TimeSlicing})
		}
		if g.OffersWhole() && p.MPS != nil {
			served = append(served, Share{Of: w, Sharing: *p.MPS})
		}
		partitions = append(partitions, g.partitioned(p)...)
	}
	return slices.Concat(whole, timeSliced, served, partitions)
}

// partitioned are the partitions of a GPU, those for one claim each before those
// in shares. No counter keeps apart the claims of an administrator's instance, so one
// whose profile is shared is only offered in shares.
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
