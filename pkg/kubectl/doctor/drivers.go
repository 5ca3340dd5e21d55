package doctor

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/mica-gpu/mica/pkg/excerpt"
)

func driverChecks() []Check {
	return []Check{{
		Name:     "device-plugin",
		Severity: Error,
		Finds:    "A device plugin still offers a node's GPUs. Mica withholds them there; if both offer them, one GPU can go to two pods.",
		Fix:      "kubectl drain NODE --ignore-daemonsets, remove the device plugin from NODE, then: kubectl uncordon NODE. See docs, Move a node group from the device plugin.",
		needs:    []Kind{KindNodes, KindSlices, KindDaemonSets},
		find:     devicePlugin,
	}, {
		Name:     "device-plugin-resources",
		Severity: Error,
		Finds:    "Pods ask for a resource of NVIDIA's device plugin, such as nvidia.com/mig-1g.10gb, that no DeviceClass serves. They stay pending once the device plugin has gone.",
		Fix:      "Write a claim instead: see docs on migration, What to write instead.",
		needs:    []Kind{KindPods, KindNodes, KindClasses},
		find:     devicePluginResources,
	}, {
		Name:     "device-plugin-quota",
		Severity: Warning,
		Finds:    "A ResourceQuota limits requests of nvidia.com resources, and no devices of a DeviceClass. Claims are not limited.",
		Fix:      `kubectl --namespace NAMESPACE patch resourcequota QUOTA --type=merge --patch '{"spec":{"hard":{"CLASS.deviceclass.resource.k8s.io/devices":"NUMBER"}}}'`,
		needs:    []Kind{KindQuotas},
		find:     devicePluginQuota,
	}, {
		Name:     "two-drivers",
		Severity: Error,
		Finds:    "Mica and NVIDIA's DRA driver for GPUs select the same node. Both register as gpu.nvidia.com, and kubelet sends claims to the last one.",
		Fix:      "Keep NVIDIA's driver for ComputeDomains alone: helm upgrade RELEASE dra-driver-nvidia-gpu --repo REPOSITORY --namespace NAMESPACE --reuse-values --set resources.gpus.enabled=false",
		needs:    []Kind{KindNodes, KindDaemonSets},
		find:     twoDrivers,
	}}
}

