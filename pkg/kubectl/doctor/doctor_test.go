package doctor

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/mica-gpu/mica/api/v1alpha1"
)

func TestAHealthyClusterIsFoundHealthy(t *testing.T) {
	report := Examine(healthy())
	if len(report.Findings) > 0 || len(report.Unseen) > 0 || len(report.Passed) != len(Checks()) {
		t.Errorf("got %+v", report)
	}
}

// trap is a healthy cluster with one mistake.
type trap struct {
	set func(*Facts)
	// check is the only one that finds it.
	check    string
	severity Severity
	object   string
	// says is a part of the message, and fix a part of the fix.
	says, fix string
}

// traps has at least one mistake per check.
var traps = map[string]trap{
	"an old cluster": {func(f *Facts) { f.Served["resource.k8s.io/v1 resourceslices"] = false },
		"resource-api", Error, "apiserver", "v1.37.2 does not serve resource.k8s.io/v1", "1.34 or newer"},
	"CRDs of an old chart": {func(f *Facts) { f.Served["mica.gpu/v1alpha1 gpubudgets"] = false },
		"mica-kinds", Error, "apiserver", "does not know gpubudgets", "kubectl apply --server-side --filename deployments/helm/mica/crds"},
	"CRDs that lack a field": {func(f *Facts) { f.Lacking = []string{"GPUNodeGroup.spec.scaleInAfter"} },
		"mica-kinds", Error, "apiserver", "drops GPUNodeGroup.spec.scaleInAfter", "kubectl apply --server-side --filename deployments/helm/mica/crds"},
	"a gate that is off": {func(f *Facts) { f.Gates = map[string]bool{"DRAConsumableCapacity": false} },
		"feature-gates", Warning, "apiserver", "DRAConsumableCapacity is off: shares", "--feature-gates=DRAConsumableCapacity=true"},
	"a gate of little use": {func(f *Facts) { f.Gates = map[string]bool{"DRADeviceTaintRules": false} },
		"feature-gates", Info, "apiserver", "DRADeviceTaintRules is off", "kube-scheduler"},
	"gates of a version": {func(f *Facts) { f.Version = "v1.36.3" },
		"feature-gates", Info, "apiserver", "DRADeviceTaintRules is off by default in Kubernetes v1.36.3", "DRADeviceTaintRules=true"},
	"an eviction that Kubernetes forgets": {func(f *Facts) {
		f.Version = "v1.37.1-eks-113cf36"
		f.TaintRules[0].Spec.Taint.Effect = resourceapi.DeviceTaintEffectNoExecute
	}, "kubernetes-release", Warning, "apiserver", "the control plane runs v1.37.1-eks-113cf36: the effect NoExecute does not evict", "Upgrade the control plane to 1.37.2 or newer."},
	"no plugin": {func(f *Facts) { f.DaemonSets = nil },
		"plugin-installed", Error, "daemonsets", "no DaemonSet", "helm install mica"},
	"a node without label": {func(f *Facts) {
		node := gpuNode("bare")
		delete(node.Labels, "nvidia.com/gpu.present")
		f.Nodes = append(f.Nodes, node)
	},
		"plugin-selects-node", Warning, "node/bare", "p5.48xlarge", "kubectl label node bare nvidia.com/gpu.present=true"},
	"a plugin that crashes": {func(f *Facts) { f.Pods = nil; f.AddPod(pluginPod("gpu-1", false)) },
		"plugin-running", Error, "node/gpu-1", "mica/mica-kubelet-plugin", "kubectl --namespace mica describe pods --selector app.kubernetes.io/component=kubelet-plugin --field-selector spec.nodeName=gpu-1"},
	"a taint that the plugin does not tolerate": {func(f *Facts) {
		f.Pods = nil
		f.Nodes[0].Spec.Taints = append(f.Nodes[0].Spec.Taints, corev1.Taint{Key: "team", Value: "a", Effect: corev1.TaintEffectNoSchedule})
	}, "plugin-running", Error, "node/gpu-1", "team=a:NoSchedule keeps the plugin", "mica"},
	"no driver": {func(f *Facts) { f.Slices = nil },
		"gpus-published", Warning, "node/gpu-1", "publishes no device", "kubectl --namespace mica logs plugin-gpu-1"},
	"a node that is withheld": {func(f *Facts) { f.Slices = nil; f.GPUNodes[0].Withheld = "no GPU can be read" },
		"gpus-published", Warning, "node/gpu-1", "no GPU can be read", "logs plugin-gpu-1"},
	"no controller": {func(f *Facts) { f.Deployments = nil },
		"controller-running", Error, "gpunodegroups", "none of the 1 GPUNodeGroups grows", "kubectl get pods"},
	"a startup taint after an uninstallation": {func(f *Facts) {
		f.Deployments, f.Groups = nil, nil
		f.Nodes[0].Spec.Taints = []corev1.Taint{{Key: v1alpha1.TaintStartup, Value: "starting", Effect: corev1.TaintEffectNoSchedule}}
	}, "controller-running", Error, "node/gpu-1", "no replica of the controller is ready to remove it", "kubectl taint node gpu-1 startup-taint.cluster-autoscaler.kubernetes.io/mica-"},
	"a slice is missing": {func(f *Facts) { f.Slices[0].Spec.Pool.ResourceSliceCount = 2 },
		"pool-complete", Error, "node/gpu-1", "1 of 2 slices of its generation 1", "spec.nodeName=gpu-1"},
	"slices of a node that is gone": {func(f *Facts) { f.Slices = append(f.Slices, slice("gone-a", "gone", 1, 1)) },
		"slices-left-behind", Warning, "resourceslice/gone-a", "node gone, which does not exist", "kubectl delete resourceslice gone-a"},
	"a slice of an old generation": {func(f *Facts) { f.Slices = append(f.Slices, slice("old", "gpu-1", 0, 1)) },
		"slices-left-behind", Warning, "resourceslice/old", "older than generation 1", "kubectl delete resourceslice old"},
	"partitions by nvidia-smi": {func(f *Facts) {
		s := slice("gpu-1-mig", "gpu-1", 2, 1)
		s.Spec.Devices[0].Attributes["type"] = resourceapi.DeviceAttribute{StringValue: ptr.To("mig")}
		f.Slices = nil
		f.Slices = append(f.Slices, s)
	}, "foreign-partitions", Info, "node/gpu-1", "Mica did not create 1 MIG partition, such as gpu-0", "on gpu-1: nvidia-smi mig"},
	"an old driver": {func(f *Facts) {
		s := slice("gpu-1-a", "gpu-1", 2, 1)
		s.Spec.Devices[0].Attributes["driverVersion"] = resourceapi.DeviceAttribute{VersionValue: ptr.To("550.90.7")}
		f.Slices = nil
		f.Slices = append(f.Slices, s)
	}, "driver-version", Warning, "node/gpu-1", "550.90.7", "driver of gpu-1 to R565"},
	"a device plugin on a node of Mica": {func(f *Facts) { pluginHas(f, "nvidia.com/gpu") },
		"device-plugin", Error, "node/gpu-1", "nvidia.com/gpu: 8", "kubectl drain gpu-1"},
	"a device plugin that keeps Mica away": {func(f *Facts) { pluginHas(f, "nvidia.com/mig-1g.10gb"); f.Slices = nil },
		"device-plugin", Warning, "node/gpu-1", "publishes none", "kubectl uncordon gpu-1"},
	"NVIDIA's driver on a node of Mica": {func(f *Facts) {
		f.DaemonSets = append(f.DaemonSets, daemonSet("nvidia", "dra", corev1.Container{Name: "gpus", Image: "registry.k8s.io/dra-driver-nvidia/dra-driver-nvidia-gpu:v0.5"}, map[string]string{"app.kubernetes.io/instance": "theirs"}))
	}, "two-drivers", Error, "node/gpu-1", "nvidia/dra", "helm upgrade theirs dra-driver-nvidia-gpu --repo REPOSITORY --namespace nvidia"},
	"a driver that waits for the taint to go": {func(f *Facts) {
		f.DaemonSets = append(f.DaemonSets, daemonSet("gpu-operator", "nvidia-driver-daemonset", corev1.Container{Image: "nvcr.io/nvidia/driver:580.95.05-ubuntu24.04"}, nil))
	}, "startup-taint-tolerated", Warning, "daemonset/nvidia-driver-daemonset", "does not tolerate the taint startup-taint.cluster-autoscaler.kubernetes.io/mica", "to the values daemonsets.tolerations of the DaemonSet's chart"},
	"labels that wait for the taint to go": {func(f *Facts) {
		driver := daemonSet("gpu-operator", "nvidia-driver-daemonset", corev1.Container{Image: "nvcr.io/nvidia/driver:580.95.05-ubuntu24.04"}, nil)
		driver.Spec.Template.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
		f.DaemonSets = append(f.DaemonSets, driver, daemonSet("nfd", "nfd-worker", corev1.Container{Image: "registry.k8s.io/nfd/node-feature-discovery:v0.18"}, nil))
	}, "startup-taint-tolerated", Warning, "daemonset/nfd-worker", "namespace nfd", "controller.startupTaint.tolerateIn={nfd}"},
	"a DaemonSet that takes GPUs": {func(f *Facts) {
		f.DaemonClaims = []ClaimRequest{{"monitoring", "burn-in", "gpu", "gpu"}}
	}, "daemonset-claims", Warning, "daemonset/burn-in", "By request gpu of resourceclaimtemplate/gpu in namespace monitoring", "kubectl label namespace monitoring"},
	"a share of whole GPUs": {func(f *Facts) { asksForPart(f, "shares", "2") },
		"consumable-shares", Error, "resourceclaimtemplate/part", "Request any/gpu in namespace research asks for 2 shares of a whole GPU, which no node has", "or use the class timeslice.nvidia.com in resourceclaimtemplate/part"},
	"a part of the memory of whole GPUs": {func(f *Facts) { asksForPart(f, "memory", "40Gi") },
		"consumable-shares", Warning, "resourceclaimtemplate/part", "asks for 40Gi of memory, and each claim gets an entire GPU", "Set whole.consumableShares"},
	"a GPUCluster": {func(f *Facts) { f.Nodes[0].Labels[labelMode] = "dra" },
		"two-drivers", Error, "node/gpu-1", "GPUCluster", "--namespace mica"},
	"containerd 1.7": {func(f *Facts) { f.Nodes[0].Status.NodeInfo.ContainerRuntimeVersion = "containerd://1.7.27" },
		"container-runtime", Warning, "node/gpu-1", "which only the node shows", "On gpu-1, set enable_cdi = true"},
	"containerd 1.6": {func(f *Facts) { f.Nodes[0].Status.NodeInfo.ContainerRuntimeVersion = "containerd://1.6.1" },
		"container-runtime", Error, "node/gpu-1", "knows no CDI", "Upgrade containerd of gpu-1"},
	"a toolkit that is open": {func(f *Facts) {
		f.DaemonSets = append(f.DaemonSets, daemonSet("gpu-operator", "toolkit", corev1.Container{Image: "nvcr.io/nvidia/k8s/container-toolkit:v1"}, nil))
	}, "visible-devices", Warning, "daemonset/toolkit", "gpu-operator", "helm upgrade gpu-operator nvidia/gpu-operator --namespace gpu-operator --reuse-values --set toolkit.env[0].name=ACCEPT_NVIDIA_VISIBLE_DEVICES_ENVVAR_WHEN_UNPRIVILEGED"},
	"Amazon Linux": {func(f *Facts) { f.Nodes[0].Status.NodeInfo.OSImage = "Amazon Linux 2023.9" },
		"visible-devices", Info, "node/gpu-1", "unless user data prevents", "On gpu-1"},
	"a pod that takes all": {func(f *Facts) {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "greedy"}}
		pod.Spec.NodeName = "gpu-1"
		pod.Spec.Containers = []corev1.Container{{Name: "cuda", Env: []corev1.EnvVar{{Name: envVisibleDevices, Value: "all"}}}}
		f.AddPod(pod)
	}, "visible-devices", Warning, "pod/greedy", "Container cuda in namespace a", "nvidia-ctk"},
	"an accelerator label": {func(f *Facts) { f.Nodes[0].Labels[labelAccelerator] = "nvidia-h100" },
		"accelerator-label", Error, "node/gpu-1", "k8s.amazonaws.com/accelerator=nvidia-h100", "--cluster-name prod --nodegroup-name h100 --labels removeLabels=k8s.amazonaws.com/accelerator && kubectl label node gpu-1 "},
	"an accelerator label of new nodes": {func(f *Facts) { f.Groups[0].Spec.Template.Labels = map[string]string{labelAccelerator: "x"} },
		"accelerator-label", Error, "gpunodegroup/h100", "spec.template.labels", "kubectl patch gpunodegroup h100"},
	"a taint without value": {func(f *Facts) { f.Nodes[0].Spec.Taints[0].Value = "" },
		"taint-value", Warning, "node/gpu-1", "nvidia.com/gpu:NoSchedule", "addOrUpdateTaints=[{key=nvidia.com/gpu,value=true,effect=NO_SCHEDULE}]"},
	"a startup taint without value": {func(f *Facts) {
		f.Nodes[0].Spec.Taints = []corev1.Taint{{Key: v1alpha1.TaintStartup, Effect: corev1.TaintEffectNoSchedule}, {Key: "node.kubernetes.io/not-ready", Effect: corev1.TaintEffectNoSchedule}}
	}, "taint-value", Error, "node/gpu-1", v1alpha1.TaintStartup, "--cluster-name prod"},
	"no startup taint": {func(f *Facts) {
		node := gpuNode("young")
		node.CreationTimestamp = metav1.NewTime(now.Add(-time.Minute))
		f.Nodes = append(f.Nodes, node)
	}, "startup-taint", Warning, "node/young", "GPUNodeGroup h100", "--nodegroup-name h100 --taints 'addOrUpdateTaints=[{key=startup-taint.cluster-autoscaler.kubernetes.io/mica,value=starting"},
	"different machines": {func(f *Facts) {
		node := gpuNode("gpu-2")
		node.Labels[corev1.LabelInstanceTypeStable] = "p4d.24xlarge"
		addNode(f, node)
	},
		"mixed-group", Warning, "gpunodegroup/h100", "p4d.24xlarge, p5.48xlarge", "--selector eks.amazonaws.com/nodegroup=h100"},
	"different zones": {func(f *Facts) {
		node := gpuNode("gpu-2")
		node.Labels[corev1.LabelTopologyZone] = "eu-1b"
		addNode(f, node)
	},
		"mixed-group", Info, "gpunodegroup/h100", "eu-1a, eu-1b", "one zone"},
	"a protection that has expired": {func(f *Facts) {
		hold(f, v1alpha1.AnnotationProtected, "use", now.Add(-releasedWithin-time.Second))
	},
		"hold-expired", Warning, "node/gpu-1", "protection of the node expired at 2026-10-01T10:39:59Z", "kubectl --namespace mica create job release-now --from=cronjob/mica-controller-release"},
	"a cordon that has expired": {func(f *Facts) {
		hold(f, v1alpha1.AnnotationScaleIn, "cordoned 2026-10-01T08:00:00Z", now.Add(-2*time.Hour))
	}, "hold-expired", Warning, "node/gpu-1", "cordon of the node expired at 2026-10-01T10:00:00Z", "kubectl --namespace mica logs deployment/mica-controller"},
	"a protection and a cordon that have expired": {func(f *Facts) {
		hold(f, v1alpha1.AnnotationProtected, "use", now.Add(-2*time.Hour))
		hold(f, v1alpha1.AnnotationScaleIn, "ending 2026-10-01T08:00:00Z", now.Add(-2*time.Hour))
	}, "hold-expired", Warning, "node/gpu-1", "protection and cordon of the node", "cronjob/mica-controller-release"},
	"a protection without a time, and no controller": {func(f *Facts) {
		hold(f, v1alpha1.AnnotationProtected, "use", now)
		delete(f.Nodes[0].Annotations, v1alpha1.AnnotationHeldUntil)
		f.Groups, f.Deployments = nil, nil
	}, "hold-expired", Warning, "node/gpu-1", "has no valid time in mica.gpu/held-until", "cronjob/CRONJOB"},
	"a policy that a node refuses": {func(f *Facts) {
		f.Policies[0].Status.Conditions = conditions(v1alpha1.ConditionReady, "False", v1alpha1.ReasonRefused)
	}, "conditions", Warning, "gpupolicy/mica", "Refused: As the controller says.", "kubectl describe gpupolicy/mica"},
	"a group in backoff": {func(f *Facts) {
		f.Groups[0].Status.Conditions = conditions(v1alpha1.ConditionInBackoff, "True", v1alpha1.ReasonUnknownTemplate)
	}, "conditions", Warning, "gpunodegroup/h100", "UnknownTemplate", "kubectl describe gpunodegroup/h100"},
	"a node that keeps its startup taint": {func(f *Facts) {
		f.Groups[0].Status.Conditions = conditions(v1alpha1.ConditionNodesStuck, "True", v1alpha1.ReasonDaemonSetsKeptOff)
	}, "conditions", Error, "gpunodegroup/h100", "DaemonSetsKeptOff", "kubectl describe gpunodegroup/h100"},
	"headroom that no group holds": {func(f *Facts) {
		f.Headrooms[0].Status.Conditions = conditions(v1alpha1.ConditionReady, "False", v1alpha1.ReasonCannotBeKept)
	}, "conditions", Warning, "gpuheadroom/warm", "CannotBeKept", "kubectl describe gpuheadroom/warm"},
	"a sick GPU": {func(f *Facts) {
		f.Nodes[0].Status.Conditions = append(f.Nodes[0].Status.Conditions, corev1.NodeCondition{Type: v1alpha1.ConditionGPUsHealthy, Status: corev1.ConditionFalse, Reason: "XID", Message: "gpu-0 is sick"})
	}, "conditions", Warning, "node/gpu-1", "XID: gpu-0 is sick", "kubectl describe node/gpu-1"},
	"a pod that asks for a resource without a DeviceClass": {func(f *Facts) { asks(f, "train-0", "", "nvidia.com/mig-1g.10gb") },
		"device-plugin-resources", Error, "replicaset/train", "1 pod in namespace research asks for nvidia.com/mig-1g.10gb, which neither", "Write a claim"},
	"pods that a device plugin serves": {func(f *Facts) {
		asks(f, "train-0", "other", "nvidia.com/mig-1g.10gb")
		asks(f, "train-1", "other", "nvidia.com/mig-1g.10gb")
	}, "device-plugin-resources", Info, "replicaset/train", "2 pods in namespace research", "Write a claim"},
	"a quota without claims": {func(f *Facts) { quota(f, "requests.nvidia.com/gpu") },
		"device-plugin-quota", Warning, "resourcequota/gpus", "limits requests.nvidia.com/gpu, and no claims", "kubectl --namespace research patch resourcequota gpus"},
	"a rule for all devices": {func(f *Facts) {
		f.TaintRules = append(f.TaintRules, taintRule("all", &resourceapi.DeviceTaintSelector{}, resourceapi.DeviceTaintEffectNoExecute))
	},
		"taint-rule-selector", Error, "devicetaintrule/all", "example.com/sick:NoExecute on every device", "kubectl delete devicetaintrule all"},
	"a dry run for all devices": {func(f *Facts) {
		f.TaintRules = append(f.TaintRules, taintRule("dry", &resourceapi.DeviceTaintSelector{}, resourceapi.DeviceTaintEffectNone))
	}, "taint-rule-selector", Info, "devicetaintrule/dry", "on every device", "dry"},
}

