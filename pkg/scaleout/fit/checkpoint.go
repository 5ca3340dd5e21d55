package fit

import (
	"maps"

	"github.com/mica-gpu/mica/pkg/devices"
)

// Checkpoint is what was committed at a moment.
type Checkpoint struct {
	epoch     int
	base      devices.Use
	committed map[*take]bool
	somewhere map[*neighbor]bool
}

// Checkpoint notes what is committed, so that a placement can be tried to its end and taken back.
func (c *Cluster) Checkpoint() Checkpoint {
	return Checkpoint{
		epoch:     c.epoch,
		base:      c.network.base.Clone(),
		committed: maps.Clone(c.network.committed),
		somewhere: maps.Clone(c.neighbors.somewhere),
	}
}

// Restore takes back what was committed since the mark, which can be returned to again.
func (c *Cluster) Restore(to Checkpoint) {
	c.epoch = to.epoch
	c.network.base = to.base.Clone()
	c.network.committed = maps.Clone(to.committed)
	c.neighbors.somewhere = maps.Clone(to.somewhere)
}

// newEpoch begins an epoch. Its number was never used, not even by one that was taken back: what
// was found out in that one is not true now.
func (c *Cluster) newEpoch() {
	c.epochs++
	c.epoch = c.epochs
}

// Apart tells whether the pods that made m of before can be committed without a change for any
// other machine that such pods are placed on: they took nothing of the network, and have no
// affinity to each other.
func (m *Machine) Apart(before *Machine, p *Pod) bool {
	return len(p.affinity) == 0 && len(m.takes) == len(before.takes)
}
