package doctor

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corehelpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/klog/v2"

	"github.com/mica-gpu/mica/api/v1alpha1"
	"github.com/mica-gpu/mica/pkg/catalog"
	"github.com/mica-gpu/mica/pkg/scaleout/view"
)

func installationChecks() []Check {
	return []Check{{
		Name:     "plugin-installed",
		Severity: Error,
		Finds:    "The cluster has no DaemonSet of Mica's plugin, so no node publishes its GPUs.",
		Fix:      "helm install mica deployments/helm/mica --namespace mica --create-namespace",
		needs:    []Kind{KindDaemonSets},
		find:     pluginInstalled,
	}, {
		Name:     "plugin-selects-node",
		Severity: Warning,
		Finds:    "The plugin does not select a node with NVIDIA GPUs. It needs a label that the node's image or Node Feature Discovery sets.",
		Fix:      "kubectl label node NODE nvidia.com/gpu.present=true",
		needs:    []Kind{KindNodes, KindDaemonSets, KindSlices},
		find:     pluginSelectsNode,
	}, {
		Name:     "plugin-running",
		Severity: Error,
		Finds:    "No plugin pod is ready on a node that the plugin selects. Claims there are not prepared, and a new node publishes nothing.",
		Fix:      "kubectl --namespace NAMESPACE describe pods --selector app.kubernetes.io/component=kubelet-plugin --field-selector spec.nodeName=NODE",
		needs:    []Kind{KindNodes, KindDaemonSets, KindPods},
		find:     pluginRunning,
	}, {
		Name:     "gpus-published",
		Severity: Warning,
		Finds:    "The plugin is ready and the node publishes no GPU: there is no driver, no GPU, or the node's GPUNode reports why it withholds them.",
		Fix:      "kubectl --namespace NAMESPACE logs POD --tail=50",
		needs:    []Kind{KindNodes, KindDaemonSets, KindPods, KindSlices, KindGPUNodes},
		find:     gpusPublished,
	}, {
		Name:     "controller-running",
		Severity: Error,
		Finds:    "No controller is ready. GPUNodeGroups do not grow, and new nodes keep the startup taint.",
		Fix:      "kubectl get pods --all-namespaces --selector app.kubernetes.io/component=controller,app.kubernetes.io/name=mica",
		needs:    []Kind{KindNodes, KindDeployments, KindGroups},
		find:     controllerRunning,
	}}
}

// patience is how long a change may take before it counts as a mistake.
const patience = 2 * time.Minute

// onNode is a finding at a node. Its fix knows the node's name.
func onNode(node *corev1.Node, format string, args ...any) Finding {
	return Finding{Object: "node/" + node.Name, Message: fmt.Sprintf(format, args...), names: map[string]string{"NODE": node.Name}}
}

// ofChart reports whether an object comes from Mica's chart, whatever its name.
func ofChart(object metav1.Object, component string) bool {
	labels := object.GetLabels()
	return labels["app.kubernetes.io/component"] == component &&
		(labels["app.kubernetes.io/name"] == "mica" || strings.HasPrefix(labels["helm.sh/chart"], "mica-"))
}

const componentPlugin, componentController = "kubelet-plugin", "controller"

// sets are Mica's DaemonSets with this component.
func (f *Facts) sets(component string) []*appsv1.DaemonSet {
	return slices.DeleteFunc(slices.Clone(f.DaemonSets), func(set *appsv1.DaemonSet) bool { return !ofChart(set, component) })
}

func pluginInstalled(f *Facts) []Finding {
	if len(f.sets(componentPlugin)) > 0 {
		return nil
	}
	return []Finding{{Object: "daemonsets", Message: "There is no DaemonSet of Mica's kubelet plugin in the cluster."}}
}

// selects reports whether the node's labels allow a pod of the DaemonSet.
func selects(set *appsv1.DaemonSet, node *corev1.Node) bool {
	match, err := nodeaffinity.GetRequiredNodeAffinity(&corev1.Pod{Spec: set.Spec.Template.Spec}).Match(node)
	return err == nil && match
}

func anySelects(sets []*appsv1.DaemonSet, node *corev1.Node) bool {
	return slices.ContainsFunc(sets, func(set *appsv1.DaemonSet) bool { return selects(set, node) })
}

