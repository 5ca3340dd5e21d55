//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"

	"github.com/mica-gpu/mica/api/v1alpha1"
	"github.com/mica-gpu/mica/test/nvmlsim/model"
)

// The tests of this file make GPUs sick, so they run alone.

// TestASickGPU lets a GPU fall ill under a pod, in a partition where the node has some: the pod goes
// on and says why its device is unhealthy, new claims get other GPUs or have a node asked for, also
// after a restart of the plugin, and the GPU is given out again after its
// recovery. Another GPU is lost while no plugin runs.
func TestASickGPU(t *testing.T) {
	m := under.onNode(t)
	sim := under.onSimulator(t)
	s := newScenario(t, len(under.devices))
	part := s.claimFor(1)
	if len(s.partitions) > 0 {
		part = s.partitionsFor(1)
	}
	s.createTemplate("part", part)
	s.createTemplate("one", s.claimFor(1))
	s.createPod(s.podFromTemplate("patient", "part"))
	hit := s.expectOwnDevices("patient")[0]
	sick := s.boardOf(hit)
	run := containerRun(s.waitRunning("patient"))
	index := sim.gpu(sick).Index
	t.Cleanup(func() { must(t, sim.control.SetCondition(index, model.Condition{}), "heal the GPU") })

	// The driver asks for no action: words only, also of what a table would take for a fault and the driver judges.
	for _, xid := range []uint64{13, 43, 109} {
		must(t, sim.control.Inject(model.XID(index, xid)), "report an error of the application")
	}
	must(t, sim.control.SetCondition(index, model.Condition{}), "keep the action away that comes after XID 109")
	for _, xid := range []string{"XID 13", "XID 43", "XID 109"} {
		s.waitForNodeEvent("GPUError", xid)
		s.expectHealth("patient", "Healthy", xid)
	}
	must(t, sim.control.Inject(model.XID(index, 13)), "report an error of the application again")
	s.waitForNodeEventAgain("GPUError", "XID 13")
	s.expectTaint(hit.name, "")

	must(t, sim.control.SetCondition(index, model.Condition{RecoveryAction: "node-reboot"}), "ask for a reboot")
	must(t, sim.control.Inject(model.XID(index, 79)), "report an error of the GPU")
	s.waitForNodeEvent("GPUFault", sick.uuid)
	s.expectHealth("patient", "Unhealthy", "reboot the node")
	since := s.expectTaint(hit.name, "NoSchedule")
	s.expectTaint(sick.name, "NoSchedule")
	s.expectListedSick("patient", sick.uuid, "gpu.nvidia.com/xid")
	s.expectNodeSays(corev1.ConditionFalse, sick.uuid, "gpu.nvidia.com/xid=79")
	others := map[string]device{}
	for i := range len(s.devices) - 1 {
		name := fmt.Sprint("other-", i)
		s.createPod(s.podFromTemplate(name, "one"))
		others[name] = s.expectOwnDevices(name)[0]
		if others[name].uuid == sick.uuid {
			t.Errorf("%s got the sick GPU", name)
		}
	}
	s.expectReplacementAskedFor("last")

	lost := sim.gpu(others["other-0"]).Index
	t.Cleanup(func() { _ = sim.control.Return(lost) }) // it may be back
	must(t, sim.control.Lose(lost), "lose a GPU")
	killed, err := m.killPlugin(t.Context())
	must(t, err, "kill the plugin")
	eventually(t, retryTimeout, "the plugin runs again", func(ctx context.Context) error {
		pod, err := s.readyPlugin(ctx)
		if err == nil && containerRun(pod) == containerRun(killed) {
			err = errors.New("kubelet has not noticed its end")
		}
		return err
	})
	s.expectTaint(others["other-0"].name, "NoSchedule")
	must(t, sim.control.Return(lost), "bring the GPU back")
	if now := s.expectTaint(hit.name, "NoSchedule"); now != since {
		t.Errorf("after a restart the taint is since %s, and was since %s", now, since)
	}
	s.expectHealth("patient", "Unhealthy", "reboot the node")
	if now := containerRun(s.waitRunning("patient")); now != run {
		t.Errorf("the running pod was disturbed: its container was %s, is %s", run, now)
	}
	s.deletePod("patient")
	s.expectUnschedulable("last")
	must(t, sim.control.SetCondition(index, model.Condition{}), "heal the GPU")
	s.waitRunningNudged("last")
	if got := s.boardOf(s.expectOwnDevices("last")[0]); got.uuid != sick.uuid {
		t.Errorf("the pod has GPU %s, want %s, which has recovered", got.uuid, sick.uuid)
	}
	s.expectTaint(sick.name, "")
	s.expectTaint(others["other-0"].name, "")
	s.expectNodeSays(corev1.ConditionTrue, "", "")
}

