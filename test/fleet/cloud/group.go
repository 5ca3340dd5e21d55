package cloud

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Group is a node group as its owner has set it up.
type Group struct {
	// Name is the node group's, and ScalingGroup that of the scaling group behind it, by which
	// an autoscaler calls it; Name where it is empty.
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
	// GPUs is how many the cloud says that the type has. Nodes do not have them as a
	// resource, but an autoscaler that never saw one believes so.
	GPUs int64 `json:"gpus,omitempty"`
	// Machine is the simulated one that boots, InstanceType where it is empty: another one
	// contradicts what everybody expects of the group.
	Machine string `json:"machine,omitempty"`
	// BootDelay is from the request to the Node object, SliceDelay from that to the slices.
	BootDelay  metav1.Duration `json:"bootDelay,omitempty"`
	SliceDelay metav1.Duration `json:"sliceDelay,omitempty"`
	// ScaleDownUnneeded is how long a node is empty before an autoscaler removes it, where it
	// is another time than the autoscaler has for all groups.
	ScaleDownUnneeded metav1.Duration `json:"scaleDownUnneeded,omitempty"`
	// NoSlices lets the plugin never start.
	NoSlices bool `json:"noSlices,omitempty"`
	// Failure keeps machines from booting, as when the cloud has none left.
	Failure *Failure `json:"failure,omitempty"`
}

// Failure is why a machine does not boot, in the cloud's words.
type Failure struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

// Scaling is the name by which an autoscaler calls the group.
func (g Group) Scaling() string {
	if g.ScalingGroup != "" {
		return g.ScalingGroup
	}
	return g.Name
}

// Capacity is CapacityType with its default.
func (g Group) Capacity() string { return cmp.Or(g.CapacityType, "ON_DEMAND") }

var groupName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,40}[a-z0-9])?$`)

// Check says what is wrong with the group's description.
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

func byName(a, b State) int { return strings.Compare(a.Name, b.Name) }

func sorted(states []State) []State {
	slices.SortFunc(states, byName)
	return states
}
