// Package policy selects the GPUPolicy of a node, and computes the shapes of the node's GPUs from it. It is pure.
package policy

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/dynamic-resource-allocation/cel"

	"github.com/mica-gpu/mica/api/v1alpha1"
	"github.com/mica-gpu/mica/pkg/devices"
	"github.com/mica-gpu/mica/pkg/gpu"
	"github.com/mica-gpu/mica/pkg/slice"
)

// Select returns the policy of a node with these labels: of those that select it, the one with the highest priority, and
// then the first by name. Nil: none selects it. A policy with an invalid selector selects no node.
func Select(policies []*v1alpha1.GPUPolicy, nodeLabels map[string]string) *v1alpha1.GPUPolicy {
	var best *v1alpha1.GPUPolicy
	for _, policy := range policies {
		selector, err := metav1.LabelSelectorAsSelector(&policy.Spec.NodeSelector)
		if err != nil || !selector.Matches(labels.Set(nodeLabels)) {
			continue
		}
		if best == nil || cmp.Or(-cmp.Compare(policy.Spec.Priority, best.Spec.Priority), cmp.Compare(policy.Name, best.Name)) < 0 {
			best = policy
		}
	}
	return best
}

// Check refuses a policy with an invalid node selector.
func Check(policy *v1alpha1.GPUPolicy) error {
	if _, err := metav1.LabelSelectorAsSelector(&policy.Spec.NodeSelector); err != nil {
		return fmt.Errorf("GPUPolicy %s, spec.nodeSelector: %w: correct it; until then the policy selects no node", policy.Name, err)
	}
	return nil
}

// Compiled is a valid policy.
type Compiled struct {
	name, driver string
	shapes       gpu.Policy
	overrides    []override
	faults       faults
}

type override struct {
	when   *devices.Selector
	shapes gpu.Policy
}

// Compile reads a policy. The driver's name is the domain of attributes in expressions. Errors name the policy and the
// field.
func Compile(driver string, policy *v1alpha1.GPUPolicy) (*Compiled, error) {
	compiled := &Compiled{name: policy.Name, driver: driver}
	var err error
	if compiled.shapes, err = read(policy.Spec.Shapes); err != nil {
		return nil, fmt.Errorf("GPUPolicy %s, spec.shapes.%w", policy.Name, err)
	}
	if compiled.faults, err = readHealth(policy.Spec.Health); err != nil {
		return nil, fmt.Errorf("GPUPolicy %s, spec.health%w", policy.Name, err)
	}
	for i, o := range policy.Spec.Overrides {
		shapes, err := read(o.Shapes)
		if err != nil {
			return nil, fmt.Errorf("GPUPolicy %s, spec.overrides[%d].shapes.%w", policy.Name, i, err)
		}
		when, err := compile(o.When)
		if err != nil {
			return nil, fmt.Errorf("GPUPolicy %s, spec.overrides[%d].when: %w", policy.Name, i, err)
		}
		compiled.overrides = append(compiled.overrides, override{when: when, shapes: shapes})
	}
	return compiled, nil
}

// compile applies the limits of claims' selectors.
func compile(expression string) (*devices.Selector, error) {
	if length := len(expression); length > resourceapi.CELSelectorExpressionMaxLength {
		return nil, fmt.Errorf("it has %d bytes, and at most %d are read: split it into several overrides", length, resourceapi.CELSelectorExpressionMaxLength)
	}
	selector := devices.Compile(expression)
	if selector.Err != nil {
		// CEL's messages have several lines.
		return nil, fmt.Errorf("it %s (an expression is written as in a claim's selector, and is true for the GPUs that are meant)", strings.Join(strings.Fields(selector.Err.Error()), " "))
	}
	return selector, nil
}

// For returns the policy of each GPU of a node. If it is impossible for a GPU, the error names the policy, the field and the
// GPU. A profile that a board lacks is no error, because a policy is for several boards.
func (c *Compiled) For(ctx context.Context, node gpu.Node) ([]gpu.Policy, error) {
	policies := make([]gpu.Policy, len(node.GPUs))
	for i, g := range node.GPUs {
		field, shapes, err := c.match(ctx, node, g)
		if err != nil {
			return nil, err
		}
		if err := shapes.Check(g); err != nil {
			return nil, fmt.Errorf("GPUPolicy %s, GPU %d (%s): %s.%w", c.name, g.Minor, g.UUID, field, err)
		}
		policies[i] = shapes
	}
	return policies, nil
}

// match returns the field of the policy that applies to a GPU, and its shapes.
func (c *Compiled) match(ctx context.Context, node gpu.Node, g gpu.GPU) (string, gpu.Policy, error) {
	if len(c.overrides) == 0 {
		return "spec.shapes", c.shapes, nil
	}
	device := slice.Whole(node, g)
	input := cel.Device{Driver: c.driver, Attributes: device.Attributes, Capacity: device.Capacity}
	for i, o := range c.overrides {
		matches, err := o.when.Matches(ctx, input)
		if err != nil {
			return "", gpu.Policy{}, fmt.Errorf("GPUPolicy %s, spec.overrides[%d].when, GPU %d (%s): %w: for what some GPUs lack write .?name.orValue(…)", c.name, i, g.Minor, g.UUID, err)
		}
		if matches {
			return fmt.Sprintf("spec.overrides[%d].shapes", i), o.shapes, nil
		}
	}
	return "spec.shapes", c.shapes, nil
}

// UsesMPS reports whether a policy needs MPS.
func UsesMPS(policies []gpu.Policy) bool {
	return slices.ContainsFunc(policies, func(p gpu.Policy) bool {
		if p.MPS != nil {
			return true
		}
		for _, sharing := range p.SharedProfiles {
			if sharing.Name() == (gpu.MPS{}).Name() {
				return true
			}
		}
		return false
	})
}
