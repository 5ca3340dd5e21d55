package doctor

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/mica-gpu/mica/api/v1alpha1"
)

func groupChecks() []Check {
	return []Check{{
		Name:     "accelerator-label",
		Severity: Error,
		Looks:    "the label " + labelAccelerator + " of nodes that publish devices, and of the template of GPUNodeGroups",
		Why:      "Cluster Autoscaler waits on such a node for nvidia.com/gpu, which only a device plugin sets, keeps it as unready and then removes it as unused.",
		Fix:      "aws eks update-nodegroup-config --cluster-name CLUSTER --nodegroup-name NODEGROUP --labels removeLabels=" + labelAccelerator + " && kubectl label node NODE " + labelAccelerator + "-",
		Source:   "kubernetes/autoscaler, cloudprovider/aws GetNodeGpuConfig, GpuCustomResourcesProcessor",
		needs:    []Kind{KindNodes, KindSlices, KindGroups},
		find:     acceleratorLabel,
	}, {
		Name:     "taint-value",
		Severity: Warning,
		Looks:    "taints without a value on nodes of managed node groups of EKS",
		Why:      "Cluster Autoscaler overlooks a node group's taint without a value: it plans with nodes that do not have it. Without the startup taint, it adds a second node.",
		Fix:      "aws eks update-nodegroup-config --cluster-name CLUSTER --nodegroup-name NODEGROUP --taints 'addOrUpdateTaints=[{key=KEY,value=true,effect=EFFECT}]'",
		Source:   "kubernetes/autoscaler, cloudprovider/aws/managed_nodegroup_cache.go",
		needs:    []Kind{KindNodes, KindGroups},
		find:     taintValue,
	}, {
		Name:     "startup-taint",
		Severity: Warning,
		Looks:    "nodes of GPUNodeGroups that do not publish complete pools yet, and their taints. Of nodes that are complete, and of groups without nodes, it cannot be seen",
		Why:      "Without the startup taint, Cluster Autoscaler takes a node that has no slices yet for one without GPUs, adds a second one and remembers that.",
		Fix:      "aws eks update-nodegroup-config --cluster-name CLUSTER --nodegroup-name NODEGROUP --taints 'addOrUpdateTaints=[{key=" + v1alpha1.TaintStartup + ",value=starting,effect=NO_SCHEDULE}]'",
		Source:   "kubernetes/autoscaler#1949, #5278; docs on scale-out, Give new nodes the startup taint",
		needs:    []Kind{KindNodes, KindSlices, KindGroups},
		find:     startupTaint,
	}, {
		Name:     "startup-taint-kept",
		Severity: Error,
		Looks:    "the condition " + v1alpha1.ConditionNodesStuck + " of GPUNodeGroups",
		Why:      "DaemonSets that do not tolerate the startup taint wait for the node, and the node for them: no GPU is offered, and the taint stays.",
		Fix:      "kubectl describe gpunodegroup GROUP",
		Source:   "the controller, which writes the condition",
		needs:    []Kind{KindGroups},
		find:     startupTaintKept,
	}, {
		Name:     "startup-taint-tolerated",
		Severity: Warning,
		Looks:    "DaemonSets with NVIDIA's driver, and Node Feature Discovery beside them, where Cluster Autoscaler makes GPUNodeGroups grow",
		Why:      "A new node with the startup taint gets no driver if the DaemonSet with it does not tolerate the taint, and loses the taint only when it publishes GPUs.",
		Fix:      "Add {key: " + v1alpha1.TaintStartup + ", operator: Exists} to the values VALUES of the chart that has made the DaemonSet, or have Mica add it: controller.startupTaint.tolerateIn={NAMESPACE}",
		Source:   "docs on scale-out, Give new nodes the startup taint; charts of NVIDIA's GPU Operator and Node Feature Discovery",
		needs:    []Kind{KindDaemonSets, KindGroups},
		find:     startupTaintTolerated,
	}, {
		Name:     "mixed-group",
		Severity: Warning,
		Looks:    "instance types and zones of the nodes of each GPUNodeGroup, and its condition " + v1alpha1.ConditionTemplateValid,
		Why:      "All nodes of a group count as alike, for Mica and for Cluster Autoscaler: a pod can wait for a node that is not what was expected.",
		Fix:      "Use one instance type, one zone and one launch template per node group. To see what differs: kubectl get nodes --selector SELECTOR --label-columns node.kubernetes.io/instance-type,topology.kubernetes.io/zone",
		Source:   "kubernetes/autoscaler, docs/dra_support.md; docs on scale-out",
		needs:    []Kind{KindNodes, KindGroups},
		find:     mixedGroup,
	}, {
		Name:     "group-ready",
		Severity: Warning,
		Looks:    "the conditions Ready, " + v1alpha1.ConditionInBackoff + ", " + v1alpha1.ConditionDiscovered + " and " + v1alpha1.ConditionScaleIn + " of GPUNodeGroups",
		Why:      "A group with such a condition does not grow, or its empty nodes do not end.",
		Fix:      "kubectl describe gpunodegroup GROUP",
		Source:   "the controller, which writes the conditions; docs on troubleshooting",
		needs:    []Kind{KindGroups},
		find:     groupReady,
	}, {
		Name:     "headroom-ready",
		Severity: Warning,
		Looks:    "the condition Ready of GPUHeadrooms",
		Why:      "Headroom that is invalid, or that no group can hold, is not kept.",
		Fix:      "kubectl describe gpuheadroom HEADROOM",
		Source:   "the controller, which writes the condition; docs on troubleshooting",
		needs:    []Kind{KindHeadrooms},
		find:     headroomReady,
	}}
}

