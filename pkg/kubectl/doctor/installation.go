package doctor

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corehelpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/klog/v2"

	"github.com/mica-gpu/mica/api/v1alpha1"
	"github.com/mica-gpu/mica/pkg/catalog"
)

func installationChecks() []Check {
	return []Check{{
		Name:     "plugin-installed",
		Severity: Error,
		Looks:    "DaemonSets of Mica's chart",
		Why:      "Without the plugin no node publishes its GPUs.",
		Fix:      "helm install mica deployments/helm/mica --namespace mica --create-namespace",
		Source:   "deployments/helm/mica/templates/daemonset.yaml",
		needs:    []Kind{KindDaemonSets},
		find:     pluginInstalled,
	}, {
		Name:     "plugin-selects-node",
		Severity: Warning,
		Looks:    "nodes of an instance type with NVIDIA GPUs, and the node affinity of the plugin",
		Why:      "The plugin runs on nodes with a label of GPUs only. The image of the node or Node Feature Discovery sets it, or nobody.",
		Fix:      "kubectl label node NODE nvidia.com/gpu.present=true",
		Source:   "deployments/helm/mica/values.yaml, kubeletPlugin.affinity; awslabs/amazon-eks-ami#2607",
		needs:    []Kind{KindNodes, KindDaemonSets, KindSlices},
		find:     pluginSelectsNode,
	}, {
		Name:     "plugin-running",
		Severity: Error,
		Looks:    "nodes that the plugin selects, and its pods on them",
		Why:      "Claims that are allocated on such a node are not prepared, and a new node publishes nothing.",
		Fix:      "kubectl --namespace NAMESPACE describe pods --selector app.kubernetes.io/component=kubelet-plugin --field-selector spec.nodeName=NODE",
		Source:   "Kubernetes' documentation, DaemonSet, Taints and tolerations",
		needs:    []Kind{KindNodes, KindDaemonSets, KindPods},
		find:     pluginRunning,
	}, {
		Name:     "gpus-published",
		Severity: Warning,
		Looks:    "nodes with a plugin that is ready, their ResourceSlices and their GPUNode",
		Why:      "A node without slices offers no GPU: the plugin has found no driver, no GPU, or may not offer them.",
		Fix:      "kubectl --namespace NAMESPACE logs POD --tail=50",
		Source:   "the plugin's GPUNode; docs on troubleshooting, Idle",
		needs:    []Kind{KindNodes, KindDaemonSets, KindPods, KindSlices, KindGPUNodes},
		find:     gpusPublished,
	}, {
		Name:     "policy-applied",
		Severity: Warning,
		Looks:    "the condition Ready of GPUPolicies",
		Why:      "A node that cannot do what its GPUPolicy says goes on offering what it did before.",
		Fix:      "kubectl describe gpupolicy POLICY",
		Source:   "the controller, which writes the condition",
		needs:    []Kind{KindPolicies},
		find:     policyApplied,
	}, {
		Name:     "mps-installed",
		Severity: Warning,
		Looks:    "GPUPolicies that offer MPS, and the DaemonSet that runs MPS daemons",
		Why:      "Without MPS daemons nodes refuse such a policy, and go on offering what they did before.",
		Fix:      "helm upgrade mica deployments/helm/mica --namespace NAMESPACE --reuse-values --set mps.enabled=true",
		Source:   "deployments/helm/mica/templates/mps.yaml",
		needs:    []Kind{KindPolicies, KindDaemonSets},
		find:     mpsInstalled,
	}, {
		Name:     "controller-running",
		Severity: Error,
		Looks:    "the controller's Deployment, GPUNodeGroups, and nodes with the startup taint",
		Why:      "Without the controller no node group grows for claims, and the startup taint stays on new nodes for ever.",
		Fix:      "kubectl get pods --all-namespaces --selector app.kubernetes.io/component=controller,app.kubernetes.io/name=mica",
		Source:   "deployments/helm/mica/templates/controller.yaml",
		needs:    []Kind{KindNodes, KindDeployments, KindGroups},
		find:     controllerRunning,
	}}
}

// patience is how long something may be on its way.
const patience = 2 * time.Minute

// ofChart tells whether an object is of Mica's chart, whatever its names were set to.
func ofChart(object metav1.Object, component string) bool {
	labels := object.GetLabels()
	return labels["app.kubernetes.io/component"] == component &&
		(labels["app.kubernetes.io/name"] == "mica" || strings.HasPrefix(labels["helm.sh/chart"], "mica-"))
}

