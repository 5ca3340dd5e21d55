package doctor

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/mica-gpu/mica/api/v1alpha1"
	"github.com/mica-gpu/mica/pkg/scaleout/view"
)

func groupChecks() []Check {
	return []Check{{
		Name:     "accelerator-label",
		Severity: Error,
		Finds:    "A node or group has the label " + labelAccelerator + ". Cluster Autoscaler then waits for nvidia.com/gpu of a device plugin, and removes the node as unused.",
		Fix:      "aws eks update-nodegroup-config --cluster-name CLUSTER --nodegroup-name NODEGROUP --labels removeLabels=" + labelAccelerator + " && kubectl label node NODE " + labelAccelerator + "-",
		needs:    []Kind{KindNodes, KindSlices, KindGroups},
		find:     acceleratorLabel,
	}, {
		Name:     "taint-value",
		Severity: Warning,
		Finds:    "A node of a managed node group of EKS has a taint without a value. Cluster Autoscaler plans without it; without the startup taint it adds a second node.",
		Fix:      "aws eks update-nodegroup-config --cluster-name CLUSTER --nodegroup-name NODEGROUP --taints 'addOrUpdateTaints=[{key=KEY,value=true,effect=EFFECT}]'",
		needs:    []Kind{KindNodes, KindGroups},
		find:     taintValue,
	}, {
		Name:     "startup-taint",
		Severity: Warning,
		Finds:    "A new node of a GPUNodeGroup lacks the startup taint. Until it publishes its GPUs, Cluster Autoscaler adds a second one.",
		Fix:      "aws eks update-nodegroup-config --cluster-name CLUSTER --nodegroup-name NODEGROUP --taints 'addOrUpdateTaints=[{key=" + v1alpha1.TaintStartup + ",value=starting,effect=NO_SCHEDULE}]'",
		needs:    []Kind{KindNodes, KindSlices, KindGroups},
		find:     startupTaint,
	}, {
		Name:     "startup-taint-tolerated",
		Severity: Warning,
		Finds:    "The DaemonSet of the NVIDIA driver, or Node Feature Discovery, does not tolerate the startup taint. A new node then gets no driver and keeps the taint.",
		Fix:      "Add {key: " + v1alpha1.TaintStartup + ", operator: Exists} to the values VALUES of the DaemonSet's chart, or let Mica add it: controller.startupTaint.tolerateIn={NAMESPACE}",
		needs:    []Kind{KindDaemonSets, KindGroups},
		find:     startupTaintTolerated,
	}, {
		Name:     "mixed-group",
		Severity: Warning,
		Finds:    "The nodes of a GPUNodeGroup differ in instance type or zone, so a pod may wait for a node that does not fit.",
		Fix:      "Use one instance type, one zone and one launch template per node group. To see what differs: kubectl get nodes --selector SELECTOR --label-columns node.kubernetes.io/instance-type,topology.kubernetes.io/zone",
		needs:    []Kind{KindNodes, KindGroups},
		find:     mixedGroup,
	}}
}

// labelAccelerator makes Cluster Autoscaler expect a device plugin (cloudprovider/aws, GetNodeGpuConfig).
const labelAccelerator = "k8s.amazonaws.com/accelerator"

// nodegroupNames are the node's name and what the AWS command line calls its cluster and node group.
func (f *Facts) nodegroupNames(node *corev1.Node) map[string]string {
	names := map[string]string{"NODE": node.Name, "NODEGROUP": node.Labels[v1alpha1.LabelEKSNodegroup]}
	for _, group := range f.Groups {
		if eks := group.Spec.Provider.EKS; eks != nil && has(group, node) {
			names["NODEGROUP"], names["CLUSTER"] = eks.Nodegroup, eks.Cluster
		}
	}
	return names
}

// has reports whether a node belongs to the group.
func has(group *v1alpha1.GPUNodeGroup, node *corev1.Node) bool {
	selector := group.Spec.Provider.Selector()
	return len(selector) > 0 && labels.SelectorFromSet(selector).Matches(labels.Set(node.Labels))
}

func acceleratorLabel(f *Facts) []Finding {
	published := f.byNode()
	var found []Finding
	for _, node := range f.Nodes {
		value, labelled := node.Labels[labelAccelerator]
		// Cluster Autoscaler waits for this resource alone.
		gpus := node.Status.Allocatable["nvidia.com/gpu"]
		if !labelled || len(published[node.Name]) == 0 || gpus.Sign() > 0 {
			continue
		}
		finding := onNode(node, "The node publishes its GPUs and has the label %s=%s.", labelAccelerator, value)
		finding.names = f.nodegroupNames(node)
		found = append(found, finding)
	}
	for _, group := range f.Groups {
		if _, labelled := group.Spec.Template.Labels[labelAccelerator]; labelled {
			found = append(found, Finding{
				Object:  "gpunodegroup/" + group.Name,
				Message: "spec.template.labels gives new nodes the label " + labelAccelerator + ".",
				Fix:     fmt.Sprintf(`kubectl patch gpunodegroup %s --type=merge --patch '{"spec":{"template":{"labels":{"%s":null}}}}', after you remove the label from the node group`, group.Name, labelAccelerator),
			})
		}
	}
	return found
}

// eksEffects are the names of effects in EKS.
var eksEffects = map[corev1.TaintEffect]string{
	corev1.TaintEffectNoSchedule: "NO_SCHEDULE", corev1.TaintEffectNoExecute: "NO_EXECUTE", corev1.TaintEffectPreferNoSchedule: "PREFER_NO_SCHEDULE",
}