// labelAccelerator makes Cluster Autoscaler's AWS provider take a node for one whose GPUs a device
// plugin offers.
const labelAccelerator = "k8s.amazonaws.com/accelerator"

// groupNames are the names by which the AWS command line knows the node group of a node or group.
func groupNames(provider v1alpha1.NodeGroupProvider) map[string]string {
	if provider.EKS == nil {
		return map[string]string{}
	}
	return map[string]string{"NODEGROUP": provider.EKS.Nodegroup, "CLUSTER": provider.EKS.Cluster}
}

// namesOf has the names of a node and of its node group.
func (f *Facts) namesOf(node *corev1.Node) map[string]string {
	names := map[string]string{"NODE": node.Name}
	if nodegroup := node.Labels[v1alpha1.LabelEKSNodegroup]; nodegroup != "" {
		names["NODEGROUP"] = nodegroup
	}
	for i := range f.Groups {
		if f.Groups[i].Spec.Provider.EKS != nil && has(&f.Groups[i], node) {
			maps.Copy(names, groupNames(f.Groups[i].Spec.Provider))
		}
	}
	return names
}

// has tells whether a node is of the group.
func has(group *v1alpha1.GPUNodeGroup, node *corev1.Node) bool {
	selector := group.Spec.Provider.Selector()
	return len(selector) > 0 && labels.SelectorFromSet(selector).Matches(labels.Set(node.Labels))
}

func acceleratorLabel(f *Facts) []Finding {
	published := f.byNode()
	var found []Finding
	for i := range f.Nodes {
		node := &f.Nodes[i]
		value, labelled := node.Labels[labelAccelerator]
		// It waits for this resource, and for no other of a device plugin.
		gpus := node.Status.Allocatable["nvidia.com/gpu"]
		if !labelled || len(published[node.Name]) == 0 || gpus.Sign() > 0 {
			continue
		}
		found = append(found, Finding{
			Object:  "node/" + node.Name,
			Message: fmt.Sprintf("The node publishes its GPUs and has the label %s=%s.", labelAccelerator, value),
			names:   f.namesOf(node),
		})
	}
	for i := range f.Groups {
		group := &f.Groups[i]
		if _, labelled := group.Spec.Template.Labels[labelAccelerator]; labelled {
			found = append(found, Finding{
				Object:  "gpunodegroup/" + group.Name,
				Message: "spec.template.labels says that new nodes have the label " + labelAccelerator + ".",
				Fix:     fmt.Sprintf(`kubectl patch gpunodegroup %s --type=merge --patch '{"spec":{"template":{"labels":{"%s":null}}}}', after the label is gone from the node group`, group.Name, labelAccelerator),
			})
		}
	}
	return found
}