// sets are the DaemonSets of Mica with a component.
func (f *Facts) sets(component string) []*appsv1.DaemonSet {
	var sets []*appsv1.DaemonSet
	for i := range f.DaemonSets {
		if set := &f.DaemonSets[i]; ofChart(set, component) {
			sets = append(sets, set)
		}
	}
	return sets
}

const componentPlugin, componentMPS, componentController = "kubelet-plugin", "mps", "controller"

func pluginInstalled(f *Facts) []Finding {
	if len(f.sets(componentPlugin)) > 0 {
		return nil
	}
	return []Finding{{Object: "daemonsets", Message: "There is no DaemonSet of Mica's kubelet plugin in the cluster."}}
}

// selects tells whether a DaemonSet is to have a pod on the node, as far as labels decide.
func selects(set *appsv1.DaemonSet, node *corev1.Node) bool {
	match, err := nodeaffinity.GetRequiredNodeAffinity(&corev1.Pod{Spec: set.Spec.Template.Spec}).Match(node)
	return err == nil && match
}

// untolerated is a taint that keeps the pods of a DaemonSet from the node, but for those that
// come and go with the node's own state.
func untolerated(set *appsv1.DaemonSet, node *corev1.Node) (corev1.Taint, bool) {
	return corehelpers.FindMatchingUntoleratedTaint(klog.Background(), node.Spec.Taints, set.Spec.Template.Spec.Tolerations, func(taint *corev1.Taint) bool {
		return taint.Effect != corev1.TaintEffectPreferNoSchedule && !strings.HasPrefix(taint.Key, "node.kubernetes.io/")
	}, true)
}

// hasGPUs tells whether a node has NVIDIA GPUs, by its instance type.
func hasGPUs(node *corev1.Node) bool {
	_, err := catalog.InstanceByType(node.Labels[corev1.LabelInstanceTypeStable])
	return err == nil || errors.Is(err, catalog.ErrNotPredicted)
}

func pluginSelectsNode(f *Facts) []Finding {
	sets := f.sets(componentPlugin)
	if len(sets) == 0 {
		return nil
	}
	published := f.byNode()
	var found []Finding
	for i := range f.Nodes {
		node := &f.Nodes[i]
		if !hasGPUs(node) || len(published[node.Name]) > 0 || len(devicePluginHas(node)) > 0 || anySelects(sets, node) {
			continue
		}
		found = append(found, Finding{
			Object: "node/" + node.Name,
			Message: fmt.Sprintf("The plugin does not select the node, whose instance type %s has NVIDIA GPUs, and nobody else offers them.",
				node.Labels[corev1.LabelInstanceTypeStable]),
			names: map[string]string{"NODE": node.Name},
		})
	}
	return found
}

func anySelects(sets []*appsv1.DaemonSet, node *corev1.Node) bool {
	for _, set := range sets {
		if selects(set, node) {
			return true
		}
	}
	return false
}

// pluginPods are the plugin's, by node.
func (f *Facts) pluginPods() map[string][]*Pod {
	sets := map[string]bool{}
	for _, set := range f.sets(componentPlugin) {
		sets[set.Namespace+"/"+set.Name] = true
	}
	pods := map[string][]*Pod{}
	for i := range f.Pods {
		if pod := &f.Pods[i]; sets[pod.Namespace+"/"+pod.DaemonSet] {
			pods[pod.Node] = append(pods[pod.Node], pod)
		}
	}
	return pods
}

func pluginRunning(f *Facts) []Finding {
	pods := f.pluginPods()
	var found []Finding
	for _, set := range f.sets(componentPlugin) {
		for i := range f.Nodes {
			node := &f.Nodes[i]
			if !selects(set, node) || !nodeReady(node) || f.Now.Sub(node.CreationTimestamp.Time) < patience || anyReady(pods[node.Name]) {
				continue
			}
			message := "No pod of the plugin is ready on the node, which " + set.Namespace + "/" + set.Name + " selects."
			if taint, kept := untolerated(set, node); kept {
				message = fmt.Sprintf("The taint %s keeps the plugin from the node, which %s/%s selects.", taint.ToString(), set.Namespace, set.Name)
			}
			found = append(found, Finding{Object: "node/" + node.Name, Message: message, names: map[string]string{"NODE": node.Name, "NAMESPACE": set.Namespace}})
		}
	}
	return found
}

