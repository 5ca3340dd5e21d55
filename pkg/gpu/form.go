package gpu

import (
	"errors"
	"fmt"
)

// Form is a shape without its GPU. Records keep it, and Restore turns it into the shape again.
type Form struct {
	// Base is the name of the base, such as BaseWhole.
	Base string `json:"base"`
	// Placement is zero for the entire GPU.
	Placement `json:"placement,omitzero"`
	// Sharing is the name of a Sharing, Shares its Count and Interval its TimeSlice; or the limit of
	// ConsumableShares with its Count. They are zero for a device for one claim.
	Sharing  string   `json:"sharing,omitempty"`
	Shares   int      `json:"shares,omitempty"`
	Interval Interval `json:"interval,omitempty"`
}

// Shared reports whether several claims may have the device at once.
func (f Form) Shared() bool { return f.Sharing != "" }

// DefaultPart is the part of the device's time that a claim has which requests no amount: 0 if
// their number is not limited.
func (f Form) DefaultPart() float64 {
	switch {
	case f.Shares > 0:
		return 1 / float64(f.Shares)
	case f.Sharing == ByNothing:
		return 0
	}
	return 1
}

// Served reports whether the processes of all shares are clients of one daemon.
func (f Form) Served() bool { return f.Sharing == MPS{}.Name() }

// Bases of shapes. Records have these names.
const (
	BaseWhole     = "whole"
	BasePartition = "partition"
	BaseStatic    = "static"
)

// Placement is the place of a partition on its GPU.
type Placement struct {
	// ProfileID is the ID of its Profile, and Profile the name.
	ProfileID int    `json:"profileID"`
	Profile   string `json:"profile,omitempty"`
	// Start and Size are its memory slices.
	Start int `json:"start"`
	Size  int `json:"size"`
	// InstanceID and ComputeID are NVML's IDs of an existing partition.
	InstanceID int `json:"instanceID,omitempty"`
	ComputeID  int `json:"computeID,omitempty"`
}

// Entire reports whether it is all of the GPU.
func (p Placement) Entire() bool { return p.Size == 0 }

// Overlaps reports whether two placements on one GPU have a memory slice in common.
func (p Placement) Overlaps(o Placement) bool {
	return p.Entire() || o.Entire() || p.Start < o.Start+o.Size && o.Start < p.Start+p.Size
}

// ErrNotOffered is the error of Restore if the GPU cannot have this shape at present.
var ErrNotOffered = errors.New("the GPU cannot be given in this shape at present")

// Restore returns the shape of a form. An unknown form is an error: it must not pass for
// another shape.
func Restore(g GPU, f Form) (Shape, error) {
	restore, known := bases[f.Base]
	if !known {
		return nil, fmt.Errorf("shape %q is unknown to this version", f.Base)
	}
	share, known := sharings[f.Sharing]
	if !known && f.Shared() {
		return nil, fmt.Errorf("sharing %q is unknown to this version", f.Sharing)
	}
	base, offered := restore(g, f.Placement)
	switch {
	case !offered:
		return nil, ErrNotOffered
	case !known:
		return base, nil
	}
	return share(base, f)
}

// sharings return the shape of a base that claims share, by the Sharing of its form.
var sharings = map[string]func(base Base, f Form) (Shape, error){
	TimeSlicing{}.Name(): func(base Base, f Form) (Shape, error) {
		return Share{Of: base, Sharing: TimeSlicing{Replicas: f.Shares, Interval: f.Interval}}, nil
	},
	MPS{}.Name(): func(base Base, f Form) (Shape, error) { return Share{Of: base, Sharing: MPS{Clients: f.Shares}}, nil },
	ByNothing:    consumable,
	ByMemory:     consumable,
	ByCount:      consumable,
}

func consumable(base Base, f Form) (Shape, error) {
	whole, entire := base.(Whole)
	if !entire {
		return nil, fmt.Errorf("sharing %q of %s is unknown to this version", f.Sharing, base.Name())
	}
	return Consumable{Whole: whole, Shares: ConsumableShares{By: f.Sharing, Count: f.Shares}}, nil
}

// at returns the partition at a placement, whether it exists or can be created.
func (g GPU) at(p Placement) (Base, bool) {
	statics, _ := g.Statics()
	for _, s := range statics {
		if s.Profile.ID == p.ProfileID && s.Instance.Start == p.Start {
			return s, true
		}
	}
	for _, made := range g.Partitions() {
		if made.Profile.ID == p.ProfileID && made.Start == p.Start {
			return made, true
		}
	}
	return nil, false
}

// PartOf is the fraction of the GPU's memory slices that a placement covers: 0 to 1, and at most 1 for
// placements that fit together.
func (g GPU) PartOf(p Placement) float64 {
	slices := 0
	for _, profile := range g.Profiles {
		for _, start := range profile.Starts {
			slices = max(slices, start+profile.Size)
		}
	}
	if p.Entire() || slices == 0 {
		return 1
	}
	return float64(p.Size) / float64(slices)
}