// eksEffects are the names of effects at EKS.
var eksEffects = map[corev1.TaintEffect]string{
	corev1.TaintEffectNoSchedule: "NO_SCHEDULE", corev1.TaintEffectNoExecute: "NO_EXECUTE", corev1.TaintEffectPreferNoSchedule: "PREFER_NO_SCHEDULE",
}

// byOthers tells whether a taint comes and goes on a live node, and is not the node group's.
func byOthers(key string) bool {
	domain, _, _ := strings.Cut(key, "/")
	return strings.HasSuffix(domain, "kubernetes.io") && key != v1alpha1.TaintStartup || strings.HasSuffix(key, "ByClusterAutoscaler") || strings.HasPrefix(key, "DeletionCandidate")
}

func taintValue(f *Facts) []Finding {
	var found []Finding
	for i := range f.Nodes {
		node := &f.Nodes[i]
		if node.Labels[v1alpha1.LabelEKSNodegroup] == "" {
			continue
		}
		for _, taint := range node.Spec.Taints {
			if taint.Value != "" || byOthers(taint.Key) {
				continue
			}
			names := f.namesOf(node)
			names["KEY"], names["EFFECT"] = taint.Key, eksEffects[taint.Effect]
			finding := Finding{Object: "node/" + node.Name, Message: fmt.Sprintf("The taint %s has no value.", taint.ToString()), names: names}
			if taint.Key == v1alpha1.TaintStartup {
				finding.Severity = Error
			}
			found = append(found, finding)
		}
	}
	return found
}

func startupTaint(f *Facts) []Finding {
	published := f.byNode()
	var found []Finding
	for i := range f.Nodes {
		node := &f.Nodes[i]
		if complete(published[node.Name]) || hasStartupTaint(node) || len(devicePluginHas(node)) > 0 {
			continue
		}
		for j := range f.Groups {
			group := &f.Groups[j]
			if !has(group, node) || f.Now.Sub(node.CreationTimestamp.Time) > group.ProvisionTimeout() {
				continue
			}
			found = append(found, Finding{
				Object:  "node/" + node.Name,
				Message: fmt.Sprintf("The node of GPUNodeGroup %s is not complete and does not have the taint %s.", group.Name, v1alpha1.TaintStartup),
				names:   f.namesOf(node),
			})
		}
	}
	return found
}

func complete(pools []*Pool) bool {
	return len(pools) > 0 && !slices.ContainsFunc(pools, func(p *Pool) bool { return !p.Complete() })
}

func startupTaintKept(f *Facts) []Finding {
	var found []Finding
	for i := range f.Groups {
		group := &f.Groups[i]
		condition := meta.FindStatusCondition(group.Status.Conditions, v1alpha1.ConditionNodesStuck)
		if condition == nil || condition.Status != metav1.ConditionTrue {
			continue
		}
		finding := told("gpunodegroup/"+group.Name, condition, "GROUP", group.Name)
		// The controller's sentence ends with the command, if there is one.
		if at := strings.Index(condition.Message, "kubectl -n "); at >= 0 {
			command, _, _ := strings.Cut(condition.Message[at:], "'; ")
			finding.Fix = strings.TrimRight(command, ".'") + "'"
		}
		found = append(found, finding)
	}
	return found
}

// startupTaintTolerated looks before there is a node. What is stuck already, startupTaintKept finds.
func startupTaintTolerated(f *Facts) []Finding {
	drivers := f.daemonSetsOf("driver")
	if len(f.paired()) == 0 || len(drivers) == 0 {
		return nil
	}
	var found []Finding
	look := func(sets []*appsv1.DaemonSet, values string) {
		for _, set := range sets {
			taint, repels := untolerated(set, starting)
			if !repels {
				continue
			}
			found = append(found, Finding{
				Object:  "daemonset/" + set.Name,
				Message: fmt.Sprintf("The DaemonSet in namespace %s does not tolerate the taint %s, so that a node which has it gets no driver.", set.Namespace, taint.Key),
				names:   map[string]string{"NAMESPACE": set.Namespace, "VALUES": values},
			})
		}
	}
	look(drivers, "daemonsets.tolerations")
	look(f.daemonSetsOf("node-feature-discovery"), "worker.tolerations")
	return found
}