func nodeReady(node *corev1.Node) bool {
	for _, condition := range node.Status.Conditions {
		if condition.Type == corev1.NodeReady {
			return condition.Status == corev1.ConditionTrue
		}
	}
	return false
}

func anyReady(pods []*Pod) bool {
	for _, pod := range pods {
		if pod.Ready {
			return true
		}
	}
	return false
}

func gpusPublished(f *Facts) []Finding {
	published, plugins := f.byNode(), f.pluginPods()
	withheld := f.withheld()
	var found []Finding
	for i := range f.Nodes {
		node := &f.Nodes[i]
		// What a device plugin has is another check's.
		if len(published[node.Name]) > 0 || len(devicePluginHas(node)) > 0 {
			continue
		}
		for _, pod := range plugins[node.Name] {
			if !pod.Ready || f.Now.Sub(pod.Since) < patience {
				continue
			}
			message := "The plugin is ready and the node publishes no device."
			if reason := withheld[node.Name]; reason != "" {
				message = "The node offers none of its GPUs: " + reason
			}
			found = append(found, Finding{Object: "node/" + node.Name, Message: message, names: map[string]string{"NAMESPACE": pod.Namespace, "POD": pod.Name}})
			break
		}
	}
	return found
}

// withheld is why nodes offer none of their GPUs, as their plugins say.
func (f *Facts) withheld() map[string]string {
	withheld := map[string]string{}
	for _, node := range f.GPUNodes {
		withheld[node.Name] = node.Withheld
	}
	return withheld
}

func policyApplied(f *Facts) []Finding {
	var found []Finding
	for _, policy := range f.Policies {
		condition := meta.FindStatusCondition(policy.Status.Conditions, v1alpha1.ConditionReady)
		if condition != nil && condition.Status == metav1.ConditionFalse {
			found = append(found, told("gpupolicy/"+policy.Name, condition, "POLICY", policy.Name))
		}
	}
	return found
}

func mpsInstalled(f *Facts) []Finding {
	if len(f.sets(componentMPS)) > 0 {
		return nil
	}
	namespace := ""
	for _, set := range f.sets(componentPlugin) {
		namespace = set.Namespace
	}
	var found []Finding
	for i := range f.Policies {
		policy := &f.Policies[i]
		if offersMPS(policy) {
			found = append(found, Finding{
				Object:  "gpupolicy/" + policy.Name,
				Message: "The policy offers GPUs through MPS, and no DaemonSet runs MPS daemons.",
				names:   map[string]string{"NAMESPACE": namespace},
			})
		}
	}
	return found
}

func offersMPS(policy *v1alpha1.GPUPolicy) bool {
	return sharesByMPS(policy.Spec.Shapes) ||
		slices.ContainsFunc(policy.Spec.Overrides, func(o v1alpha1.Override) bool { return sharesByMPS(o.Shapes) })
}

func sharesByMPS(shapes v1alpha1.Shapes) bool {
	return shapes.MPS != nil || shapes.MIG != nil &&
		slices.ContainsFunc(shapes.MIG.Shared, func(p v1alpha1.SharedProfile) bool { return p.MPS != nil })
}

func controllerRunning(f *Facts) []Finding {
	for i := range f.Deployments {
		if d := &f.Deployments[i]; ofChart(d, componentController) && d.Status.ReadyReplicas > 0 {
			return nil
		}
	}
	var found []Finding
	if len(f.Groups) > 0 {
		found = append(found, Finding{
			Object:  "gpunodegroups",
			Message: fmt.Sprintf("No replica of the controller is ready, and none of the %d GPUNodeGroups grows.", len(f.Groups)),
		})
	}
	for i := range f.Nodes {
		if node := &f.Nodes[i]; hasStartupTaint(node) {
			found = append(found, Finding{
				Object:  "node/" + node.Name,
				Message: "The node has the startup taint, and no replica of the controller is ready to remove it.",
				Fix:     "kubectl taint node NODE " + v1alpha1.TaintStartup + "-",
				names:   map[string]string{"NODE": node.Name},
			})
		}
	}
	return found
}

func hasStartupTaint(node *corev1.Node) bool {
	for _, taint := range node.Spec.Taints {
		if taint.Key == v1alpha1.TaintStartup {
			return true
		}
	}
	return false
}
