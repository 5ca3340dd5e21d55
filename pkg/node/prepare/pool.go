package prepare

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/mica-gpu/mica/pkg/gpu"
)

// Pool is what this node offers to claims.
type Pool struct {
	// Driver and Name select the results that are ours.
	Driver, Name string
	// Shapes are keyed by device name.
	Shapes map[string]gpu.Shape
	// Withheld says why no further claim is prepared; nil: they are. Shapes are then good
	// for claims that are prepared already.
	Withheld error
	// InUse says which GPUs are left out because something else uses them, and why; empty for none.
	InUse string
}

// NewPool indexes shapes by device name.
func NewPool(driver, name string, shapes []gpu.Shape) Pool {
	pool := Pool{Driver: driver, Name: name, Shapes: make(map[string]gpu.Shape, len(shapes))}
	for _, shape := range shapes {
		pool.Shapes[shape.Name()] = shape
	}
	return pool
}

// namesShown keep an error readable on a node with hundreds of partitions.
const namesShown = 10

func (p Pool) deviceNames() string {
	if len(p.Shapes) == 0 {
		return "none"
	}
	names := slices.Sorted(maps.Keys(p.Shapes))
	if more := len(names) - namesShown; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:namesShown], ", "), more)
	}
	return strings.Join(names, ", ")
}
