// Package rightsize compares what a workload has used of its devices with the shapes that a cluster
// offers. It decides by values that somebody has read, from Prometheus and from ResourceSlices, and
// prints them. It reads nothing itself, and says nothing where it does not know.
package rightsize

import (
	"cmp"
	"fmt"
	"slices"
)

// mostBusy is how busy a device may be by its 95th percentile: above, work waits for it.
const mostBusy = 0.9

// reserving is the part of a device's memory from which on it is likely that an engine has taken it in
// advance. vLLM takes 90 % (--gpu-memory-utilization).
const reserving = 0.85

// Use is what a pod has used of a device.
type Use struct {
	Pod    string `json:"pod"`
	Node   string `json:"node"`
	Device string `json:"device"`
	// PeakBytes is the most memory that processes had of it, of TotalBytes.
	PeakBytes  int64 `json:"peakBytes"`
	TotalBytes int64 `json:"totalBytes"`
	// Busy is the 95th percentile of the part of the time in which something ran on it, 0 to 1; nil
	// where the device does not tell.
	Busy *float64 `json:"busy,omitempty"`
}

// Question is what is to be answered.
type Question struct {
	Workload string
	Uses     []Use
	Offer    Offer
	// Reserve is the part of the peak that is wanted besides it.
	Reserve float64
}

// Advice is the answer. It is printed as JSON and YAML as it is.
type Advice struct {
	Workload string `json:"workload"`
	Uses     []Use  `json:"uses"`
	// Peak is the use with the most memory.
	Peak Use `json:"peak"`
	// NeedBytes is its memory and the reserve.
	NeedBytes int64 `json:"needBytes"`
	// Held is the shape of its device; empty where no node offers the device now.
	Held Shape `json:"held"`
	// Busy is the most that one of the devices was busy, in parts of Held.
	Busy *float64 `json:"busy,omitempty"`
	// Options are the shapes that there are, the smallest first.
	Options []Option `json:"options"`
	// Best is the smallest shape of the product that does; nil: none is known to.
	Best *Shape `json:"best,omitempty"`
	// Notes are what is to be known before one acts on it.
	Notes []string `json:"notes,omitempty"`
}

// Option is a shape, and what the workload would make of it.
type Option struct {
	Shape
	// Verdict says whether it does.
	Verdict Verdict `json:"verdict"`
	// Busy is how busy it would be; nil where that is not known.
	Busy *float64 `json:"busy,omitempty"`
}

// Verdict says whether a shape does.
type Verdict string

// Verdicts, of which only Fits says that nothing is known against a shape.
const (
	Fits       Verdict = "Fits"
	TooSmall   Verdict = "TooLittleMemory"
	TooSlow    Verdict = "TooLittleCompute"
	NotKnown   Verdict = "ComputeNotKnown"
	OtherModel Verdict = "OtherProduct"
)

// Of answers. The error says that there is nothing to answer from.
func Of(q Question) (Advice, error) {
	if len(q.Uses) == 0 {
		return Advice{}, fmt.Errorf("nothing is known of the devices of %s", q.Workload)
	}
	a := Advice{Workload: q.Workload, Uses: slices.Clone(q.Uses)}
	slices.SortFunc(a.Uses, func(x, y Use) int {
		return cmp.Or(cmp.Compare(x.Pod, y.Pod), cmp.Compare(x.Node, y.Node), cmp.Compare(x.Device, y.Device))
	})
	a.Peak = slices.MaxFunc(a.Uses, func(x, y Use) int { return cmp.Compare(x.PeakBytes, y.PeakBytes) })
	a.NeedBytes = int64(float64(a.Peak.PeakBytes) * (1 + q.Reserve))
	a.Held = q.Offer.shapeOf(a.Peak)
	a.Busy = busiest(a.Uses, a.Held, q.Offer)
	for _, shape := range q.Offer.shapes {
		a.Options = append(a.Options, a.option(shape))
	}
	if i := slices.IndexFunc(a.Options, a.better); i >= 0 {
		a.Best = &a.Options[i].Shape
	}
	a.Notes = a.notes(q.Offer)
	return a, nil
}

// better tells of shapes that fit whether they are at least as large, or leave compute to others. The
// largest partition of a GPU has a little less memory than the GPU, and leaves nothing.
func (a Advice) better(o Option) bool {
	return o.Verdict == Fits && (o.MemoryBytes >= a.Held.MemoryBytes || o.Compute < a.Held.Compute)
}

// busiest is nil where a device does not tell, or is not comparable with the others.
func busiest(uses []Use, held Shape, offer Offer) *float64 {
	var most *float64
	for _, u := range uses {
		if u.Busy == nil || offer.shapeOf(u) != held {
			return nil
		}
		if most == nil || *u.Busy > *most {
			most = u.Busy
		}
	}
	return most
}

func (a Advice) option(s Shape) Option {
	o := Option{Shape: s, Verdict: Fits}
	known := a.Held != Shape{}
	same := s.Product == a.Held.Product
	if known && same && a.Busy != nil && s.Compute > 0 && a.Held.Compute > 0 {
		busy := *a.Busy * float64(a.Held.Compute) / float64(s.Compute)
		o.Busy = &busy
	}
	switch {
	case s.MemoryBytes < a.NeedBytes:
		o.Verdict = TooSmall
	case known && !same:
		o.Verdict = OtherModel
	case o.Busy == nil:
		o.Verdict = NotKnown
	case *o.Busy > mostBusy:
		o.Verdict = TooSlow
	}
	return o
}

// notes are sentences.
func (a Advice) notes(offer Offer) []string {
	var notes []string
	if a.Peak.TotalBytes > 0 && float64(a.Peak.PeakBytes) >= reserving*float64(a.Peak.TotalBytes) {
		notes = append(notes, fmt.Sprintf("The peak is %.0f %% of the device: an engine that takes memory in advance, as vLLM does by --gpu-memory-utilization, shows what it takes and not what it needs. Try it with less.",
			100*float64(a.Peak.PeakBytes)/float64(a.Peak.TotalBytes)))
	}
	if slices.ContainsFunc(a.Uses, func(u Use) bool { return u.Busy == nil }) {
		notes = append(notes, "A device of it does not tell how busy it is, as partitions of A100 and A30, so only its memory is compared.")
	}
	if a.Held == (Shape{}) {
		notes = append(notes, fmt.Sprintf("No node offers %s of node %s any more, so its product is not known, and only memory is compared.", a.Peak.Device, a.Peak.Node))
	} else if slices.ContainsFunc(a.Uses, func(u Use) bool { return offer.shapeOf(u) != a.Held }) {
		notes = append(notes, "Its pods had devices of several shapes, so only memory is compared.")
	}
	return notes
}

// Smaller is the shape that would do in place of a larger one that is held; nil: none is known to.
func (a Advice) Smaller() *Shape {
	if a.Best == nil || a.Best.MemoryBytes >= a.Held.MemoryBytes {
		return nil
	}
	return a.Best
}
