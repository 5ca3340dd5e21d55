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

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/mica-gpu/mica/pkg/kubectl/doctor"
)

// examine runs kubectl gpu doctor. Its exit code is 1 if, and only if, it finds errors.
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

// ofInstallation are the checks of state that no test changes for long.
var ofInstallation = []string{
	"resource-api", "mica-kinds", "feature-gates", "plugin-installed", "plugin-selects-node", "plugin-running", "pool-complete",
	"device-plugin", "two-drivers", "container-runtime", "accelerator-label", "driver-version", "taint-value",
}

// The tests' cluster is healthy, except for what other tests change.
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

// doctorDriver publishes devices that no other test uses.
const doctorDriver = "doctor.e2e.mica.gpu"

// The doctor finds the mistakes that a test can make through the API server.
func TestDoctorFindsTraps(t *testing.T) {
	t.Parallel()
	s := newScenario(t, 0)
	node := s.trappedNode()
	s.trappedWorkloads()
	want := map[string]string{
		"accelerator-label":   "node/" + node,
		"taint-value":         "node/" + node,
		"device-plugin":       "node/" + node,
		"container-runtime":   "node/" + node,
		"driver-version":      "node/" + node,
		"foreign-partitions":  "node/" + node,
		"visible-devices":     "daemonset/toolkit",
		"taint-rule-selector": "devicetaintrule/" + s.namespace,
		"device-plugin-quota": "resourcequota/gpus",
	}
	report, err := examine(t.Context(), "--driver-name", doctorDriver)
	must(t, err, "run kubectl gpu doctor")
	for check, object := range want {
		if !slices.ContainsFunc(report.Findings, func(f doctor.Finding) bool { return f.Check == check && f.Object == object }) {
			t.Errorf("%s did not find %s among %+v", check, object, report.Findings)
		}
	}
}

// trappedNode creates a Node without a machine, which gets no pods.
func (s *scenario) trappedNode() string {
	s.Helper()
	ctx, name := s.Context(), s.namespace
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{
		testLabel: "", "k8s.amazonaws.com/accelerator": "nvidia-h100", "eks.amazonaws.com/nodegroup": name,
	}}}
	node.Spec.Taints = []corev1.Taint{{Key: testLabel, Effect: corev1.TaintEffectNoSchedule}}
	node.Spec.Unschedulable = true
	_, err := s.client.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{})
	must(s, err, "create a Node")
	s.Cleanup(func() {
		must(s, s.client.CoreV1().Nodes().Delete(context.WithoutCancel(ctx), name, metav1.DeleteOptions{}), "delete the Node")
	})
	// A merge patch, because the node controllers write the status, too.
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
	return name
}

// trappedWorkloads creates objects in the scenario's namespace, and a rule whose taint has no effect.
func (s *scenario) trappedWorkloads() {
	s.Helper()
	ctx := s.Context()
	labels := map[string]string{"app": "toolkit"}
	toolkit := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Name: "toolkit"}, Spec: appsv1.DaemonSetSpec{
		Selector: &metav1.LabelSelector{MatchLabels: labels},
		Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{
			NodeSelector: map[string]string{"mica.gpu/nowhere": "true"},
			Containers:   []corev1.Container{{Name: "toolkit", Image: "nvcr.io/nvidia/k8s/container-toolkit:v1.18.0"}},
		}},
	}}
	_, err := s.client.AppsV1().DaemonSets(s.namespace).Create(ctx, toolkit, metav1.CreateOptions{})
	must(s, err, "create a DaemonSet")

	quota := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: "gpus"}, Spec: corev1.ResourceQuotaSpec{
		Hard: corev1.ResourceList{"requests.nvidia.com/gpu": resource.MustParse("1")},
	}}
	_, err = s.client.CoreV1().ResourceQuotas(s.namespace).Create(ctx, quota, metav1.CreateOptions{})
	must(s, err, "create a quota")

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