// transient reports whether Kubernetes or Cluster Autoscaler sets a taint on live nodes.
func transient(key string) bool {
	domain, _, _ := strings.Cut(key, "/")
	return strings.HasSuffix(domain, "kubernetes.io") && key != v1alpha1.TaintStartup || strings.HasSuffix(key, "ByClusterAutoscaler") || strings.HasPrefix(key, "DeletionCandidate")
}

// taintValue: see cloudprovider/aws/managed_nodegroup_cache.go of Cluster Autoscaler.
func taintValue(f *Facts) []Finding {
	var found []Finding
	for _, node := range f.Nodes {
		if node.Labels[v1alpha1.LabelEKSNodegroup] == "" {
			continue
		}
		for _, taint := range node.Spec.Taints {
			if taint.Value != "" || transient(taint.Key) {
				continue
			}
			finding := onNode(node, "The taint %s has no value.", taint.ToString())
			finding.names = f.nodegroupNames(node)
			finding.names["KEY"], finding.names["EFFECT"] = taint.Key, eksEffects[taint.Effect]
			if taint.Key == v1alpha1.TaintStartup {
				finding.Severity = Error
			}
			found = append(found, finding)
		}
	}
	return found
}

// startupTaint looks at starting nodes only: complete nodes have lost the taint (kubernetes/autoscaler#1949).
func startupTaint(f *Facts) []Finding {
	published := f.byNode()
	var found []Finding
	for _, node := range f.Nodes {
		if complete(published[node.Name]) || view.HasStartupTaint(node) || len(devicePluginOffers(node)) > 0 {
			continue
		}
		for _, group := range f.Groups {
			if !has(group, node) || f.Now.Sub(node.CreationTimestamp.Time) > group.ProvisionTimeout() {
				continue
			}
			finding := onNode(node, "The node of GPUNodeGroup %s is not complete and does not have the taint %s.", group.Name, v1alpha1.TaintStartup)
			finding.names = f.nodegroupNames(node)
			found = append(found, finding)
		}
	}
	return found
}

func complete(pools []Pool) bool {
	return len(pools) > 0 && !slices.ContainsFunc(pools, func(p Pool) bool { return !p.Complete() })
}

// startupTaintTolerated finds the mistake before there is a node. The condition NodesStuck reports it later.
func startupTaintTolerated(f *Facts) []Finding {
	drivers := f.daemonSetsWith("driver")
	paired := slices.ContainsFunc(f.Groups, func(group *v1alpha1.GPUNodeGroup) bool {
		return group.Spec.Pairing == v1alpha1.PairingPlaceholder || group.Spec.Pairing == ""
	})
	if !paired || len(drivers) == 0 {
		return nil
	}
	var found []Finding
	for _, set := range append(drivers, f.daemonSetsWith("node-feature-discovery")...) {
		values := "daemonsets.tolerations"
		if !slices.Contains(drivers, set) {
			values = "worker.tolerations"
		}
		if taint, repels := untolerated(set, starting); repels {
			found = append(found, Finding{
				Object:  "daemonset/" + set.Name,
				Message: fmt.Sprintf("The DaemonSet in namespace %s does not tolerate the taint %s, so a node with it gets no driver.", set.Namespace, taint.Key),
				names:   map[string]string{"NAMESPACE": set.Namespace, "VALUES": values},
			})
		}
	}
	return found
}

// starting is a node with the startup taint.
var starting = &corev1.Node{Spec: corev1.NodeSpec{Taints: []corev1.Taint{{Key: v1alpha1.TaintStartup, Value: "starting", Effect: corev1.TaintEffectNoSchedule}}}}

// daemonSetsWith run an image of this name.
func (f *Facts) daemonSetsWith(image string) []*appsv1.DaemonSet {
	return slices.DeleteFunc(slices.Clone(f.DaemonSets), func(set *appsv1.DaemonSet) bool {
		return !slices.ContainsFunc(set.Spec.Template.Spec.Containers, func(c corev1.Container) bool { return imageName(c.Image) == image })
	})
}

// imageName is the last part of an image's name, without registry, tag and digest.
func imageName(image string) string {
	name := image[strings.LastIndex(image, "/")+1:]
	name, _, _ = strings.Cut(name, "@")
	name, _, _ = strings.Cut(name, ":")
	return name
}

func mixedGroup(f *Facts) []Finding {
	var found []Finding
	for _, group := range f.Groups {
		finding := Finding{Object: "gpunodegroup/" + group.Name, names: map[string]string{"SELECTOR": labels.SelectorFromSet(group.Spec.Provider.Selector()).String()}}
		if types := f.valuesOf(group, corev1.LabelInstanceTypeStable); len(types) > 1 {
			finding.Message = "The group's nodes have different instance types: " + strings.Join(types, ", ") + "."
			found = append(found, finding)
		}
		if zones := f.valuesOf(group, corev1.LabelTopologyZone); len(zones) > 1 {
			finding.Severity = Info
			finding.Message = "The group's nodes are in different zones: " + strings.Join(zones, ", ") + ". A pod with a volume can wait for a node in another zone."
			found = append(found, finding)
		}
	}
	return found
}

// valuesOf returns the values of a label on the group's nodes.
func (f *Facts) valuesOf(group *v1alpha1.GPUNodeGroup, label string) []string {
	values := map[string]bool{}
	for _, node := range f.Nodes {
		if value := node.Labels[label]; value != "" && has(group, node) {
			values[value] = true
		}
	}
	return slices.Sorted(maps.Keys(values))
}