// boardOf is the entire GPU that a device is of.
func (s *scenario) boardOf(d device) device {
	s.Helper()
	for _, board := range s.devices {
		if board.uuid == d.uuid || d.ofPartition() && board.uuid == d.text("parentUUID") {
			return board
		}
	}
	s.Fatalf("device %s is of no published GPU", d.name)
	return device{}
}

// expectReplacementAskedFor makes a pod for which only the sick GPU has room: its condition says why it does
// not get it, and a group of nodes that only advises is to grow.
func (s *scenario) expectReplacementAskedFor(pod string) {
	s.Helper()
	const group = "spare"
	planner := scaleOut{scenario: s}
	groups := planner.dynamic(gpuNodeGroups)
	_, err := groups.Create(s.Context(), groupWith(group, fields{
		"provider": fields{"eks": fields{"nodegroup": group, "cluster": "e2e"}}, "instanceType": h200, "max": int64(1), "pairing": "observe",
		"template": fields{"allocatable": fields{"cpu": "180", "memory": "1900Gi", "pods": "110"}},
	}), metav1.CreateOptions{})
	must(s, err, "declare group %s", group)
	defer func() { must(s, groups.Delete(s.Context(), group, metav1.DeleteOptions{}), "delete group %s", group) }()
	anywhere := s.podFromTemplate(pod, "part")
	anywhere.Spec.NodeSelector = nil
	s.createPod(anywhere)
	s.expectUnschedulable(pod)
	planner.expectGroup(group, "demand", int64(1))
	const why = "with the taint gpu.nvidia.com/xid=79:NoSchedule (the GPU has a fault)"
	if out := planner.explain(pod); !strings.Contains(out, why) {
		s.Errorf("kubectl gpu explain does not say %q:\n%s", why, out)
	}
}

// TestASickGPUEvicts follows a policy by which a fault ends the pods of a GPU, one by which it is only
// shown, and one by which the GPU is reset when it is idle, while another GPU is in use.
func TestASickGPUEvicts(t *testing.T) {
	sim := under.onSimulator(t)
	s := newScenario(t, len(under.devices))
	s.createTemplate("one", s.claimFor(1))
	patient := s.podFromTemplate("patient", "one")
	patient.Spec.TerminationGracePeriodSeconds = ptr.To(int64(1))
	s.createPod(patient)
	s.createPod(s.podFromTemplate("neighbour", "one"))
	sick := s.expectOwnDevices("patient")[0]
	run := containerRun(s.waitRunning("neighbour"))
	index := sim.gpu(sick).Index
	t.Cleanup(func() { must(t, sim.control.SetCondition(index, model.Condition{}), "heal the GPU") })
	// The shapes stay those of the chart's policy, so that nothing is withdrawn.
	chart, err := s.policies().Get(t.Context(), "mica-default", metav1.GetOptions{})
	must(t, err, "read the chart's policy")
	shapes, _, err := unstructured.NestedMap(chart.Object, "spec", "shapes")
	must(t, err, "read the chart's shapes")
	policyWith := func(rules ...any) *unstructured.Unstructured {
		policy := s.policyOf(shapes)
		must(t, unstructured.SetNestedSlice(policy.Object, rules, "spec", "health"), "write the policy")
		return policy
	}

	name := s.createPolicy(policyWith(fields{"condition": "memory", "effect": "None"}))
	must(t, sim.control.SetCondition(index, model.Condition{RemapFailed: true}), "wear the memory out")
	must(t, sim.control.Inject(model.XID(index, 63)), "have the plugin ask now and not within a minute")
	s.expectTaint(sick.name, "None")
	must(t, s.policies().Delete(t.Context(), name, metav1.DeleteOptions{}), "delete the policy")
	s.expectTaint(sick.name, "NoSchedule")
	name = s.createPolicy(policyWith(fields{"condition": "memory", "effect": "NoExecute"}))
	eventually(t, startTimeout, "the pod of the sick GPU is evicted", func(ctx context.Context) error {
		pod, err := s.pod(ctx, "patient")
		if apierrors.IsNotFound(err) {
			return nil
		}
		return errors.Join(err, fmt.Errorf("its conditions are %v", pod.Status.Conditions))
	})

	must(t, s.policies().Delete(t.Context(), name, metav1.DeleteOptions{}), "delete the policy")
	// An action is taken for that of the GPU's last XID, such as one of the test before.
	s.createPolicy(policyWith(
		fields{"condition": "recovery-action", "effect": "NoSchedule", "recovery": "Reset"},
		fields{"condition": "xid", "effect": "NoSchedule", "recovery": "Reset"},
	))
	must(t, sim.control.SetCondition(index, model.Condition{RecoveryAction: "gpu-reset"}), "ask for a reset")
	s.waitForNodeEventOf(corev1.EventTypeNormal, "GPUReset", sick.uuid)
	if now := sim.gpu(sick).Condition; now != (model.Condition{}) {
		t.Errorf("after its reset the GPU is %+v", now)
	}
	s.expectTaint(sick.name, "")
	s.createPod(s.podFromTemplate("next", "one"))
	s.waitRunning("next")
	if now := containerRun(s.waitRunning("neighbour")); now != run {
		t.Errorf("the pod of another GPU was disturbed: its container was %s, is %s", run, now)
	}
}