// starting is a node as docs have users give node groups the startup taint.
var starting = &corev1.Node{Spec: corev1.NodeSpec{Taints: []corev1.Taint{{Key: v1alpha1.TaintStartup, Value: "starting", Effect: corev1.TaintEffectNoSchedule}}}}

// daemonSetsOf run an image of this name.
func (f *Facts) daemonSetsOf(image string) []*appsv1.DaemonSet {
	var found []*appsv1.DaemonSet
	for i := range f.DaemonSets {
		set := &f.DaemonSets[i]
		if slices.ContainsFunc(set.Spec.Template.Spec.Containers, func(c corev1.Container) bool { return imageName(c.Image) == image }) {
			found = append(found, set)
		}
	}
	return found
}

func mixedGroup(f *Facts) []Finding {
	var found []Finding
	for i := range f.Groups {
		group := &f.Groups[i]
		names := map[string]string{"SELECTOR": labels.SelectorFromSet(group.Spec.Provider.Selector()).String()}
		add := func(severity Severity, message string) {
			found = append(found, Finding{Severity: severity, Object: "gpunodegroup/" + group.Name, Message: message, names: names})
		}
		if c := meta.FindStatusCondition(group.Status.Conditions, v1alpha1.ConditionTemplateValid); c != nil && c.Status == metav1.ConditionFalse {
			add(Warning, c.Reason+": "+c.Message)
		}
		if types := f.valuesOf(group, corev1.LabelInstanceTypeStable); len(types) > 1 {
			add(Warning, "The group's nodes are of different instance types: "+strings.Join(types, ", ")+".")
		}
		if zones := f.valuesOf(group, corev1.LabelTopologyZone); len(zones) > 1 {
			add(Info, "The group's nodes are in different zones: "+strings.Join(zones, ", ")+". A pod with a volume can wait for a node in another zone.")
		}
	}
	return found
}

// valuesOf are the values of a label of the group's nodes.
func (f *Facts) valuesOf(group *v1alpha1.GPUNodeGroup, label string) []string {
	values := map[string]bool{}
	for i := range f.Nodes {
		if value := f.Nodes[i].Labels[label]; value != "" && has(group, &f.Nodes[i]) {
			values[value] = true
		}
	}
	return slices.Sorted(maps.Keys(values))
}

// troubles are conditions with the status that says that something is wrong.
var troubles = []struct {
	condition string
	status    metav1.ConditionStatus
}{
	{v1alpha1.ConditionReady, metav1.ConditionFalse},
	{v1alpha1.ConditionInBackoff, metav1.ConditionTrue},
	{v1alpha1.ConditionDiscovered, metav1.ConditionFalse},
	{v1alpha1.ConditionScaleIn, metav1.ConditionFalse},
}

func groupReady(f *Facts) []Finding {
	var found []Finding
	for i := range f.Groups {
		group := &f.Groups[i]
		for _, trouble := range troubles {
			if c := meta.FindStatusCondition(group.Status.Conditions, trouble.condition); c != nil && c.Status == trouble.status {
				found = append(found, told("gpunodegroup/"+group.Name, c, "GROUP", group.Name))
			}
		}
	}
	return found
}

// told is a finding that the controller has written as a condition.
func told(object string, c *metav1.Condition, placeholder, name string) Finding {
	return Finding{Object: object, Message: c.Reason + ": " + c.Message, names: map[string]string{placeholder: name}}
}

func headroomReady(f *Facts) []Finding {
	var found []Finding
	for i := range f.Headrooms {
		headroom := &f.Headrooms[i]
		c := meta.FindStatusCondition(headroom.Status.Conditions, v1alpha1.ConditionReady)
		// What is being filled is on its way.
		if c != nil && c.Status == metav1.ConditionFalse && c.Reason != v1alpha1.ReasonFilling {
			found = append(found, told("gpuheadroom/"+headroom.Name, c, "HEADROOM", headroom.Name))
		}
	}
	return found
}