// untolerated returns a taint that keeps the DaemonSet's pods from the node. It ignores taints that
// Kubernetes sets by the node's state.
func untolerated(set *appsv1.DaemonSet, node *corev1.Node) (corev1.Taint, bool) {
	return corehelpers.FindMatchingUntoleratedTaint(klog.Background(), node.Spec.Taints, set.Spec.Template.Spec.Tolerations, func(taint *corev1.Taint) bool {
		return taint.Effect != corev1.TaintEffectPreferNoSchedule && !strings.HasPrefix(taint.Key, "node.kubernetes.io/")
	}, true)
}

// hasGPUs reports whether the node's instance type has NVIDIA GPUs.
func hasGPUs(node *corev1.Node) bool {
	_, err := catalog.InstanceByType(node.Labels[corev1.LabelInstanceTypeStable])
	return err == nil || errors.Is(err, catalog.ErrNotPredicted)
}

func pluginSelectsNode(f *Facts) []Finding {
	sets, published := f.sets(componentPlugin), f.byNode()
	if len(sets) == 0 {
		return nil
	}
	var found []Finding
	for _, node := range f.Nodes {
		if hasGPUs(node) && len(published[node.Name]) == 0 && len(devicePluginOffers(node)) == 0 && !anySelects(sets, node) {
			found = append(found, onNode(node, "The plugin does not select the node, whose instance type %s has NVIDIA GPUs, and no other driver offers them.",
				node.Labels[corev1.LabelInstanceTypeStable]))
		}
	}
	return found
}

// pluginPods returns the plugin's pods per node.
func (f *Facts) pluginPods() map[string][]Pod {
	sets := map[string]bool{}
	for _, set := range f.sets(componentPlugin) {
		sets[set.Namespace+"/daemonset/"+set.Name] = true
	}
	pods := map[string][]Pod{}
	for _, pod := range f.Pods {
		if sets[pod.Namespace+"/"+pod.Owner] {
			pods[pod.Node] = append(pods[pod.Node], pod)
		}
	}
	return pods
}

func pluginRunning(f *Facts) []Finding {
	pods := f.pluginPods()
	var found []Finding
	for _, set := range f.sets(componentPlugin) {
		for _, node := range f.Nodes {
			if !selects(set, node) || !view.IsReady(node) || f.Now.Sub(node.CreationTimestamp.Time) < patience ||
				slices.ContainsFunc(pods[node.Name], func(pod Pod) bool { return pod.Ready }) {
				continue
			}
			finding := onNode(node, "No pod of the plugin is ready on the node, which %s/%s selects.", set.Namespace, set.Name)
			if taint, kept := untolerated(set, node); kept {
				finding.Message = fmt.Sprintf("The taint %s keeps the plugin from the node, which %s/%s selects.", taint.ToString(), set.Namespace, set.Name)
			}
			finding.names["NAMESPACE"] = set.Namespace
			found = append(found, finding)
		}
	}
	return found
}

func gpusPublished(f *Facts) []Finding {
	published, plugins, withheld := f.byNode(), f.pluginPods(), map[string]string{}
	for _, node := range f.GPUNodes {
		withheld[node.Name] = node.Withheld
	}
	var found []Finding
	for _, node := range f.Nodes {
		if len(published[node.Name]) > 0 || len(devicePluginOffers(node)) > 0 {
			continue // the check device-plugin covers the latter
		}
		ready := slices.IndexFunc(plugins[node.Name], func(pod Pod) bool { return pod.Ready && f.Now.Sub(pod.Since) >= patience })
		if ready < 0 {
			continue
		}
		finding := onNode(node, "The plugin is ready and the node publishes no device.")
		if reason := withheld[node.Name]; reason != "" {
			finding.Message = "The node offers none of its GPUs: " + reason
		}
		pod := plugins[node.Name][ready]
		finding.names["NAMESPACE"], finding.names["POD"] = pod.Namespace, pod.Name
		found = append(found, finding)
	}
	return found
}

func controllerRunning(f *Facts) []Finding {
	if slices.ContainsFunc(f.Deployments, func(d *appsv1.Deployment) bool { return ofChart(d, componentController) && d.Status.ReadyReplicas > 0 }) {
		return nil
	}
	var found []Finding
	if len(f.Groups) > 0 {
		found = append(found, Finding{
			Object:  "gpunodegroups",
			Message: fmt.Sprintf("No replica of the controller is ready, and none of the %d GPUNodeGroups grows.", len(f.Groups)),
		})
	}
	for _, node := range f.Nodes {
		if view.HasStartupTaint(node) {
			finding := onNode(node, "The node has the startup taint, and no replica of the controller is ready to remove it.")
			finding.Fix = "kubectl taint node NODE " + v1alpha1.TaintStartup + "-"
			found = append(found, finding)
		}
	}
	return found
}
