package offer

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/mica-gpu/mica/pkg/gpu"
	"github.com/mica-gpu/mica/pkg/health"
	"github.com/mica-gpu/mica/pkg/node/nvml"
)

// missingGPU is a known GPU that cannot be read.
type missingGPU struct {
	last gpu.GPU
	why  error
}

// miss finds known GPUs, including those of earlier processes, that are unreadable now. A GPU counts
// as unreadable unless the driver reports that it is gone.
func (o *Offer) miss(found findings) {
	o.missing = nil
	for _, g := range o.Health.Remembered() {
		read := slices.ContainsFunc(found.node.GPUs, func(other gpu.GPU) bool { return other.UUID == g.UUID })
		if err := unreadableAt(found.unreadable, g.Index); !read && err != nil {
			o.missing = append(o.missing, missingGPU{g, err})
		}
	}
}

// unreadableAt returns why the GPU with this index could not be read, nil if unknown.
func unreadableAt(err error, index int) error {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		for _, err := range joined.Unwrap() {
			if found := unreadableAt(err, index); found != nil {
				return found
			}
		}
		return nil
	}
	if unreadable := new(nvml.UnreadableError); errors.As(err, &unreadable) && unreadable.Index == index {
		return unreadable
	}
	return nil
}

func withMissing(node gpu.Node, missing []missingGPU) gpu.Node {
	if len(missing) == 0 {
		return node
	}
	node.GPUs = slices.Clone(node.GPUs)
	for _, m := range missing {
		node.GPUs = append(node.GPUs, m.last)
	}
	slices.SortFunc(node.GPUs, func(a, b gpu.GPU) int { return cmp.Compare(a.Index, b.Index) })
	return node
}

// readable returns the shapes that claims can be prepared for.
func (o *Offer) readable(shapes []gpu.Shape) []gpu.Shape {
	return slices.DeleteFunc(slices.Clone(shapes), func(shape gpu.Shape) bool {
		return slices.ContainsFunc(o.missing, func(m missingGPU) bool { return m.last.UUID == shape.Physical().UUID })
	})
}

func reasons(missing []missingGPU) map[string]error {
	why := map[string]error{}
	for _, m := range missing {
		why[m.last.UUID] = m.why
	}
	return why
}

// fault is the fault of a missing GPU until Health knows more.
func (m missingGPU) fault() health.Fault {
	if errors.Is(m.why, nvml.ErrSilent) {
		return health.Fault{Condition: health.Unresponsive, Severity: health.Dead}
	}
	return health.Fault{Condition: health.Lost, Severity: health.Dead}
}

// noneReadable returns why a node without any known GPU offers nothing, or nil.
func (o *Offer) noneReadable(known []gpu.GPU) error {
	if len(known) > 0 || o.unread == "" {
		return nil
	}
	return fmt.Errorf("%w (%s): see the kernel's log for messages of NVRM, and reset or replace them", errNoneReadable, inOneLine(errors.New(o.unread)))
}

var errNoneReadable = errors.New("none of the node's GPUs can be read")

// taint keeps claims from sick devices. An unreadable GPU is tainted at once. A GPU that does not
// answer evicts no pods until Health has distinguished it from a driver that does not answer at all.
func (o *Offer) taint(next desired, gpus []gpu.GPU) {
	for _, g := range gpus {
		for _, fault := range o.Health.Record(g.UUID).Faults {
			for _, shape := range next.shapes {
				if shape.Physical().UUID == g.UUID && fault.Hits(shape) {
					next.taints.Add(shape.Name(), o.faults.Sick(fault))
				}
			}
		}
	}
	for _, m := range o.missing {
		fault, effects := m.fault(), o.faults
		if fault.Condition == health.Unresponsive {
			effects = nil
		}
		if _, known := o.Health.Record(m.last.UUID).Like(fault); !known {
			next.taints.AddGPU(m.last.UUID, next.shapes, effects.Sick(fault))
		}
	}
}
