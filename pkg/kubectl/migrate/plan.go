package migrate

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// State is who gives out a node's GPUs.
type State string

// The states of nodes.
const (
	// DevicePlugin: the node's status has resources of a device plugin, and Mica publishes nothing there.
	DevicePlugin State = "device plugin"
	// Both give the GPUs out. Two pods can have one.
	Both State = "both"
	// Mica publishes the GPUs, and there is no device plugin.
	Mica State = "Mica"
	// Nobody: the node has the label of a GPU, and nobody gives it out.
	Nobody State = "nobody"
)

// Cluster is what is known of the cluster.
type Cluster struct {
	Nodes []Machine
	// Plugins are DaemonSets of the device plugin.
	Plugins []Plugin
	// Installed tells that Mica's DeviceClass is there.
	Installed bool
}

// Machine is a node.
type Machine struct {
	Name     string
	Labels   map[string]string
	Cordoned bool
	// Resources are those of the device plugin, from the node's status.
	Resources corev1.ResourceList
	// Slices counts what Mica publishes.
	Slices int
	// Pods are those that have resources of the device plugin there, namespace/name.
	Pods []string
}

// Plugin is a DaemonSet of the device plugin.
type Plugin struct {
	Namespace, Name string
	NodeSelector    map[string]string
}

// Plan is what to do, node by node.
type Plan struct {
	// Before is done once, before the first node.
	Before []Step `json:"before"`
	Nodes  []Node `json:"nodes"`
	After  []Step `json:"after"`
}

// Node is what to do on a node.
type Node struct {
	Name      string   `json:"name"`
	State     State    `json:"state"`
	Resources string   `json:"resources,omitempty"`
	Pods      []string `json:"pods,omitempty"`
	Steps     []Step   `json:"steps,omitempty"`
}

// Step is one thing to do.
type Step struct {
	What    string `json:"what"`
	Command string `json:"command,omitempty"`
}

// labelOperator lets the GPU Operator's device plugin leave a node (its state_manager.go).
const labelOperator = "nvidia.com/gpu.deploy.device-plugin"

// labelKeep is set on nodes that keep a device plugin of another chart.
const labelKeep = "mica.gpu/device-plugin"

// NewPlan says how the nodes move: those without pods first, so that the first steps disturb nobody.
func NewPlan(c Cluster) Plan {
	plan := Plan{Before: []Step{}, Nodes: []Node{}, After: []Step{}}
	moving := false
	for _, machine := range c.Nodes {
		node := Node{Name: machine.Name, State: machine.state(), Resources: resourcesText(machine.Resources), Pods: slices.Sorted(slices.Values(machine.Pods))}
		if node.State == "" {
			continue
		}
		node.Steps = machine.steps(node.State, c.Plugins)
		moving = moving || node.State == DevicePlugin || node.State == Both
		plan.Nodes = append(plan.Nodes, node)
	}
	slices.SortStableFunc(plan.Nodes, func(a, b Node) int {
		if order := slices.Index(order, a.State) - slices.Index(order, b.State); order != 0 {
			return order
		}
		if pods := len(a.Pods) - len(b.Pods); pods != 0 {
			return pods
		}
		return strings.Compare(a.Name, b.Name)
	})
	if moving {
		plan.Before, plan.After = c.before(), c.after()
	}
	return plan
}

var order = []State{Both, DevicePlugin, Nobody, Mica}

// Moving counts nodes that have steps.
func (p Plan) Moving() int {
	n := 0
	for _, node := range p.Nodes {
		if len(node.Steps) > 0 {
			n++
		}
	}
	return n
}

func (m Machine) state() State {
	switch {
	case len(m.Resources) > 0 && m.Slices > 0:
		return Both
	case len(m.Resources) > 0:
		return DevicePlugin
	case m.Slices > 0:
		return Mica
	case m.Labels["nvidia.com/gpu.present"] == "true":
		return Nobody
	}
	return ""
}

func resourcesText(resources corev1.ResourceList) string {
	var texts []string
	for _, name := range slices.Sorted(maps.Keys(resources)) {
		quantity := resources[name]
		texts = append(texts, fmt.Sprintf("%s: %s", name, quantity.String()))
	}
	return strings.Join(texts, ", ")
}

// Resources are those of the device plugin in a node's status. One that does not answer leaves a
// capacity without anything allocatable.
func Resources(status corev1.NodeStatus) corev1.ResourceList {
	found := corev1.ResourceList{}
	for _, list := range []corev1.ResourceList{status.Allocatable, status.Capacity} {
		for name, quantity := range list {
			if isGPU(string(name)) && quantity.Cmp(resource.Quantity{}) > 0 {
				found[name] = quantity
			}
		}
	}
	return found
}

