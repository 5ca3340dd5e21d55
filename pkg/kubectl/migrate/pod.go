package migrate

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// labelsOfPlugin are labels that nodes have from the device plugin, its config manager or the GPU
// Operator's MIG manager: without them they go, or say nothing any more.
var labelsOfPlugin = []string{
	labelConfig, "nvidia.com/gpu.replicas", "nvidia.com/gpu.sharing-strategy", "nvidia.com/mig.strategy",
	"nvidia.com/mig.config", "nvidia.com/mig.config.state", "nvidia.com/mps.capable", "nvidia.com/gpu.deploy.device-plugin",
}

// visibleDevices has NVIDIA's runtime give a container GPUs.
const visibleDevices = "NVIDIA_VISIBLE_DEVICES"

// tellPod says what of a pod, besides its limits, has to do with the device plugin.
func (m *migration) tellPod(d document, pod corev1.PodSpec) {
	for _, s := range nodeLabels(pod) {
		switch {
		case slices.Contains(labelsOfPlugin, s.key):
			m.find(d, Look, s.field, "the label "+s.key+" comes with the device plugin, and new nodes without it do not get it",
				"choose nodes by another label, or GPUs by a selector of the claim")
		case s.key == "nvidia.com/gpu.product" && slices.ContainsFunc(s.values, shared):
			m.find(d, Look, s.field, "GPU Feature Discovery writes -SHARED and -MIG- after the product because of the device plugin's config, and without the config it does not",
				"select the product in the claim: device.attributes['gpu.nvidia.com'].productName")
		case strings.HasPrefix(s.key, "nvidia.com/"):
			m.find(d, Look, s.field, "the label "+s.key+" is there as long as GPU Feature Discovery runs", "keep it, or select GPUs in the claim"+selector(s))
		}
	}
	if runtime := pod.RuntimeClassName; runtime != nil && strings.HasPrefix(*runtime, "nvidia") {
		m.find(d, Look, "runtimeClassName", "claims need no runtime of NVIDIA's, and with it an image that sets NVIDIA_VISIBLE_DEVICES=all gets every GPU of the node",
			"remove runtimeClassName")
	}
	for _, c := range slices.Concat(pod.InitContainers, pod.Containers) {
		m.tellEnvironment(d, c)
	}
}

// tellUncounted tells of GPUs that a pod without limits takes past device plugin and claims alike.
func (m *migration) tellUncounted(d document, pod corev1.PodSpec) {
	for _, c := range slices.Concat(pod.InitContainers, pod.Containers) {
		for _, e := range c.Env {
			if e.Name == visibleDevices && !slices.Contains([]string{"", "void", "none"}, e.Value) {
				m.find(d, Look, fmt.Sprintf("env %s of %s", e.Name, c.Name), "without a limit or claim it takes GPUs that nobody counts, those of claims too, if the node's runtime is NVIDIA's",
					"give the pod a claim, with adminAccess if it only looks at GPUs, and remove the variable")
			}
		}
	}
}

func (m *migration) tellEnvironment(d document, c corev1.Container) {
	for _, e := range c.Env {
		field := fmt.Sprintf("env %s of %s", e.Name, c.Name)
		switch {
		case e.Name == visibleDevices && e.Value != "void" && e.Value != "none":
			m.find(d, Look, field, "with a runtime of NVIDIA's it gives the container GPUs that are not the claim's", "remove the variable")
		case e.Name == "CUDA_VISIBLE_DEVICES":
			m.find(d, Look, field, "it hides GPUs of the claim from CUDA", "remove the variable: a claim has the GPUs that it shall use")
		case strings.HasPrefix(e.Name, "CUDA_MPS_"):
			m.find(d, Look, field, "with a share under MPS, Mica sets these variables from the claim", "remove the variable, and ask for memory and cores in the claim")
		}
	}
}

// selector writes a node label as a selector for devices, if there is one that says the same. GPU Feature
// Discovery writes - for spaces.
func selector(l nodeLabel) string {
	if l.key != "nvidia.com/gpu.product" || len(l.values) != 1 {
		return ""
	}
	return ": device.attributes['gpu.nvidia.com'].productName.matches('^" + strings.ReplaceAll(regexp.QuoteMeta(l.values[0]), "-", ".") + "$')"
}

func shared(product string) bool {
	return strings.HasSuffix(product, "-SHARED") || strings.Contains(product, "-MIG-")
}

// nodeLabel is one by which a pod chooses nodes.
type nodeLabel struct {
	field, key string
	values     []string
}

func nodeLabels(pod corev1.PodSpec) []nodeLabel {
	var labels []nodeLabel
	for key, value := range pod.NodeSelector {
		labels = append(labels, nodeLabel{"nodeSelector", key, []string{value}})
	}
	slices.SortFunc(labels, func(a, b nodeLabel) int { return strings.Compare(a.key, b.key) })
	if pod.Affinity == nil || pod.Affinity.NodeAffinity == nil {
		return labels
	}
	var terms []corev1.NodeSelectorTerm
	if required := pod.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution; required != nil {
		terms = required.NodeSelectorTerms
	}
	for _, preferred := range pod.Affinity.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution {
		terms = append(slices.Clip(terms), preferred.Preference)
	}
	for _, term := range terms {
		for _, e := range term.MatchExpressions {
			labels = append(labels, nodeLabel{"affinity.nodeAffinity", e.Key, e.Values})
		}
	}
	return labels
}
