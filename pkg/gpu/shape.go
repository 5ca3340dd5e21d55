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
}

// Whole is the shape of an entire GPU, given to one claim at a time.
type Whole struct{ GPU GPU }

// Name is gpu-<minor>, as in NVIDIA's driver.
func (w Whole) Name() string { return fmt.Sprintf("gpu-%d", w.GPU.Minor) }

// Type is "gpu".
func (w Whole) Type() string { return "gpu" }

// Physical is the GPU itself.
func (w Whole) Physical() GPU { return w.GPU }

// Shapes lists what a node offers, in the order in which it is published. A
// GPU with MIG enabled cannot be used whole, so it is left out.
func Shapes(gpus []GPU) []Shape {
	var shapes []Shape
	for _, g := range SortByLocality(gpus) {
		if g.MIG == MIGEnabled {
			continue
		}
		shapes = append(shapes, Whole{GPU: g})
	}
	return shapes
}
