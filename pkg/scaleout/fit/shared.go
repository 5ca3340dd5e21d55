package fit

import (
	"context"
	"errors"
	"fmt"
	"maps"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/mica-gpu/mica/pkg/devices"
)

// Shared is what all machines of a cluster share: the use of devices of the network, and the pods on all nodes. It is
// immutable: Commit returns another.
type Shared struct{ *shared }

type shared struct {
	cluster *Cluster
	// epoch numbers the state, for caches.
	epoch int
	// used is the use of the network by claims and committed takes.
	used      devices.Use
	committed map[*take]bool
	// somewhere has the neighbors on all nodes.
	somewhere map[*neighbor]bool
}

// Shared is the state before any pod is placed. Make all machines before: it has the pods on their nodes.
func (c *Cluster) Shared() Shared {
	c.epochs++
	return Shared{&shared{cluster: c, epoch: c.epochs, used: c.network.used, somewhere: maps.Clone(c.neighbors.somewhere)}}
}

// Commit keeps the pods that were placed on the machine. In the returned state, other machines lack their devices of
// the network, and affinity finds them. For most pods, it returns the same state.
func (s Shared) Commit(m *Machine) Shared {
	next := s.shared
	change := func() {
		if next == s.shared {
			s.cluster.epochs++
			next = &shared{cluster: s.cluster, epoch: s.cluster.epochs, used: s.used.Clone(), committed: maps.Clone(s.committed), somewhere: maps.Clone(s.somewhere)}
			if next.committed == nil {
				next.committed = map[*take]bool{}
			}
		}
	}
	for _, t := range m.takes {
		if !next.committed[t] {
			change()
			next.committed[t] = true
			t.addTo(next.used)
		}
	}
	for _, n := range m.load.neighbors {
		if !next.somewhere[n] {
			change()
			next.somewhere[n] = true
		}
	}
	return Shared{next}
}

// Place returns the machine with one more pod, or a miss. The error is not about the pod: it is that of the context, or
// ErrSpent.
func (s Shared) Place(ctx context.Context, m *Machine, p *Pod) (*Machine, *Miss, error) {
	c := s.cluster
	if err := ctx.Err(); err != nil {
		return nil, nil, fmt.Errorf("place a pod of kind %s: %w", p.kind, err)
	}
	key := attempt{pod: p}
	if m.inventory.layout.networked || len(p.affinity) > 0 {
		key.epoch = s.epoch
	}
	if known, ok := m.placed[key]; ok && !c.separate {
		return known.machine, known.miss, nil
	}
	next, miss, err := s.place(ctx, m, p)
	if err != nil {
		return nil, nil, fmt.Errorf("place a pod of kind %s: %w", p.kind, err)
	}
	m.placed[key] = outcome{next, miss}
	if c.budget.spent++; c.budget.spent > c.budget.allowed {
		return nil, nil, fmt.Errorf("place a pod of kind %s: %w", p.kind, ErrSpent)
	}
	return next, miss, nil
}

func (s Shared) place(ctx context.Context, m *Machine, p *Pod) (*Machine, *Miss, error) {
	if miss := m.traits.miss(p); miss != nil {
		return nil, miss, nil
	}
	if miss := s.pastNeighbors(m, p); miss != nil {
		return nil, miss, nil
	}
	left, miss := m.load.with(p, m.traits)
	if miss != nil {
		return nil, miss, nil
	}
	if miss := m.traits.missOfClaims(p); miss != nil {
		return nil, miss, nil
	}
	next := Machine{traits: m.traits, load: left, inventory: m.inventory, takes: m.takes, origin: m.origin}
	if d := s.cluster.demand(p, m.traits); len(d.claims) > 0 {
		got, err := s.allocate(ctx, m, d)
		if err != nil || got.miss != nil {
			return nil, got.miss, err
		}
		next.inventory = got.inventory
		if got.take != nil {
			next.takes = append(m.takes[:len(m.takes):len(m.takes)], got.take)
		}
	}
	return s.cluster.machine(next), nil, nil
}

// usedBy is the use of all devices within the machine's reach.
func (s Shared) usedBy(m *Machine) devices.Use {
	if !m.inventory.layout.networked {
		return m.inventory.used
	}
	used := m.inventory.used.Clone()
	maps.Copy(used, s.used)
	for _, t := range m.takes {
		if !s.committed[t] {
			t.addTo(used)
		}
	}
	return used
}

// Allocates reports whether the scheduler's allocator finds devices for claims on a machine, as it is or unused. It is
// for explanations: it places nothing and uses no budget. A search that takes too long counts as a success, so that no
// explanation blames it.
func (s Shared) Allocates(ctx context.Context, m *Machine, unused bool, claims ...*resourceapi.ResourceClaim) bool {
	used := devices.Use{}
	if !unused {
		used = s.usedBy(m)
	}
	results, err := s.cluster.run(&metered{Context: ctx, most: explainSteps}, m.inventory.layout, used.State(), claims)
	return errors.Is(err, ErrSpent) || err == nil && len(results) == len(claims)
}

// Apart reports whether pods like p, which turned the machine before into m, change nothing for other machines: they
// took nothing of the network, and have no affinity to pods.
func (m *Machine) Apart(before *Machine, p *Pod) bool {
	return len(p.affinity) == 0 && len(m.takes) == len(before.takes)
}
