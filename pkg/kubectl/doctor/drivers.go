package doctor

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
)

func driverChecks() []Check {
	return []Check{{
		Name:     "device-plugin",
		Severity: Error,
		Looks:    "nvidia.com/gpu, nvidia.com/gpu.shared and nvidia.com/mig-… in the status of nodes, and what the nodes publish",
		Why:      "A device plugin and a DRA driver know nothing of each other: both give the same GPU away. Mica withholds its GPUs where it sees a device plugin.",
		Fix:      "kubectl drain NODE --ignore-daemonsets, remove the device plugin from NODE, then: kubectl uncordon NODE",
		Source:   "ai-dynamo/dynamo#13536; docs on migration, From NVIDIA's device plugin",
		needs:    []Kind{KindNodes, KindSlices},
		find:     devicePlugin,
	}, {
		Name:     "two-drivers",
		Severity: Error,
		Looks:    "nodes on which Mica and NVIDIA's DRA driver for GPUs are both to run, and nodes of a GPUCluster",
		Why:      "Both register at kubelet as gpu.nvidia.com, and kubelet sends claims to the one that registered last.",
		Fix:      "Keep NVIDIA's driver for ComputeDomains alone: helm upgrade RELEASE dra-driver-nvidia-gpu --repo REPOSITORY --namespace NAMESPACE --reuse-values --set resources.gpus.enabled=false",
		Source:   "NVIDIA/gpu-operator#2571; KEP-3063",
		needs:    []Kind{KindNodes, KindDaemonSets},
		find:     twoDrivers,
	}}
}

// devicePluginHas is what a device plugin gives out on a node, as pkg/node/offer sees it: what DRA
// offers under such a name is in no node's status (KEP-5004).
func devicePluginHas(node *corev1.Node) []string {
	has := map[string]bool{}
	for _, resources := range []corev1.ResourceList{node.Status.Allocatable, node.Status.Capacity} {
		for name, quantity := range resources {
			if isDevicePlugins(name) && quantity.Sign() > 0 {
				has[fmt.Sprintf("%s: %s", name, quantity.String())] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(has))
}

func isDevicePlugins(name corev1.ResourceName) bool {
	return name == "nvidia.com/gpu" || name == "nvidia.com/gpu.shared" || strings.HasPrefix(string(name), "nvidia.com/mig-")
}

func devicePlugin(f *Facts) []Finding {
	published := f.byNode()
	plugins := f.sets(componentPlugin)
	var found []Finding
	for i := range f.Nodes {
		node := &f.Nodes[i]
		resources := devicePluginHas(node)
		if len(resources) == 0 {
			continue
		}
		finding := Finding{Object: "node/" + node.Name, names: map[string]string{"NODE": node.Name}}
		devices := 0
		for _, pool := range published[node.Name] {
			devices += pool.Devices
		}
		switch {
		case devices > 0:
			finding.Message = fmt.Sprintf("A device plugin gives out the node's GPUs (%s), and a DRA driver publishes %d devices of them: one GPU can get two pods.",
				strings.Join(resources, ", "), devices)
		case anySelects(plugins, node):
			finding.Severity = Warning
			finding.Message = fmt.Sprintf("A device plugin gives out the node's GPUs (%s), so Mica, which selects the node, publishes none.", strings.Join(resources, ", "))
		default:
			continue
		}
		found = append(found, finding)
	}
	return found
}

// labelMode is the GPU Operator's, on nodes of a cluster that has ClusterPolicy and GPUCluster: "dra"
// is for those on which it runs NVIDIA's DRA driver (GPU Operator 26.7).
const labelMode = "nvidia.com/gpu-operator.resource-allocation.mode"

// ofNVIDIA tells whether a DaemonSet runs NVIDIA's DRA driver for GPUs. With ComputeDomains alone
// it has no container of that name.
func ofNVIDIA(set *appsv1.DaemonSet) bool {
	return slices.ContainsFunc(set.Spec.Template.Spec.Containers, func(c corev1.Container) bool {
		return c.Name == "gpus" && (strings.Contains(c.Image, "dra-driver") || strings.Contains(c.Image, "dra-gpu-driver"))
	})
}

func twoDrivers(f *Facts) []Finding {
	var theirs []*appsv1.DaemonSet
	for i := range f.DaemonSets {
		if set := &f.DaemonSets[i]; ofNVIDIA(set) {
			theirs = append(theirs, set)
		}
	}
	ours := f.sets(componentPlugin)
	var found []Finding
	for i := range f.Nodes {
		node := &f.Nodes[i]
		if !anySelects(ours, node) {
			continue
		}
		if node.Labels[labelMode] == "dra" {
			found = append(found, Finding{
				Object:  "node/" + node.Name,
				Message: "A GPUCluster of the GPU Operator runs NVIDIA's DRA driver on the node, which Mica selects, too.",
				Fix:     `helm upgrade mica deployments/helm/mica --namespace NAMESPACE --reuse-values --set-string kubeletPlugin.nodeSelector."nvidia\.com/gpu-operator\.resource-allocation\.mode"=device-plugin`,
				names:   map[string]string{"NAMESPACE": ours[0].Namespace},
			})
		}
		for _, set := range theirs {
			if selects(set, node) {
				found = append(found, Finding{
					Object:  "node/" + node.Name,
					Message: fmt.Sprintf("DaemonSet %s/%s runs NVIDIA's DRA driver for GPUs on the node, which Mica selects, too.", set.Namespace, set.Name),
					names:   map[string]string{"RELEASE": set.Labels["app.kubernetes.io/instance"], "NAMESPACE": set.Namespace},
				})
			}
		}
	}
	return found
}