func pluginHas(f *Facts, name corev1.ResourceName) {
	f.Nodes[0].Status.Capacity = corev1.ResourceList{name: resource.MustParse("8")}
}

// hold annotates the only node as the controller does.
func hold(f *Facts, annotation, value string, until time.Time) {
	metav1.SetMetaDataAnnotation(&f.Nodes[0].ObjectMeta, annotation, value)
	metav1.SetMetaDataAnnotation(&f.Nodes[0].ObjectMeta, v1alpha1.AnnotationHeldUntil, until.Format(time.RFC3339))
}

// asks adds a pod with a limit. A pod without a node is pending.
func asks(f *Facts, name, node string, resourceName corev1.ResourceName) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "research", Name: name, OwnerReferences: []metav1.OwnerReference{{Kind: "ReplicaSet", Name: "train"}}}}
	pod.Spec.NodeName = node
	pod.Spec.Containers = []corev1.Container{{Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{resourceName: resource.MustParse("1")}}}}
	f.AddPod(pod)
}

func quota(f *Facts, names ...corev1.ResourceName) {
	q := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: "research", Name: "gpus"}, Spec: corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{}}}
	for _, name := range names {
		q.Spec.Hard[name] = resource.MustParse("8")
	}
	f.Quotas = append(f.Quotas, q)
}

