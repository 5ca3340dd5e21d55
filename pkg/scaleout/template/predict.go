package template

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/mica-gpu/mica/api/v1alpha1"
	"github.com/mica-gpu/mica/pkg/catalog"
	"github.com/mica-gpu/mica/pkg/gpu"
	"github.com/mica-gpu/mica/pkg/policy"
	"github.com/mica-gpu/mica/pkg/slice"
)

// labelCapacityType is a label of nodes in managed node groups of EKS.
const labelCapacityType = "eks.amazonaws.com/capacityType"

// Predict makes a template from the catalogue. It uses the instance type and the template of the group's spec; without
// a type in the spec, instanceType. driver is the name of Mica's driver, the domain of attributes. The error says what
// is unknown about the type, and how to supply it in spec.template.
//
// If the node will refuse the policy, the template has what a node offers without a policy. Whether the node can serve
// MPS is unknown here: a policy with MPS counts as possible.
func Predict(driver string, group *v1alpha1.GPUNodeGroup, instanceType string, policies []*v1alpha1.GPUPolicy, startup StartupTaints) (*Template, error) {
	if group.Spec.InstanceType != "" {
		instanceType = group.Spec.InstanceType
	}
	hardware, err := hardwareOf(group.Spec.Template, instanceType)
	if err != nil {
		return nil, fmt.Errorf("what a new node of group %s has is not known: %w", group.Name, err)
	}
	allocatable, err := hardware.allocatable(group.Spec.Template.Allocatable)
	if err != nil {
		return nil, fmt.Errorf("what a new node of group %s has is not known: %w", group.Name, err)
	}
	name := group.Name + "-new"
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels(group, name, hardware.instance)},
		Spec:       corev1.NodeSpec{Taints: startup.Without(group.Spec.Template.Taints)},
		Status:     corev1.NodeStatus{Allocatable: allocatable, Capacity: allocatable.DeepCopy()},
	}
	selected := policy.Select(policies, node.Labels)
	pool := slice.Pool(hardware.gpus, gpu.Shapes(hardware.gpus.GPUs, rule(driver, selected, hardware.gpus)), nil)
	t := &Template{Node: node, Source: v1alpha1.SourceCatalogue, Policy: identity(selected), invented: hardware.invented()}
	for i, s := range pool.Slices {
		t.Slices = append(t.Slices, &resourceapi.ResourceSlice{
			// Named in the order of the pool, as on the node: the scheduler tries devices so.
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%05x-%s-%s", i, driver, name)},
			Spec: resourceapi.ResourceSliceSpec{
				Driver: driver, NodeName: ptr.To(name),
				Pool:    resourceapi.ResourcePool{Name: name, Generation: 1, ResourceSliceCount: int64(len(pool.Slices))},
				Devices: s.Devices, SharedCounters: s.SharedCounters,
			},
		})
	}
	return t, nil
}

// rule is what a node will offer of each GPU.
func rule(driver string, selected *v1alpha1.GPUPolicy, node gpu.Node) func(gpu.GPU) gpu.Policy {
	if selected == nil {
		return gpu.ByDefault
	}
	compiled, err := policy.Compile(driver, selected)
	if err != nil {
		return gpu.ByDefault
	}
	policies, err := compiled.For(context.Background(), node)
	if err != nil {
		return gpu.ByDefault
	}
	return func(g gpu.GPU) gpu.Policy {
		i := slices.IndexFunc(node.GPUs, func(other gpu.GPU) bool { return other.UUID == g.UUID })
		return policies[i]
	}
}

// identity is the name of a policy with its generation.
func identity(p *v1alpha1.GPUPolicy) string {
	if p == nil {
		return ""
	}
	return fmt.Sprintf("%s/%d", p.Name, p.Generation)
}

