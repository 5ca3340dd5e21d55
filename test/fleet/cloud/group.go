package cloud

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Group describes a node group.
type Group struct {
	// ScalingGroup is the name of the scaling group behind the node group. Empty: Name.
	Name         string `json:"name"`
	ScalingGroup string `json:"scalingGroup,omitempty"`
	Min          int    `json:"min,omitempty"`
	Max          int    `json:"max"`
	// InstanceType and CapacityType become labels of the nodes. No CapacityType: ON_DEMAND.
	InstanceType string `json:"instanceType"`
	CapacityType string `json:"capacityType,omitempty"`
	// Labels and Taints are on every new node, the startup taints among them.
	Labels      map[string]string   `json:"labels,omitempty"`
	Taints      []corev1.Taint      `json:"taints,omitempty"`
	Allocatable corev1.ResourceList `json:"allocatable"`
	// GPUs is the cloud's number of GPUs per machine. Nodes do not have them as a resource, but an autoscaler that has
	// seen no node assumes that.
	GPUs int64 `json:"gpus,omitempty"`
	// Machine is the simulated machine that boots. Empty: InstanceType. Another type contradicts the group's template.
	Machine string `json:"machine,omitempty"`
	// BootDelay is the time from the request to the Node, SliceDelay from the Node to its slices.
	BootDelay  metav1.Duration `json:"bootDelay,omitempty"`
	SliceDelay metav1.Duration `json:"sliceDelay,omitempty"`
	// ScaleDownUnneeded is how long a node must be empty before an autoscaler removes it. Zero: the autoscaler's default.
	ScaleDownUnneeded metav1.Duration `json:"scaleDownUnneeded,omitempty"`
	// NoSlices keeps the plugin from starting.
	NoSlices bool `json:"noSlices,omitempty"`
	// Failure keeps machines from booting, as without capacity.
	Failure *Failure `json:"failure,omitempty"`
}

// Failure is why a machine does not boot, in the cloud's words.
type Failure struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

// Scaling is the name of the scaling group.
func (g Group) Scaling() string { return cmp.Or(g.ScalingGroup, g.Name) }

// Capacity is CapacityType with its default.
func (g Group) Capacity() string { return cmp.Or(g.CapacityType, "ON_DEMAND") }

var groupName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,40}[a-z0-9])?$`)

// Check refuses an invalid description.
func (g Group) Check() error {
	var problems []error
	if !groupName.MatchString(g.Name) {
		problems = append(problems, fmt.Errorf("name %q is no beginning of a node's name: use up to 42 lower-case letters, digits and -", g.Name))
	}
	if g.Min < 0 || g.Max < g.Min {
		problems = append(problems, fmt.Errorf("min %d and max %d: min has to be at least 0, and max at least min", g.Min, g.Max))
	}
	if g.InstanceType == "" {
		problems = append(problems, errors.New("instanceType is missing: name one, such as p5.48xlarge"))
	}
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourcePods} {
		if quantity := g.Allocatable[name]; quantity.Sign() <= 0 {
			problems = append(problems, fmt.Errorf("allocatable has no %s: nodes without it run no pods", name))
		}
	}
	if err := errors.Join(problems...); err != nil {
		return fmt.Errorf("node group %s: %w", g.Name, err)
	}
	return nil
}

// State is a group as it is now.
type State struct {
	Group
	// Desired is how many machines were asked for.
	Desired int `json:"desired"`
	// Instances are the machines, those without a node last.
	Instances []Instance `json:"instances"`
	// Failed is how many of those that were asked for do not boot, because of Failure.
	Failed int `json:"failed"`
}

// Instance is a machine.
type Instance struct {
	// ID is the cloud's name for it, such as i-0123456789abcdef0.
	ID string `json:"id"`
	// Node is empty while it boots.
	Node string `json:"node,omitempty"`
}
