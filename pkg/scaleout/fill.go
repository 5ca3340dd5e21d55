package scaleout

import (
	"context"

	"github.com/mica-gpu/mica/pkg/scaleout/fit"
)

// emptied identifies a filling.
type emptied struct {
	machine *fit.Machine
	kind    *kind
}

// filling is what becomes of a machine as pods of one kind are put on it.
type filling struct {
	// machines has, at n, what is left of it with n pods.
	machines []*fit.Machine
	// miss is why not even one pod fits; nil: one does. end is why no further one does; nil: counting has ended
	// before.
	miss, end *fit.Miss
}

// mostPerNode bounds a filling: kubelet takes fewer pods, but a template may not know.
const mostPerNode = 1024

func (f *filling) pods() int { return len(f.machines) - 1 }

// filling fills a machine with pods of a kind. A known answer is right as long as the first pod fares as before:
// devices that nodes share may be gone since.
func (p *plan) filling(ctx context.Context, m *fit.Machine, k *kind) (*filling, error) {
	left, miss, err := p.shared.Place(ctx, m, k.example)
	if err != nil {
		return nil, err
	}
	if miss != nil {
		return &filling{machines: []*fit.Machine{m}, miss: miss, end: miss}, nil
	}
	key := emptied{machine: m, kind: k}
	if known := p.fillings[key]; known != nil && known.machines[1] == left {
		return known, nil
	}
	f := &filling{machines: []*fit.Machine{m, left}}
	p.fillings[key] = f
	next, err := p.follower(k)
	if err != nil {
		return f, nil // the pod cannot be read with its claims placed, but one fits
	}
	for f.pods() < mostPerNode {
		if left, f.end, err = p.shared.Place(ctx, left, next); err != nil || f.end != nil {
			break
		}
		f.machines = append(f.machines, left)
	}
	return f, err
}
