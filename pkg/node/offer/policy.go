package offer

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"k8s.io/klog/v2"

	"github.com/mica-gpu/mica/api/v1alpha1"
	"github.com/mica-gpu/mica/pkg/gpu"
	"github.com/mica-gpu/mica/pkg/policy"
)

// ReasonRefused is the reason of the Event on a node that cannot apply its policy.
const ReasonRefused = "PolicyRefused"

// applied is the result of the last look at the policies. It belongs to the goroutine of Start and
// Watch.
type applied struct {
	// of is the policy's name, UID and generation, empty for none; compiled is its content, and failure why it
	// is invalid.
	of       string
	compiled *policy.Compiled
	failure  error
	// reported is the last verdict that was reported.
	reported string
}

// policiesFor returns the policy of each GPU by UUID. A policy that cannot be applied changes nothing.
// withheld is why nothing may be offered at all. known is false until the policies and the node have
// been read; until then the result serves prepared claims only.
func (o *Offer) policiesFor(ctx context.Context, node gpu.Node, found findings) (result map[string]gpu.Policy, withheld error, known bool) {
	all, cluster, known := o.policies.get()
	result = make(map[string]gpu.Policy, len(node.GPUs))
	for _, g := range node.GPUs {
		before, offered := o.history.current[g.UUID]
		if !offered {
			before = gpu.ByDefault(g)
		}
		result[g.UUID] = before
	}
	if !known {
		return result, nil, false
	}
	if cluster != nil {
		o.Health.Repaired(o.readRepairs(ctx, cluster, time.Now()))
	}
	unsure := o.lookForLeftovers(ctx, cluster)
	withheld = cmp.Or(o.noneReadable(node.GPUs), o.withheld(cluster), unsure)
	var labels map[string]string
	if cluster != nil {
		labels = cluster.Labels
	}
	selected := policy.Select(all, labels)
	policies, err := o.rule(ctx, selected, node)
	if cluster != nil {
		o.report.set(cluster.UID, policy.Verdict(selected, err), cmp.Or(withheld, o.allTaken(found)))
	}
	o.reportVerdict(ctx, selected, err)
	if err == nil {
		for i, g := range node.GPUs {
			result[g.UUID] = policies[i]
		}
		o.faults, o.resets = nil, nil
		if selected != nil {
			o.faults, o.resets = o.applied.compiled.Faults(), o.applied.compiled.Resets()
		}
	}
	return result, withheld, true
}

// rule compiles a policy for this node, or returns why that is impossible.
func (o *Offer) rule(ctx context.Context, selected *v1alpha1.GPUPolicy, node gpu.Node) ([]gpu.Policy, error) {
	if selected == nil {
		o.applied.of, o.applied.compiled, o.applied.failure = "", nil, nil
		policies := make([]gpu.Policy, len(node.GPUs))
		for i, g := range node.GPUs {
			policies[i] = gpu.ByDefault(g)
		}
		return policies, nil
	}
	if of := fmt.Sprintf("%s %s %d", selected.Name, selected.UID, selected.Generation); of != o.applied.of {
		o.applied.of = of
		o.applied.compiled, o.applied.failure = policy.Compile(o.Driver, selected)
	}
	if o.applied.failure != nil {
		return nil, o.applied.failure
	}
	policies, err := o.applied.compiled.For(ctx, node)
	if err != nil {
		return nil, err
	}
	if policy.UsesMPS(policies) {
		if err := o.CheckMPS(); err != nil {
			return nil, fmt.Errorf("GPUPolicy %s offers MPS, which this node cannot serve: %w", selected.Name, err)
		}
	}
	return policies, nil
}

// reportVerdict reports the result of a policy once.
func (o *Offer) reportVerdict(ctx context.Context, selected *v1alpha1.GPUPolicy, refusal error) {
	verdict := o.applied.of
	if refusal != nil {
		verdict += ": " + refusal.Error()
	}
	if verdict == o.applied.reported {
		return
	}
	o.applied.reported = verdict
	log := klog.FromContext(ctx)
	switch {
	case refusal != nil:
		log.Error(refusal, "Cannot apply the GPUPolicy; keeping the previous offer")
		o.Events.WarnNode(ReasonRefused, refusal.Error()+"; the node keeps its previous offer")
	case selected == nil:
		log.Info("No GPUPolicy selects this node, so it offers whole GPUs and MIG partitions")
	default:
		log.Info("A GPUPolicy applies to this node", "policy", selected.Name, "generation", selected.Generation)
	}
}