// asksForPart adds a template that requests some of a capacity of a whole GPU with 80Gi.
func asksForPart(f *Facts, capacity resourceapi.QualifiedName, amount string) {
	f.Slices[0].Spec.Devices[0].Capacity = map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{"memory": {Value: resource.MustParse("80Gi")}}
	template := &resourceapi.ResourceClaimTemplate{ObjectMeta: metav1.ObjectMeta{Namespace: "research", Name: "part"}}
	template.Spec.Spec.Devices.Requests = []resourceapi.DeviceRequest{
		{Name: "plain", Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: "gpu.nvidia.com"}},
		{Name: "any", FirstAvailable: []resourceapi.DeviceSubRequest{{Name: "gpu", DeviceClassName: "gpu.nvidia.com", Capacity: &resourceapi.CapacityRequirements{
			Requests: map[resourceapi.QualifiedName]resource.Quantity{capacity: resource.MustParse(amount)},
		}}}},
	}
	f.AddTemplate(template)
}

func addNode(f *Facts, node *corev1.Node) {
	f.Nodes = append(f.Nodes, node)
	f.Slices = append(f.Slices, slice(node.Name, node.Name, 1, 1))
	f.AddPod(pluginPod(node.Name, true))
}

func TestEachTrapIsFound(t *testing.T) {
	provoked := map[string]bool{}
	for name, trap := range traps {
		provoked[trap.check] = true
		t.Run(name, func(t *testing.T) {
			facts := healthy()
			trap.set(facts)
			report := Examine(facts)
			if len(report.Findings) != 1 {
				t.Fatalf("found %d: %+v", len(report.Findings), report.Findings)
			}
			f := report.Findings[0]
			if f.Check != trap.check || f.Severity != trap.severity || f.Object != trap.object || !strings.Contains(f.Message, trap.says) || !strings.Contains(f.Fix, trap.fix) {
				t.Errorf("got %+v", f)
			}
		})
	}
	for _, check := range Checks() {
		if !provoked[check.Name] {
			t.Errorf("no trap is for %s", check.Name)
		}
	}
}

