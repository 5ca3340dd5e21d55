package scaleout

import (
	"context"

	"github.com/mica-gpu/mica/pkg/scaleout/fit"
)

// emptied is the key of a filling.
type emptied struct {
	machine *fit.Machine
	kind    *kind
}

// filling is a machine with 0, 1, 2 and more pods of one kind, until no further one fits.
type filling struct {
	// machines[n] is the machine with n pods.
	machines []*fit.Machine
	// miss is why no pod fits; nil: at least one fits. end is why no further pod fits; nil: counting ended before.
	miss, end *fit.Miss
}

// mostPerNode limits a filling: kubelet accepts fewer pods, but a template may not have its limit.
const mostPerNode = 1024

func (f *filling) pods() int { return len(f.machines) - 1 }

// filling fills a machine with pods of a kind. A cached answer is valid if the first pod still leaves the same machine:
// since then, other nodes may have taken devices that nodes share.
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