// expectNodeSays waits until the node's condition has a status, and its annotation names a GPU and its
// taint, or there is none.
func (s *scenario) expectNodeSays(status corev1.ConditionStatus, uuid, taint string) {
	s.Helper()
	eventually(s, startTimeout, fmt.Sprintf("the node calls its GPUs healthy: %s", status), func(ctx context.Context) error {
		node, err := s.client.CoreV1().Nodes().Get(ctx, s.node, metav1.GetOptions{})
		if err != nil {
			return err
		}
		faults, annotated := node.Annotations[v1alpha1.AnnotationGPUFaults]
		if annotated != (uuid != "") || !strings.Contains(faults, uuid) || !strings.Contains(faults, taint) {
			return fmt.Errorf("the annotation says %q", faults)
		}
		for _, c := range node.Status.Conditions {
			if c.Type == v1alpha1.ConditionGPUsHealthy && c.Status == status && strings.Contains(c.Message, uuid) {
				return nil
			}
		}
		return fmt.Errorf("its conditions are %v", node.Status.Conditions)
	})
}

// expectTaint waits until a published device has a taint with that effect, or none, and returns since
// when.
func (s *scenario) expectTaint(name, effect string) (since string) {
	s.Helper()
	eventually(s, startTimeout, fmt.Sprintf("device %s has a taint %q", name, effect), func(ctx context.Context) error {
		published, err := s.nodeSlices(ctx)
		if err != nil {
			return err
		}
		for _, slice := range published {
			for _, device := range slice.Spec.Devices {
				if device.Name != name {
					continue
				}
				switch {
				case effect == "" && len(device.Taints) > 0, effect != "" && len(device.Taints) == 0:
					return fmt.Errorf("it has the taints %v", device.Taints)
				case effect == "":
					return nil
				case string(device.Taints[0].Effect) != effect:
					return fmt.Errorf("it has the taints %v", device.Taints)
				}
				since = fmt.Sprint(device.Taints[0].TimeAdded)
				return nil
			}
		}
		return fmt.Errorf("it is not published")
	})
	return since
}

// expectHealth waits until a pod's status has the health of its device, with the reason.
func (s *scenario) expectHealth(pod, health, why string) {
	s.Helper()
	eventually(s, startTimeout, fmt.Sprintf("pod %s calls its device %s", pod, health), func(ctx context.Context) error {
		p, err := s.pod(ctx, pod)
		if err != nil {
			return err
		}
		var devices []string
		for _, container := range p.Status.ContainerStatuses {
			for _, resource := range container.AllocatedResourcesStatus {
				for _, r := range resource.Resources {
					message := ""
					if r.Message != nil {
						message = *r.Message
					}
					devices = append(devices, fmt.Sprintf("%s: %s", r.Health, message))
				}
			}
		}
		if !slices.ContainsFunc(devices, func(line string) bool {
			return strings.HasPrefix(line, health+":") && strings.Contains(line, why)
		}) {
			return fmt.Errorf("its devices are %q", devices)
		}
		return nil
	})
}