// devicePluginOffers lists a device plugin's resources in the node's status. Extended resources that DRA
// serves do not appear there (KEP-5004).
func devicePluginOffers(node *corev1.Node) []string {
	offers := map[string]bool{}
	for _, resources := range []corev1.ResourceList{node.Status.Allocatable, node.Status.Capacity} {
		for name, quantity := range resources {
			if isDevicePlugins(name) && quantity.Sign() > 0 {
				offers[fmt.Sprintf("%s: %s", name, quantity.String())] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(offers))
}

func isDevicePlugins(name corev1.ResourceName) bool {
	return name == "nvidia.com/gpu" || name == "nvidia.com/gpu.shared" || strings.HasPrefix(string(name), "nvidia.com/mig-")
}

func devicePlugin(f *Facts) []Finding {
	published, plugins := f.byNode(), f.sets(componentPlugin)
	var found []Finding
	for _, node := range f.Nodes {
		offers := strings.Join(devicePluginOffers(node), ", ")
		devices := 0
		for _, pool := range published[node.Name] {
			devices += len(pool.Devices())
		}
		switch {
		case offers == "":
		case devices > 0:
			found = append(found, onNode(node, "A device plugin offers the node's GPUs (%s), and a DRA driver publishes %d devices of them: one GPU can go to two pods.", offers, devices))
		case anySelects(plugins, node):
			finding := onNode(node, "A device plugin offers the node's GPUs (%s), so Mica, which selects the node, publishes none.", offers)
			finding.Severity = Warning
			found = append(found, finding)
		}
	}
	return found
}

// devicePluginResources has one finding per owner of pods and resource.
func devicePluginResources(f *Facts) []Finding {
	offered := map[corev1.ResourceName]bool{}
	for _, node := range f.Nodes {
		for name, quantity := range node.Status.Allocatable {
			offered[name] = offered[name] || quantity.Sign() > 0
		}
	}
	type user struct {
		namespace, object string
		resource          corev1.ResourceName
	}
	users, stuck := map[user]int{}, map[user]bool{}
	for _, pod := range f.Pods {
		for _, resource := range pod.Resources {
			if f.ExtendedResources[resource] {
				continue
			}
			u := user{pod.Namespace, cmp.Or(pod.Owner, "pod/"+pod.Name), resource}
			users[u]++
			stuck[u] = stuck[u] || pod.Node == "" && !offered[resource]
		}
	}
	var found []Finding
	for u, pods := range users {
		finding := Finding{Severity: Info, Object: u.object,
			Message: fmt.Sprintf("%s in namespace %s asks for %s, which no DeviceClass serves: without a device plugin it stays pending.", excerpt.Count(pods, "pod"), u.namespace, u.resource)}
		if stuck[u] {
			finding.Severity = Error
			finding.Message = fmt.Sprintf("%s in namespace %s asks for %s, which neither a DeviceClass nor a node offers: it stays pending.", excerpt.Count(pods, "pod"), u.namespace, u.resource)
		}
		found = append(found, finding)
	}
	return found
}

func devicePluginQuota(f *Facts) []Finding {
	var found []Finding
	for _, quota := range f.Quotas {
		var limited []string
		claims := false
		for name := range quota.Spec.Hard {
			if resource, is := strings.CutPrefix(string(name), corev1.DefaultResourceRequestsPrefix); is && isDevicePlugins(corev1.ResourceName(resource)) {
				limited = append(limited, string(name))
			}
			claims = claims || strings.HasSuffix(string(name), corev1.ResourceClaimsPerClass)
		}
		if len(limited) == 0 || claims {
			continue
		}
		slices.Sort(limited)
		found = append(found, Finding{
			Object:  "resourcequota/" + quota.Name,
			Message: fmt.Sprintf("The quota in namespace %s limits %s, and no claims.", quota.Namespace, strings.Join(limited, ", ")),
			names:   map[string]string{"NAMESPACE": quota.Namespace, "QUOTA": quota.Name},
		})
	}
	return found
}

// labelMode is the GPU Operator's, in a cluster with a ClusterPolicy and a GPUCluster: "dra" marks the
// nodes of NVIDIA's DRA driver (GPU Operator 26.7).
const labelMode = "nvidia.com/gpu-operator.resource-allocation.mode"

// runsNVIDIA reports whether a DaemonSet runs NVIDIA's DRA driver for GPUs. With ComputeDomains alone it
// has no container of this name.
func runsNVIDIA(set *appsv1.DaemonSet) bool {
	return slices.ContainsFunc(set.Spec.Template.Spec.Containers, func(c corev1.Container) bool {
		return c.Name == "gpus" && (strings.Contains(c.Image, "dra-driver") || strings.Contains(c.Image, "dra-gpu-driver"))
	})
}

func twoDrivers(f *Facts) []Finding {
	ours := f.sets(componentPlugin)
	var found []Finding
	for _, node := range f.Nodes {
		if !anySelects(ours, node) {
			continue
		}
		if node.Labels[labelMode] == "dra" {
			finding := onNode(node, "A GPUCluster of the GPU Operator runs NVIDIA's DRA driver on the node, which Mica selects, too.")
			finding.Fix = `helm upgrade mica deployments/helm/mica --namespace NAMESPACE --reuse-values --set-string kubeletPlugin.nodeSelector."nvidia\.com/gpu-operator\.resource-allocation\.mode"=device-plugin`
			finding.names["NAMESPACE"] = ours[0].Namespace
			found = append(found, finding)
		}
		for _, set := range f.DaemonSets {
			if runsNVIDIA(set) && selects(set, node) {
				finding := onNode(node, "DaemonSet %s/%s runs NVIDIA's DRA driver for GPUs on the node, which Mica selects, too.", set.Namespace, set.Name)
				finding.names["RELEASE"], finding.names["NAMESPACE"] = set.Labels["app.kubernetes.io/instance"], set.Namespace
				found = append(found, finding)
			}
		}
	}
	return found
}