// Uses tells whether a pod has resources of the device plugin.
func Uses(pod corev1.PodSpec) bool {
	for _, c := range slices.Concat(pod.InitContainers, pod.Containers) {
		for name, quantity := range c.Resources.Limits {
			if isGPU(string(name)) && !quantity.IsZero() {
				return true
			}
		}
	}
	return false
}

// before is done once: it changes nothing for pods that run.
func (c Cluster) before() []Step {
	var steps []Step
	if !c.Installed {
		steps = append(steps, Step{"Install Mica beside the device plugin. It publishes nothing on nodes that have one",
			"helm install mica deployments/helm/mica --namespace mica --create-namespace --set kubeletPlugin.besideDevicePlugin=true"})
	}
	for _, p := range c.Plugins {
		if !p.byLabel() {
			steps = append(steps,
				Step{"Label the nodes that have a device plugin, so that it can leave them one by one", "kubectl label nodes --selector nvidia.com/gpu.present=true " + labelKeep + "=true"},
				Step{"Keep the device plugin to the nodes with this label, by the nodeSelector of its chart, or at once",
					fmt.Sprintf(`kubectl patch daemonset %s --namespace %s --patch '{"spec":{"template":{"spec":{"nodeSelector":{"%s":"true"}}}}}'`, p.Name, p.Namespace, labelKeep)})
		}
	}
	return append(steps, Step{"Migrate the manifests, and look at the report", "kubectl gpu migrate -f DIRECTORY > migrated.yaml"})
}

func (c Cluster) after() []Step {
	steps := []Step{{"Apply the manifests, as soon as enough nodes have moved for them", "kubectl apply -f migrated.yaml"}}
	for _, p := range c.Plugins {
		if p.byLabel() {
			steps = append(steps, Step{"Set devicePlugin.enabled=false and migManager.enabled=false in the values of the GPU Operator", ""})
		} else {
			steps = append(steps, Step{fmt.Sprintf("Uninstall the device plugin (DaemonSet %s in %s)", p.Name, p.Namespace), ""})
		}
	}
	return steps
}

// byLabel tells a device plugin of the GPU Operator, or one that was given labelKeep already.
func (p Plugin) byLabel() bool {
	_, operator := p.NodeSelector[labelOperator]
	_, kept := p.NodeSelector[labelKeep]
	return operator || kept
}

// steps move a node. Mica's plugin is there already, and begins by itself.
func (m Machine) steps(state State, plugins []Plugin) []Step {
	switch state {
	case Both:
		return []Step{{"Two drivers give out this node's GPUs. Set kubeletPlugin.ignoreDevicePlugin=false in Mica's chart, or wait until kubelet has forgotten the device plugin", ""}}
	case Nobody:
		return []Step{{"Nobody gives out this node's GPUs. See what the plugin there says", "kubectl gpu doctor"}}
	case Mica:
		return nil
	case DevicePlugin:
	}
	var steps []Step
	if !m.Cordoned {
		steps = append(steps, Step{"Let no more pods onto the node", "kubectl cordon " + m.Name})
	}
	if len(m.Pods) > 0 {
		steps = append(steps, Step{"Move its pods away", "kubectl drain " + m.Name + " --ignore-daemonsets"})
	}
	steps = append(steps, m.withoutPlugin(plugins))
	return append(steps,
		Step{"Wait until kubelet has forgotten the resources, which takes five minutes, or restart kubelet", fmt.Sprintf(`kubectl get node %s -o jsonpath='{.status.capacity}'`, m.Name)},
		Step{"See that Mica publishes the GPUs", "kubectl get resourceslices --field-selector spec.nodeName=" + m.Name},
		Step{"Let pods onto the node again", "kubectl uncordon " + m.Name},
	)
}

// withoutPlugin takes the device plugin from the node.
func (m Machine) withoutPlugin(plugins []Plugin) Step {
	what := "Take the device plugin from the node"
	if len(plugins) == 0 {
		return Step{what + ". No DaemonSet of one was found: it may be part of the node's operating system, as on Bottlerocket", ""}
	}
	for _, p := range plugins {
		if _, operator := p.NodeSelector[labelOperator]; operator {
			return Step{what, "kubectl label node " + m.Name + " --overwrite " + labelOperator + "=false nvidia.com/gpu.deploy.mig-manager=false"}
		}
	}
	return Step{what, "kubectl label node " + m.Name + " " + labelKeep + "-"}
}

// IsPlugin tells NVIDIA's device plugin by the images of a DaemonSet: k8s-device-plugin, in any registry.
func IsPlugin(pod corev1.PodSpec) bool {
	return slices.ContainsFunc(pod.Containers, func(c corev1.Container) bool {
		// config-manager and GPU Feature Discovery have the same image.
		return strings.Contains(c.Image, "k8s-device-plugin") && !strings.Contains(c.Name, "feature-discovery") && !strings.Contains(c.Name, "config-manager") && !strings.Contains(c.Name, "mps")
	})
}
