package gpu

import "slices"

// Shape is one way in which a claim can get a physical GPU.
type Shape interface {
	// Name is the device's name in the node's pool: a DNS label that is unique on
	// the node and stays the same over restarts.
	Name() string
	// Type is the value of the `type` attribute that device classes select.
	Type() string
	// Physical is the GPU that the shape is made from.
	Physical() GPU
	// Form is the shape without its GPU.
	Form() Form
	// UUID is the UUID that NVIDIA's tools show for the device, or for the device that is
	// shared. It is empty for a partition that is made when a claim gets it.
	UUID() string
	// MemoryBytes is the memory of the device, or of the device that is shared; 0 if unknown.
	MemoryBytes() uint64
	// Uses is how much the shape consumes of a deciding Counter of its GPU.
	Uses(c Counter) uint64
	// Describe adds the shape's attributes and capacities.
	Describe(d Description)
}

// Base is a Shape for one claim that can also be offered in shares.
type Base interface {
	Shape
	// identify adds the attributes that the base and its shares have in common.
	identify(d Description)
	// sharedType is the Type of shares.
	sharedType(s Sharing) string
	// sharedUses is what a device in shares consumes, however many claims share it.
	sharedUses(c Counter) uint64
}

// bases return the base of a GPU at a placement, by the name of its Form.
var bases = map[string]func(g GPU, p Placement) (base Base, offered bool){
	BaseWhole: func(g GPU, _ Placement) (Base, bool) { return Whole{GPU: g}, g.OffersWhole() },
	// An administrator's partition may have replaced Mica's in the same place, and the reverse.
	BasePartition: GPU.at,
	BaseStatic:    GPU.at,
}

// Policy is which shapes of a GPU are offered.
type Policy struct {
	// Whole offers the entire GPU to one claim at a time, or to several within Consumable.
	Whole      bool
	Consumable *ConsumableShares
	// MIG offers partitions to one claim each, if the board and its mode allow.
	MIG bool
	// OnlyExisting leaves out partitions that would have to be made.
	OnlyExisting bool
	// Profiles are the names of the profiles whose partitions are offered; nil for all.
	Profiles []string
	// SharedProfiles are the profiles whose partitions are offered in shares, by name.
	SharedProfiles map[string]Sharing
	// TimeSlicing and MPS offer the entire GPU in shares, unless they are nil.
	TimeSlicing *TimeSlicing
	MPS         *MPS
}

// ByDefault is the policy of nodes without a GPUPolicy: what NVIDIA's driver offers.
func ByDefault(GPU) Policy { return Policy{Whole: true, MIG: true} }

// Exists reports whether a shape is there before a claim gets it: an entire GPU, or an
// administrator's partition, also in shares.
func Exists(s Shape) bool { return s.Form().Base != BasePartition }

// Shapes lists what a node offers, in the order of publication, in which the scheduler tries
// devices. What exists comes first: whole GPUs and those in shares, which are few, then an
// administrator's partitions, so that no claim cuts a GPU while one of them is free. Partitions
// that would have to be made follow, GPU by GPU: on GPUs that are not whole before the others.
// The GPUs' Instances must be foreign ones.
func Shapes(gpus []GPU, policy func(GPU) Policy) []Shape {
	var whole, timeSliced, served, statics, sharedStatics, beside, cut []Shape
	for _, g := range SortByLocality(gpus) {
		p, w := policy(g), Whole{GPU: g}
		if g.OffersWhole() && p.Whole {
			whole = append(whole, p.whole(w))
		}
		if g.OffersWhole() && p.TimeSlicing != nil {
			timeSliced = append(timeSliced, Share{Of: w, Sharing: *p.TimeSlicing})
		}
		if g.OffersWhole() && p.MPS != nil {
			served = append(served, Share{Of: w, Sharing: *p.MPS})
		}
		exclusive, shared := g.existing(p)
		statics, sharedStatics = append(statics, exclusive...), append(sharedStatics, shared...)
		if made := g.partitioned(p); g.OffersWhole() {
			cut = append(cut, made...)
		} else {
			beside = append(beside, made...)
		}
	}
	sortStatics(statics)
	sortStatics(sharedStatics)
	return slices.Concat(whole, timeSliced, served, statics, sharedStatics, beside, cut)
}

func (p Policy) whole(w Whole) Shape {
	if p.Consumable != nil {
		return Consumable{Whole: w, Shares: *p.Consumable}
	}
	return w
}

// existing lists an administrator's partitions of a GPU. No counter keeps the claims of one
// apart, so a shared profile makes it available in shares only.
func (g GPU) existing(policy Policy) (exclusive, shared []Shape) {
	statics, _ := g.Statics()
	for _, s := range statics {
		if sharing, ok := policy.SharedProfiles[s.Profile.Name]; ok {
			shared = append(shared, Share{Of: s, Sharing: sharing})
		} else if policy.offers(s.Profile.Name) {
			exclusive = append(exclusive, s)
		}
	}
	return exclusive, shared
}

// partitioned lists the partitions that can be made of a GPU, those for one claim each before
// those in shares.
func (g GPU) partitioned(policy Policy) []Shape {
	if policy.OnlyExisting {
		return nil
	}
	var exclusive, shared []Shape
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
