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
		Looks:    "containerRuntimeVersion in the status of nodes that publish devices. The configuration of containerd 1.7 is seen on the node only",
		Why:      "A runtime that ignores CDI starts containers without their GPUs, and reports no error.",
		Fix:      "On NODE, set enable_cdi = true under [plugins.\"io.containerd.grpc.v1.cri\"] in /etc/containerd/config.toml, then: systemctl restart containerd. Check: containerd config dump | grep enable_cdi",
		Source:   "containerd's documentation, docs/cri/config.md",
		needs:    []Kind{KindNodes, KindSlices},
		find:     containerRuntime,
	}, {
		Name:     "visible-devices",
		Severity: Warning,
		Looks:    "the GPU Operator's container toolkit, nodes of Amazon Linux with GPUs, and pods with NVIDIA_VISIBLE_DEVICES=all. The node's own configuration cannot be seen",
		Why:      "Where nvidia is the default runtime, a container with NVIDIA_VISIBLE_DEVICES=all has every GPU of its node, without a claim. Images of CUDA set it.",
		Fix:      "On NODE, before containerd starts: nvidia-ctk config --in-place --set accept-nvidia-visible-devices-envvar-when-unprivileged=false",
		Source:   "docs on security, GPUs without a claim",
		needs:    []Kind{KindNodes, KindSlices, KindDaemonSets, KindPods},
		find:     visibleDevices,
	}, {
		Name:     "node-clock",
		Severity: Warning,
		Looks:    "the leases of nodes: kubelet renews them by its own clock, and the API server notes when",
		Why:      "With a wrong clock, taints of sick GPUs evict pods too early or too late, tokens are refused, and ages are wrong.",
		Fix:      "On NODE: chronyc makestep",
		Source:   "k8s.io/api/coordination/v1, LeaseSpec.renewTime; KEP-5055, timeAdded",
		needs:    []Kind{KindNodes, KindSlices, KindLeases},
		find:     nodeClock,
	}, {
		Name:     "gpus-healthy",
		Severity: Warning,
		Looks:    "the condition " + v1alpha1.ConditionGPUsHealthy + " of nodes",
		Why:      "A sick GPU gets no further claims until it is repaired.",
		Fix:      "kubectl get node NODE --output jsonpath='{.metadata.annotations.mica\\.gpu/gpu-faults}'",
		Source:   "the controller, which writes the condition; docs on health",
		needs:    []Kind{KindNodes},
		find:     gpusHealthy,
	}, {
		Name:     "hold-expired",
		Severity: Warning,
		Looks:    "the annotations " + v1alpha1.AnnotationProtected + ", " + v1alpha1.AnnotationScaleIn + " and " + v1alpha1.AnnotationHeldUntil + " of nodes. The hourly CronJob has 80 minutes to take back what has expired",
		Why:      "Cluster Autoscaler never removes a protected node, and no new pod starts on a cordoned one: the node costs money in vain.",
		Fix:      "See why no controller renews it: kubectl --namespace NAMESPACE logs deployment/DEPLOYMENT --tail=50. Take back what has expired: kubectl --namespace NAMESPACE create job release-now --from=cronjob/CRONJOB",
		Source:   "deployments/helm/mica/templates/release.yaml; docs on scale-out",
		needs:    []Kind{KindNodes},
		find:     holdExpired,
	}}
}

func containerRuntime(f *Facts) []Finding {
	published := f.byNode()
	var found []Finding
	for i := range f.Nodes {
		node := &f.Nodes[i]
		reported := node.Status.NodeInfo.ContainerRuntimeVersion
		advice := containerd.Advice(reported)
		if advice == "" || len(published[node.Name]) == 0 {
			continue
		}
		finding := Finding{Object: "node/" + node.Name, names: map[string]string{"NODE": node.Name}}
		finding.Message = reported + " knows no CDI: containers start without their GPUs."
		finding.Fix = "Upgrade containerd of NODE to 2.0 or newer."
		if advice == containerd.SwitchOn {
			finding.Severity, finding.Fix = Warning, ""
			finding.Message = reported + " has CDI off unless its configuration switches it on, which is seen on the node only."
		}
		found = append(found, finding)
	}
	return found
}

const (
	envVisibleDevices = "NVIDIA_VISIBLE_DEVICES"
	// envAccept is the container toolkit's, and true unless it is set.
	envAccept = "ACCEPT_NVIDIA_VISIBLE_DEVICES_ENVVAR_WHEN_UNPRIVILEGED"
)

