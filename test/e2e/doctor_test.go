//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/mica-gpu/mica/pkg/kubectl/doctor"
)

// examine runs kubectl gpu doctor. Its exit code is 1 exactly if it has found errors.
func examine(ctx context.Context, arguments ...string) (doctor.Report, error) {
	var report doctor.Report
	var complaint bytes.Buffer
	command := exec.CommandContext(ctx, os.Getenv("MICA_KUBECTL_GPU"), append([]string{"doctor", "-o", "json"}, arguments...)...)
	command.Stderr = &complaint
	out, err := command.Output()
	var ended *exec.ExitError
	if err != nil && (!errors.As(err, &ended) || ended.ExitCode() != 1) {
		return report, fmt.Errorf("%w: %s", err, complaint.String())
	}
	if err := json.Unmarshal(out, &report); err != nil {
		return report, err
	}
	if (err != nil) != (report.Count(doctor.Error) > 0) {
		return report, errors.Join(err, fmt.Errorf("its status is not that of what it found: %+v", report.Findings))
	}
	return report, nil
}

// ofInstallation are the checks of what no test changes for longer than moments.
var ofInstallation = []string{
	"resource-api", "mica-kinds", "feature-gates", "plugin-installed", "plugin-selects-node", "plugin-running", "pool-complete",
	"device-plugin", "two-drivers", "container-runtime", "node-clock", "accelerator-label", "driver-version", "taint-value",
}

// The cluster of the tests is healthy, as far as it is theirs alone.
func TestDoctorFindsTheClusterHealthy(t *testing.T) {
	t.Parallel()
	eventually(t, startTimeout, "the doctor finds the node and the API server healthy", func(ctx context.Context) error {
		report, err := examine(ctx)
		if err != nil {
			return err
		}
		if len(report.Unseen) > 0 {
			return fmt.Errorf("it could not see %+v", report.Unseen)
		}
		for _, f := range report.Findings {
			ours := slices.Contains([]string{"apiserver", "daemonsets", "node/" + under.node}, f.Object)
			if ours && slices.Contains(ofInstallation, f.Check) {
				return fmt.Errorf("it found %+v", f)
			}
		}
		return nil
	})
}

// doctorDriver keeps what the test publishes from everybody else.
const doctorDriver = "doctor.e2e.mica.gpu"

// Each trap that can be set through the API server in a moment is set, and found.
func TestDoctorFindsTraps(t *testing.T) {
	t.Parallel()
	s := newScenario(t, 0)
	node := s.trappedNode()
	s.trappedWorkloads()
	arguments := []string{"--driver-name", doctorDriver, "--kueue-namespace", s.namespace, "--cluster-autoscaler-namespace", s.namespace}
	want := map[string]string{
		"accelerator-label":   "node/" + node,
		"taint-value":         "node/" + node,
		"device-plugin":       "node/" + node,
		"container-runtime":   "node/" + node,
		"driver-version":      "node/" + node,
		"node-clock":          "node/" + node,
		"foreign-partitions":  "node/" + node,
		"visible-devices":     "daemonset/toolkit",
		"two-autoscalers":     "deployment/llm",
		"taint-rule-selector": "devicetaintrule/" + s.namespace,
		"kueue-counter":       "deviceclassmapping/gpu-memory",
	}
	report, err := examine(t.Context(), arguments...)
	must(t, err, "run kubectl gpu doctor")
	for check, object := range want {
		if !slices.ContainsFunc(report.Findings, func(f doctor.Finding) bool { return f.Check == check && f.Object == object }) {
			t.Errorf("%s did not find %s among %+v", check, object, report.Findings)
		}
	}
}

