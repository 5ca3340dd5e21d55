package driver

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/klog/v2"

	"github.com/mica-gpu/mica/api/v1alpha1"
	"github.com/mica-gpu/mica/pkg/gpu"
	"github.com/mica-gpu/mica/pkg/policy"
)

// reasonRefused is that of the event on a node that cannot do what its policy says.
const reasonRefused = "PolicyRefused"

// applied is what became of the policies when they were looked at last. It belongs
// to what runs watchHardware.
type applied struct {
	// of names the policy and its generation, empty for none; compiled is what it
	// says, and failure why it cannot be read.
	of       string
	compiled *policy.Compiled
	failure  error
	// refused tells that it cannot be done here, which what is installed on the node
	// may change without a word.
	refused bool
	// said is the verdict that was made known last.
	said string
}

// policiesFor says what is to be offered of each GPU, by UUID. A policy that cannot
// be done changes nothing. It is false as long as the API server has not told about
// policies: what is returned is good for claims that are prepared already.
func (d *Driver) policiesFor(ctx context.Context, node gpu.Node) (map[string]gpu.Policy, bool) {
	all, labels, known := d.policies.get()
	result := make(map[string]gpu.Policy, len(node.GPUs))
	for _, g := range node.GPUs {
		before, offered := d.history.current[g.UUID]
		if !offered {
			before = gpu.ByDefault(g)
		}
		result[g.UUID] = before
	}
	if !known {
		return result, false
	}
	selected := policy.Select(all, labels)
	policies, err := d.rule(ctx, selected, node)
	d.applied.refused = err != nil
	d.sayVerdict(ctx, selected, err)
	if err == nil {
		for i, g := range node.GPUs {
			result[g.UUID] = policies[i]
		}
	}
	return result, true
}

// rule says what a policy means here, or why that cannot be done.
func (d *Driver) rule(ctx context.Context, selected *v1alpha1.GPUPolicy, node gpu.Node) ([]gpu.Policy, error) {
	if selected == nil {
		d.applied.of, d.applied.compiled, d.applied.failure = "", nil, nil
		policies := make([]gpu.Policy, len(node.GPUs))
		for i, g := range node.GPUs {
			policies[i] = gpu.ByDefault(g)
		}
		return policies, nil
	}
	if of := identityOf(selected); of != d.applied.of {
		d.applied.of = of
		d.applied.compiled, d.applied.failure = policy.Compile(d.Name, selected)
	}
	if d.applied.failure != nil {
		return nil, d.applied.failure
	}
	policies, err := d.applied.compiled.For(ctx, node)
	if err != nil {
		return nil, err
	}
	if policy.UsesMPS(policies) {
		if err := d.checkMPS(); err != nil {
			return nil, fmt.Errorf("GPUPolicy %s offers MPS, which this node cannot serve: %w", selected.Name, err)
		}
	}
	return policies, nil
}

func identityOf(p *v1alpha1.GPUPolicy) string {
	return fmt.Sprintf("%s %s %d", p.Name, p.UID, p.Generation)
}

func (d *Driver) checkMPS() error {
	switch {
	case d.MPSRoot == "":
		return errors.New("it runs no MPS supervisor: install the chart with mps.enabled=true, or take mps out of the policy")
	case d.CheckMPS != nil:
		return d.CheckMPS()
	}
	return nil
}

// sayVerdict makes known once what became of a policy.
func (d *Driver) sayVerdict(ctx context.Context, selected *v1alpha1.GPUPolicy, refusal error) {
	d.reports.set(selected, refusal)
	verdict := d.applied.of
	if refusal != nil {
		verdict += ": " + refusal.Error()
	}
	if verdict == d.applied.said {
		return
	}
	d.applied.said = verdict
	log := klog.FromContext(ctx)
	switch {
	case refusal != nil:
		log.Error(refusal, "The GPUPolicy of this node cannot be done; what was offered stays so")
		d.events.warnNode(reasonRefused, refusal.Error()+"; the node offers what it did before")
	case selected == nil:
		log.Info("No GPUPolicy selects this node, so it offers whole GPUs and MIG partitions")
	default:
		log.Info("A GPUPolicy applies to this node", "policy", selected.Name, "generation", selected.Generation)
	}
}