func visibleDevices(f *Facts) []Finding {
	var found []Finding
	closed := false
	for i := range f.DaemonSets {
		set := &f.DaemonSets[i]
		for _, container := range set.Spec.Template.Spec.Containers {
			if !strings.Contains(container.Image, "container-toolkit") {
				continue
			}
			if closed = valueOf(container.Env, envAccept) == "false"; closed {
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
	return append(append(found, amazonLinux(f)...), takers(f)...)
}

func valueOf(env []corev1.EnvVar, name string) string {
	for _, variable := range env {
		if variable.Name == name {
			return variable.Value
		}
	}
	return ""
}

// amazonLinux finds nodes whose image makes nvidia the default runtime. User data may have closed
// them, which cannot be seen.
func amazonLinux(f *Facts) []Finding {
	published := f.byNode()
	var found []Finding
	for i := range f.Nodes {
		node := &f.Nodes[i]
		if strings.HasPrefix(node.Status.NodeInfo.OSImage, "Amazon Linux 2023") && len(published[node.Name]) > 0 {
			found = append(found, Finding{
				Severity: Info,
				Object:   "node/" + node.Name,
				Message:  "The node's image makes nvidia the default runtime, and so every container can take all GPUs, unless user data has closed that.",
				names:    map[string]string{"NODE": node.Name},
			})
		}
	}
	return found
}

func takers(f *Facts) []Finding {
	published := f.byNode()
	var found []Finding
	for _, pod := range f.Pods {
		if pod.TakesAll == "" || len(published[pod.Node]) == 0 {
			continue
		}
		found = append(found, Finding{
			Object:  "pod/" + pod.Name,
			Message: fmt.Sprintf("Container %s in namespace %s asks for all GPUs of %s by %s.", pod.TakesAll, pod.Namespace, pod.Node, envVisibleDevices),
			names:   map[string]string{"NODE": pod.Node},
		})
	}
	return found
}

// maxSkew is how far a clock may be off: NTP keeps it within milliseconds, and the API server notes
// seconds.
const maxSkew = 10 * time.Second

func nodeClock(f *Facts) []Finding {
	published := f.byNode()
	var found []Finding
	for i := range f.Nodes {
		name := f.Nodes[i].Name
		skew, known := f.Skews[name]
		if !known || skew.Abs() <= maxSkew || len(published[name]) == 0 {
			continue
		}
		way := "ahead of"
		if skew < 0 {
			way = "behind"
		}
		found = append(found, Finding{
			Object:  "node/" + name,
			Message: fmt.Sprintf("The clock of the node is %s %s the API server's.", skew.Abs().Round(time.Second), way),
			names:   map[string]string{"NODE": name},
		})
	}
	return found
}

func gpusHealthy(f *Facts) []Finding {
	var found []Finding
	for i := range f.Nodes {
		node := &f.Nodes[i]
		for _, condition := range node.Status.Conditions {
			if condition.Type == v1alpha1.ConditionGPUsHealthy && condition.Status == corev1.ConditionFalse {
				found = append(found, Finding{
					Object:  "node/" + node.Name,
					Message: condition.Reason + ": " + condition.Message,
					names:   map[string]string{"NODE": node.Name},
				})
			}
		}
	}
	return found
}

// releasedWithin is how long the chart's CronJob may take for what has expired: an hour until it runs, ten minutes
// until its Job has to start, and ten more until that has to end.
const releasedWithin = 80 * time.Minute

func holdExpired(f *Facts) []Finding {
	names := f.releaseNames()
	var found []Finding
	for i := range f.Nodes {
		node := &f.Nodes[i]
		if !view.HoldExpired(node, f.Now.Add(-releasedWithin)) {
			continue
		}
		expired := "has no time in " + v1alpha1.AnnotationHeldUntil + " that can be read"
		if until := view.HeldUntil(node); !until.IsZero() {
			expired = "expired at " + until.UTC().Format(time.RFC3339)
		}
		found = append(found, Finding{
			Object:  "node/" + node.Name,
			Message: fmt.Sprintf("The controller's %s of the node %s. No controller has renewed it, and no run of the CronJob has taken it back.", held(node), expired),
			names:   names,
		})
	}
	return found
}

// held is what the controller holds a node by.
func held(node *corev1.Node) string {
	var by []string
	if _, protected := node.Annotations[v1alpha1.AnnotationProtected]; protected {
		by = append(by, "protection")
	}
	if view.MarkOf(node).Cordons() {
		by = append(by, "cordon")
	}
	return strings.Join(by, " and ")
}

// maxCronJobName is what Kubernetes allows, and to which the chart cuts the name.
const maxCronJobName = 52

// releaseNames are those of the controller and of the CronJob beside it, if the controller's Deployment is seen.
func (f *Facts) releaseNames() map[string]string {
	for i := range f.Deployments {
		if d := &f.Deployments[i]; ofChart(d, componentController) {
			job := d.Name + "-release"
			job = strings.TrimSuffix(job[:min(len(job), maxCronJobName)], "-")
			return map[string]string{"NAMESPACE": d.Namespace, "DEPLOYMENT": d.Name, "CRONJOB": job}
		}
	}
	return nil
}