// trappedNode is a Node without a machine: nothing is placed there.
func (s *scenario) trappedNode() string {
	s.Helper()
	ctx, name := s.Context(), s.namespace
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{
		testLabel: "", "k8s.amazonaws.com/accelerator": "nvidia-h100", "eks.amazonaws.com/nodegroup": name,
	}}}
	node.Spec.Taints = []corev1.Taint{{Key: testLabel, Effect: corev1.TaintEffectNoSchedule}}
	node.Spec.Unschedulable = true
	node, err := s.client.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{})
	must(s, err, "create a Node")
	s.Cleanup(func() {
		must(s, s.client.CoreV1().Nodes().Delete(context.WithoutCancel(ctx), name, metav1.DeleteOptions{}), "delete the Node")
	})
	// The controllers of nodes write it, too.
	patch, err := mergePatch(map[string]any{"status": map[string]any{
		"nodeInfo": map[string]string{"containerRuntimeVersion": "containerd://1.7.27"},
		"capacity": map[string]string{"nvidia.com/mig-1g.10gb": "7"},
	}})
	must(s, err, "write a patch")
	_, err = s.client.CoreV1().Nodes().Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{}, "status")
	must(s, err, "write the Node's status")

	slice := &resourcev1.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{testLabel: ""}}}
	slice.Spec = resourcev1.ResourceSliceSpec{
		Driver: doctorDriver, NodeName: &name, Pool: resourcev1.ResourcePool{Name: name, ResourceSliceCount: 1},
		Devices: []resourcev1.Device{{Name: "gpu-0-mig", Attributes: map[resourcev1.QualifiedName]resourcev1.DeviceAttribute{
			"type": {StringValue: ptr.To("mig")}, "uuid": {StringValue: ptr.To("MIG-0")}, "driverVersion": {VersionValue: ptr.To("550.90.7")},
		}}},
	}
	_, err = s.client.ResourceV1().ResourceSlices().Create(ctx, slice, metav1.CreateOptions{})
	must(s, err, "publish a slice")
	s.Cleanup(func() {
		must(s, s.client.ResourceV1().ResourceSlices().Delete(context.WithoutCancel(ctx), name, metav1.DeleteOptions{}), "delete the slice")
	})
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{
		Name:            name,
		OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: name, UID: node.UID}},
	}, Spec: coordinationv1.LeaseSpec{RenewTime: &metav1.MicroTime{Time: time.Now().Add(-time.Hour)}}}
	_, err = s.client.CoordinationV1().Leases(corev1.NamespaceNodeLease).Create(ctx, lease, metav1.CreateOptions{})
	must(s, err, "renew the Node's lease by a clock that is wrong")
	return name
}

// trappedWorkloads are in the scenario's namespace, but for a rule whose taint does nothing to any device.
func (s *scenario) trappedWorkloads() {
	s.Helper()
	ctx := s.Context()
	for _, name := range []string{"a", "b"} {
		scaler := &autoscalingv2.HorizontalPodAutoscaler{ObjectMeta: metav1.ObjectMeta{Name: name}}
		scaler.Spec.ScaleTargetRef = autoscalingv2.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "llm"}
		scaler.Spec.MaxReplicas = 1
		_, err := s.client.AutoscalingV2().HorizontalPodAutoscalers(s.namespace).Create(ctx, scaler, metav1.CreateOptions{})
		must(s, err, "create an autoscaler")
	}
	kueue := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "kueue-manager-config"}, Data: map[string]string{
		"controller_manager_config.yaml": "resources:\n  deviceClassMappings:\n  - name: gpu-memory\n    sources:\n    - counter: {name: memory, driver: " + doctorDriver + "}\n",
	}}
	_, err := s.client.CoreV1().ConfigMaps(s.namespace).Create(ctx, kueue, metav1.CreateOptions{})
	must(s, err, "configure Kueue")

	labels := map[string]string{"app": "toolkit"}
	toolkit := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Name: "toolkit"}, Spec: appsv1.DaemonSetSpec{
		Selector: &metav1.LabelSelector{MatchLabels: labels},
		Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{
			NodeSelector: map[string]string{"mica.gpu/nowhere": "true"},
			Containers:   []corev1.Container{{Name: "toolkit", Image: "nvcr.io/nvidia/k8s/container-toolkit:v1.18.0"}},
		}},
	}}
	_, err = s.client.AppsV1().DaemonSets(s.namespace).Create(ctx, toolkit, metav1.CreateOptions{})
	must(s, err, "create a DaemonSet")

	rule := &resourcev1.DeviceTaintRule{ObjectMeta: metav1.ObjectMeta{Name: s.namespace}, Spec: resourcev1.DeviceTaintRuleSpec{
		DeviceSelector: &resourcev1.DeviceTaintSelector{},
		Taint:          resourcev1.DeviceTaint{Key: testLabel, Effect: resourcev1.DeviceTaintEffectNone},
	}}
	_, err = s.client.ResourceV1().DeviceTaintRules().Create(ctx, rule, metav1.CreateOptions{})
	must(s, err, "create a rule for all devices")
	s.Cleanup(func() {
		must(s, s.client.ResourceV1().DeviceTaintRules().Delete(context.WithoutCancel(ctx), rule.Name, metav1.DeleteOptions{}), "delete the rule")
	})
}
