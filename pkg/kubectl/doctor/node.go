package doctor

import (
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/mica-gpu/mica/api/v1alpha1"
	"github.com/mica-gpu/mica/pkg/containerd"
	"github.com/mica-gpu/mica/pkg/scaleout/view"
)

func nodeChecks() []Check {
	return []Check{{
		Name:     "container-runtime",
		Severity: Error,
		Finds:    "A node's containerd ignores CDI, or version 1.7 may: containers then start without their GPUs and without an error.",
		Fix:      "On NODE, set enable_cdi = true under [plugins.\"io.containerd.grpc.v1.cri\"] in /etc/containerd/config.toml, then: systemctl restart containerd. Check: containerd config dump | grep enable_cdi",
		needs:    []Kind{KindNodes, KindSlices},
		find:     containerRuntime,
	}, {
		Name:     "visible-devices",
		Severity: Warning,
		Finds:    "A container with NVIDIA_VISIBLE_DEVICES=all, which CUDA images set, gets every GPU of a node whose default runtime is nvidia, without a claim.",
		Fix:      "On NODE, before containerd starts: nvidia-ctk config --in-place --set accept-nvidia-visible-devices-envvar-when-unprivileged=false",
		needs:    []Kind{KindNodes, KindSlices, KindDaemonSets, KindPods},
		find:     visibleDevices,
	}, {
		Name:     "hold-expired",
		Severity: Warning,
		Finds:    "A node kept its protection or cordon although it expired. Cluster Autoscaler does not remove it, or no pod starts there: it costs money in vain.",
		Fix:      "See why no controller renews it: kubectl --namespace NAMESPACE logs deployment/DEPLOYMENT --tail=50. Release what has expired: kubectl --namespace NAMESPACE create job release-now --from=cronjob/CRONJOB",
		needs:    []Kind{KindNodes},
		find:     holdExpired,
	}}
}

func containerRuntime(f *Facts) []Finding {
	published := f.byNode()
	var found []Finding
	for _, node := range f.Nodes {
		reported := node.Status.NodeInfo.ContainerRuntimeVersion
		advice := containerd.Advice(reported)
		if advice == "" || len(published[node.Name]) == 0 {
			continue
		}
		finding := onNode(node, "%s knows no CDI: containers start without their GPUs.", reported)
		finding.Fix = "Upgrade containerd of NODE to 2.0 or newer."
		if advice == containerd.SwitchOn {
			finding = onNode(node, "%s has CDI off unless its configuration switches it on, which only the node shows.", reported)
			finding.Severity = Warning
		}
		found = append(found, finding)
	}
	return found
}

const (
	envVisibleDevices = "NVIDIA_VISIBLE_DEVICES"
	// envAccept configures the container toolkit. Unset is true.
	envAccept = "ACCEPT_NVIDIA_VISIBLE_DEVICES_ENVVAR_WHEN_UNPRIVILEGED"
)

// visibleDevices trusts a container toolkit that refuses the variable, and otherwise finds the nodes and
// pods where it may work. Only the node shows its own configuration.
func visibleDevices(f *Facts) []Finding {
	var found []Finding
	closed := false
	for _, set := range f.DaemonSets {
		for _, container := range set.Spec.Template.Spec.Containers {
			if !strings.Contains(container.Image, "container-toolkit") {
				continue
			}
			if valueOf(container.Env, envAccept) == "false" {
				closed = true
				continue
			}
			found = append(found, Finding{
				Object:  "daemonset/" + set.Name,
				Message: fmt.Sprintf("The container toolkit in namespace %s lets every container take all GPUs of its node by %s.", set.Namespace, envVisibleDevices),
				Fix:     fmt.Sprintf("helm upgrade gpu-operator nvidia/gpu-operator --namespace NAMESPACE --reuse-values --set toolkit.env[0].name=%s --set-string toolkit.env[0].value=false", envAccept),
				names:   map[string]string{"NAMESPACE": set.Namespace},
			})
		}
	}
	if closed {
		return found
	}
	published := f.byNode()
	for _, node := range f.Nodes {
		if strings.HasPrefix(node.Status.NodeInfo.OSImage, "Amazon Linux 2023") && len(published[node.Name]) > 0 {
			finding := onNode(node, "The node's image makes nvidia the default runtime, so every container can take all GPUs unless user data prevents it.")
			finding.Severity = Info
			found = append(found, finding)
		}
	}
	for _, pod := range f.Pods {
		if pod.TakesAll != "" && len(published[pod.Node]) > 0 {
			found = append(found, Finding{
				Object:  "pod/" + pod.Name,
				Message: fmt.Sprintf("Container %s in namespace %s asks for all GPUs of %s by %s.", pod.TakesAll, pod.Namespace, pod.Node, envVisibleDevices),
				names:   map[string]string{"NODE": pod.Node},
			})
		}
	}
	return found
}

func valueOf(env []corev1.EnvVar, name string) string {
	for _, variable := range env {
		if variable.Name == name {
			return variable.Value
		}
	}
	return ""
}

// releasedWithin is the CronJob's time to release an expired hold: an hour until it runs, ten minutes until
// its Job starts, and ten until that ends (deployments/helm/mica/templates/release.yaml).
const releasedWithin = 80 * time.Minute

func holdExpired(f *Facts) []Finding {
	names := f.releaseNames()
	var found []Finding
	for _, node := range f.Nodes {
		if !view.HoldExpired(node, f.Now.Add(-releasedWithin)) {
			continue
		}
		expired := "has no valid time in " + v1alpha1.AnnotationHeldUntil
		if until := view.HeldUntil(node); !until.IsZero() {
			expired = "expired at " + until.UTC().Format(time.RFC3339)
		}
		finding := onNode(node, "The controller's %s of the node %s. No controller has renewed it, and the CronJob has not released it.", heldBy(node), expired)
		finding.names = names
		found = append(found, finding)
	}
	return found
}

// heldBy names what the controller put on the node.
func heldBy(node *corev1.Node) string {
	var by []string
	if _, protected := node.Annotations[v1alpha1.AnnotationProtected]; protected {
		by = append(by, "protection")
	}
	if view.MarkOf(node).Cordons() {
		by = append(by, "cordon")
	}
	return strings.Join(by, " and ")
}

// maxCronJobName is the API server's limit, to which the chart cuts the name.
const maxCronJobName = 52

// releaseNames are the names of the controller and its CronJob, if the controller's Deployment exists.
func (f *Facts) releaseNames() map[string]string {
	for _, d := range f.Deployments {
		if ofChart(d, componentController) {
			job := d.Name + "-release"
			job = strings.TrimSuffix(job[:min(len(job), maxCronJobName)], "-")
			return map[string]string{"NAMESPACE": d.Namespace, "DEPLOYMENT": d.Name, "CRONJOB": job}
		}
	}
	return nil
}