func TestChecksAreDescribed(t *testing.T) {
	seen := map[string]bool{}
	for _, c := range Checks() {
		if seen[c.Name] || c.Finds == "" || c.Fix == "" || len(c.needs) == 0 || c.find == nil {
			t.Errorf("%+v is not whole, or there twice", c)
		}
		seen[c.Name] = true
	}
}

// The chart cuts long names, and so does the fix.
func TestNameOfTheCronJobIsCut(t *testing.T) {
	for name, want := range map[string]string{
		strings.Repeat("m", 44): strings.Repeat("m", 44) + "-release",
		strings.Repeat("m", 48): strings.Repeat("m", 48) + "-rel",
		strings.Repeat("m", 51): strings.Repeat("m", 51),
	} {
		facts := healthy()
		facts.Deployments[0].Name = name
		if got := facts.releaseNames()["CRONJOB"]; got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}

// The report names what could not be read, and the checks that did not run because of it.
func TestUnseenKindsBlockChecks(t *testing.T) {
	facts := healthy()
	facts.Unseen[KindPods] = "you may not read them"
	facts.Unseen[KindGates] = "you may not read them"
	facts.Pods = nil
	report := Examine(facts)
	if len(report.Findings) > 0 || report.Blind() {
		t.Errorf("got %+v", report)
	}
	if len(report.Unseen) != 2 || !slices.Equal(report.Unseen[0].Checks, []string{"plugin-running", "gpus-published", "device-plugin-resources", "visible-devices"}) {
		t.Errorf("got %+v", report.Unseen)
	}
}

func TestReportWithoutChecksIsBlind(t *testing.T) {
	facts := &Facts{Unseen: map[Kind]string{}}
	for _, check := range Checks() {
		for _, kind := range check.needs {
			facts.Unseen[kind] = "you may not read them"
		}
	}
	if report := Examine(facts); !report.Blind() {
		t.Errorf("got %+v", report)
	}
}

// In an empty cluster, only the plugin is missing.
func TestAnEmptyCluster(t *testing.T) {
	report := Examine(&Facts{Now: now, Version: "v1.37.1", Served: healthy().Served})
	if len(report.Findings) != 1 || report.Findings[0].Check != "plugin-installed" {
		t.Errorf("got %+v", report.Findings)
	}
}

func TestReportsAreBounded(t *testing.T) {
	facts := healthy()
	for i := range MaxFindings + 20 {
		facts.TaintRules = append(facts.TaintRules, taintRule(fmt.Sprintf("rule-%03d", i), &resourceapi.DeviceTaintSelector{}, resourceapi.DeviceTaintEffectNoSchedule))
	}
	report := Examine(facts)
	if len(report.Findings) != MaxFindings || len(report.Omitted) != 1 || report.Omitted[0].Count != 20 {
		t.Errorf("got %d findings, omitted %+v", len(report.Findings), report.Omitted)
	}
}

// A change in progress is no mistake.
func TestPatience(t *testing.T) {
	for name, set := range map[string]func(*Facts){
		"a pool that is being published": func(f *Facts) {
			s := slice("new", "gpu-1", 2, 3)
			s.CreationTimestamp = metav1.NewTime(now.Add(-time.Second))
			f.Slices = append(f.Slices, s)
		},
		"a node that has just come": func(f *Facts) {
			node := gpuNode("new")
			node.CreationTimestamp = metav1.NewTime(now.Add(-time.Second))
			node.Spec.Taints = []corev1.Taint{{Key: v1alpha1.TaintStartup, Value: "starting", Effect: corev1.TaintEffectNoSchedule}}
			f.Nodes = append(f.Nodes, node)
		},
		"a node that is not ready": func(f *Facts) { f.Nodes[0].Status.Conditions, f.Pods = nil, nil },
		"headroom that is filled": func(f *Facts) {
			f.Headrooms[0].Status.Conditions = conditions(v1alpha1.ConditionReady, "False", v1alpha1.ReasonFilling)
		},
		"a device plugin elsewhere": func(f *Facts) {
			node := gpuNode("theirs")
			delete(node.Labels, "nvidia.com/gpu.present")
			node.Status.Allocatable = corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("8")}
			f.Nodes = append(f.Nodes, node)
		},
		"pods that a DeviceClass serves": func(f *Facts) { asks(f, "train-0", "", "nvidia.com/gpu") },
		"a quota with claims": func(f *Facts) {
			quota(f, "requests.nvidia.com/gpu", "gpu.nvidia.com.deviceclass.resource.k8s.io/devices")
		},
		"a share of GPUs for several claims": func(f *Facts) {
			asksForPart(f, "shares", "2")
			f.Slices[0].Spec.Devices[0].AllowMultipleAllocations = ptr.To(true)
		},
		"most of the memory of whole GPUs": func(f *Facts) { asksForPart(f, "memory", "41Gi") },
		"a share, before any node": func(f *Facts) {
			asksForPart(f, "shares", "2")
			f.Slices, f.Nodes, f.Pods = nil, nil, nil
		},
		"a rule that selects nothing": func(f *Facts) {
			f.TaintRules = append(f.TaintRules, taintRule("none", nil, resourceapi.DeviceTaintEffectNoExecute))
		},
		"a protection that is renewed": func(f *Facts) {
			hold(f, v1alpha1.AnnotationProtected, "use", now.Add(time.Hour))
		},
		"a protection that the CronJob may still take back": func(f *Facts) {
			hold(f, v1alpha1.AnnotationProtected, "use", now.Add(time.Second-releasedWithin))
		},
		"a node that is empty and not cordoned": func(f *Facts) {
			hold(f, v1alpha1.AnnotationScaleIn, "empty 2026-10-01T08:00:00Z", now.Add(-3*time.Hour))
		},
		"a node that an administrator keeps": func(f *Facts) {
			hold(f, v1alpha1.AnnotationScaleDownDisabled, "true", now.Add(-3*time.Hour))
			f.Nodes[0].Spec.Unschedulable = true
		},
	} {
		t.Run(name, func(t *testing.T) {
			facts := healthy()
			set(facts)
			if report := Examine(facts); len(report.Findings) > 0 {
				t.Errorf("found %+v", report.Findings)
			}
		})
	}
}