// labels are those that new nodes will have, as far as known.
func labels(group *v1alpha1.GPUNodeGroup, name string, instance catalog.Instance) map[string]string {
	all := map[string]string{}
	set := func(key, value string) {
		if value != "" {
			all[key] = value
		}
	}
	set(corev1.LabelOSStable, string(corev1.Linux))
	set(corev1.LabelArchStable, instance.Architecture)
	set(corev1.LabelInstanceTypeStable, instance.Type)
	if group.Spec.Provider.EKS != nil {
		set(labelCapacityType, group.Spec.CapacityType)
	}
	maps.Copy(all, group.Spec.Template.Labels)
	maps.Copy(all, group.Spec.Provider.Selector())
	all[corev1.LabelHostname] = name
	return all
}

// hardware is that of a new node.
type hardware struct {
	// instance has at least the name of the type, if there is one.
	instance catalog.Instance
	gpus     gpu.Node
	// linksUnknown reports whether NVLink may connect the GPUs.
	linksUnknown bool
}

// errHowTo says what to do if the catalogue does not know enough.
var errHowTo = errors.New("give spec.template.gpus with count, productName and memory as nvidia-smi shows them on such a node, or let the group have a node once")

func hardwareOf(t v1alpha1.NodeTemplate, instanceType string) (hardware, error) {
	var instance catalog.Instance
	err := errors.New("there is no instance type: give spec.instanceType")
	if instanceType != "" {
		instance, err = catalog.InstanceByType(instanceType)
		instance.Type = instanceType
	}
	switch {
	case errors.Is(err, catalog.ErrNoGPU):
		return hardware{}, fmt.Errorf("%w: choose another instance type, or delete the GPUNodeGroup", err)
	case t.GPUs != nil:
		node, linksUnknown, err := describedGPUs(*t.GPUs, t)
		return hardware{instance: instance, gpus: node, linksUnknown: linksUnknown}, err
	case errors.Is(err, catalog.ErrUnknownInstance):
		return hardware{}, fmt.Errorf("%w: correct spec.instanceType, or %w", err, errHowTo)
	case err != nil:
		return hardware{}, fmt.Errorf("%w; or %w", err, errHowTo)
	}
	linksUnknown := instance.Board.NVLink != nil && !instance.NVLink
	return hardware{instance: instance, gpus: instance.Node(t.DriverVersion, t.CUDADriverVersion), linksUnknown: linksUnknown}, nil
}

// describedGPUs are those that spec.template.gpus describes: a board of the catalogue, by its name there or NVML's,
// with corrections.
func describedGPUs(described v1alpha1.GPUTemplate, t v1alpha1.NodeTemplate) (node gpu.Node, linksUnknown bool, err error) {
	board, known := catalog.BoardByProductName(described.ProductName)
	if described.Board != "" {
		if board, known = catalog.BoardByName(described.Board); !known {
			return gpu.Node{}, false, fmt.Errorf("spec.template.gpus.board: the catalogue has no board %q; give productName and memory as nvidia-smi shows them instead", described.Board)
		}
	}
	if described.Count < 1 {
		return gpu.Node{}, false, fmt.Errorf("spec.template.gpus.count is %d: give the number of GPUs of a node", described.Count)
	}
	if !known && (described.ProductName == "" || described.Memory == nil) {
		return gpu.Node{}, false, errors.New("spec.template.gpus has neither a board, a name of the catalogue, nor productName and memory as nvidia-smi shows them")
	}
	node = board.Node(int(described.Count), t.DriverVersion, t.CUDADriverVersion)
	for i := range node.GPUs {
		correct(&node.GPUs[i], described)
	}
	return node, !known || board.NVLink != nil, nil
}

// correct overwrites facts of the catalogue with described ones.
func correct(g *gpu.GPU, described v1alpha1.GPUTemplate) {
	for field, value := range map[*string]string{
		&g.ProductName: described.ProductName, &g.Brand: described.Brand,
		&g.Architecture: described.Architecture, &g.ComputeCapability: described.CUDAComputeCapability,
	} {
		if value != "" {
			*field = value
		}
	}
	if described.Memory != nil {
		g.MemoryBytes = uint64(max(described.Memory.Value(), 0))
	}
}
