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
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
)

// The tests of this file change what the node offers, so they run alone.

var (
	gpuPolicies = schema.GroupVersionResource{Group: "mica.gpu", Version: "v1alpha1", Resource: "gpupolicies"}
	gpuNodes    = schema.GroupVersionResource{Group: "mica.gpu", Version: "v1alpha1", Resource: "gpunodes"}
)

// fields are those of an object that has no type here.
type fields = map[string]any

// policyOf is a policy for the tested node that comes before the chart's.
func (in *installation) policyOf(shapes fields) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: fields{
		"apiVersion": "mica.gpu/v1alpha1",
		"kind":       "GPUPolicy",
		"metadata":   fields{"generateName": "mica-e2e-", "labels": fields{testLabel: ""}},
		"spec": fields{
			"priority":     int64(1000),
			"nodeSelector": fields{"matchLabels": fields{corev1.LabelHostname: in.hostname}},
			"shapes":       shapes,
		},
	}}
}

func (in *installation) policies() dynamic.ResourceInterface {
	return in.dynamicClient().Resource(gpuPolicies)
}

// createPolicy makes a policy; after the test it and all that it did is gone.
func (s *scenario) createPolicy(policy *unstructured.Unstructured) (name string) {
	s.Helper()
	s.Cleanup(func() { offeredAsAtTheStart(s) })
	return s.createPassingPolicy(policy)
}

// createPassingPolicy makes a policy that is gone after the test. What it offered may be withdrawn still.
func (s *scenario) createPassingPolicy(policy *unstructured.Unstructured) (name string) {
	s.Helper()
	created, err := s.policies().Create(s.Context(), policy, metav1.CreateOptions{})
	must(s, err, "create a GPUPolicy")
	s.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), goneTimeout)
		defer cancel()
		err := s.policies().Delete(ctx, created.GetName(), metav1.DeleteOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			s.Errorf("delete GPUPolicy %s: %v", created.GetName(), err)
		}
		// What pods have is offered as long as they have it.
		must(s, until(ctx, s.deletePods), "delete the pods")
	})
	return created.GetName()
}

// offeredAsAtTheStart waits until nothing that policies offered is published any more.
func offeredAsAtTheStart(t testing.TB) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), withdrawalTimeout)
	defer cancel()
	must(t, until(ctx, under.expectDevicesOfTheStart), "wait for the devices of the start")
}

// withdrawalTimeout is longer than a shape stays published that a policy has withdrawn.
const withdrawalTimeout = retryTimeout

// shapesOf names the devices that are offered in a shape and those that are withdrawn, as
// the API server has them.
func (s *scenario) shapesOf(ctx context.Context, kind string) (offered, withdrawn []device, err error) {
	published, err := s.publishedDevices(ctx)
	if err != nil {
		return nil, nil, err
	}
	for _, d := range ofKind(published[s.node], kind) {
		if slices.ContainsFunc(d.Taints, func(taint resourcev1.DeviceTaint) bool { return taint.Key == "mica.gpu/withdrawn" }) {
			withdrawn = append(withdrawn, d)
		} else {
			offered = append(offered, d)
		}
	}
	return offered, withdrawn, nil
}

// expectOfferedIn waits until so many devices are offered in a shape.
func (s *scenario) expectOfferedIn(kind string, count int) {
	s.Helper()
	eventually(s, startTimeout, fmt.Sprintf("%d devices are offered as %s", count, kind), func(ctx context.Context) error {
		offered, _, err := s.shapesOf(ctx, kind)
		if err == nil && len(offered) != count {
			err = fmt.Errorf("offered are %v", deviceNames(offered))
		}
		return err
	})
}

// expectWithdrawnIn waits until none is offered in a shape and so many are withdrawn.
func (s *scenario) expectWithdrawnIn(kind string, count int) {
	s.Helper()
	eventually(s, withdrawalTimeout, fmt.Sprintf("%d devices are withdrawn as %s", count, kind), func(ctx context.Context) error {
		offered, withdrawn, err := s.shapesOf(ctx, kind)
		if err == nil && (len(offered) > 0 || len(withdrawn) != count) {
			err = fmt.Errorf("offered are %v, withdrawn %v", deviceNames(offered), deviceNames(withdrawn))
		}
		return err
	})
}

// TestPolicies has one policy after the other: each withdrawal takes a minute, and the second begins
// while the first still goes on.
func TestPolicies(t *testing.T) {
	t.Cleanup(func() { offeredAsAtTheStart(t) })
	t.Run("shares of partitions", sharesOfPartitions)
	t.Run("changes under load", changesUnderLoad)
	t.Run("whole GPUs for several claims", wholeGPUsForSeveralClaims)
}

// changesUnderLoad withdraws a shape that claims have, cuts another more finely, and takes it all back,
// while pods run.
func changesUnderLoad(t *testing.T) {
	s, _ := newShareScenario(t, len(under.devices))
	s.createTemplate("whole", s.claimFor(1, s.of(s.devices[0])))
	s.createTemplate("share", s.sharesFor(timeSliceClass, 1, nil, s.of(s.devices[1])))
	running := map[string]string{}
	for name, template := range map[string]string{"whole": "whole", "share-0": "share", "share-1": "share"} {
		s.createPod(s.podFromTemplate(name, template))
		s.expectOwnDevices(name)
		running[name] = containerRun(s.waitRunning(name))
	}

	name := s.createPassingPolicy(s.policyOf(fields{"timeSlice": fields{"replicas": int64(2 * defaultShares)}}))
	s.expectPolicy(name, corev1.ConditionTrue, "")
	all := len(s.devices)
	s.expectOfferedIn(kindTimeSlice, all)
	// The two shares from before have a quarter of the memory each, the new ones an eighth.
	more := names("more", defaultShares)
	for _, name := range more {
		s.createPod(s.podFromTemplate(name, "share"))
	}
	for _, name := range more {
		s.expectOwnDevices(name)
	}
	s.createPod(s.podFromTemplate("too-many", "share"))
	s.expectUnschedulable("too-many")
	s.deletePod("too-many")
	s.createPod(s.podFromTemplate("second-whole", "whole"))
	s.expectUnschedulable("second-whole")
	for name, run := range running {
		if now := containerRun(s.waitRunning(name)); now != run {
			t.Errorf("pod %s was disturbed: its container was %s, is %s", name, run, now)
		}
	}
	// The GPU that a claim has stays as long as the claim, the others as long as claims can
	// be on their way.
	s.expectWithdrawnIn(kindGPU, 1)
	s.expectWithdrawnIn(kindPartition, 0)
	s.deletePod("whole")
	s.expectWithdrawnIn(kindGPU, 0)

	must(t, s.policies().Delete(t.Context(), name, metav1.DeleteOptions{}), "delete the policy")
	s.readDevicesAgain()
	s.expectOwnDevices("second-whole")
	s.expectOwnDevices("share-0")
}

// expectPolicy waits until the policy's condition Ready is so, with this text in its message.
func (s *scenario) expectPolicy(name string, status corev1.ConditionStatus, text string) {
	s.Helper()
	eventually(s, startTimeout, fmt.Sprintf("GPUPolicy %s has the condition Ready %s", name, status), func(ctx context.Context) error {
		policy, err := s.policies().Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		conditions, _, err := unstructured.NestedSlice(policy.Object, "status", "conditions")
		if err != nil {
			return err
		}
		for _, condition := range conditions {
			c, _ := condition.(fields)
			message, _ := c["message"].(string)
			if c["type"] == "Ready" && c["status"] == string(status) && strings.Contains(message, text) {
				return nil
			}
		}
		return fmt.Errorf("its conditions are %v", conditions)
	})
}

// shareOfMemory is what an equal part of a partition's memory comes to, in whole MiB.
func (s *scenario) shareOfMemory(profile string, parts int64) string {
	s.Helper()
	i := slices.IndexFunc(s.partitions, func(p device) bool { return p.text("profile") == profile })
	memory := s.partitions[i].Capacity["memory"].Value
	return fmt.Sprintf("%dMi", memory.Value()>>20/parts)
}

// sharesOfPartitions cuts a GPU into partitions that several claims have shares of.
func sharesOfPartitions(t *testing.T) {
	s, sim := newPartitionScenario(t, len(under.devices))
	s.needProfiles("1g.10gb", "2g.20gb")
	s.createPassingPolicy(s.policyOf(fields{
		"whole": fields{},
		"mig": fields{"profiles": []any{"1g.10gb"}, "shared": []any{
			fields{"profile": "1g.10gb", "timeSlice": fields{"replicas": int64(2)}},
			fields{"profile": "2g.20gb", "mps": fields{"clients": int64(2)}},
		}},
	}))
	places := len(s.devices) * s.places(s.devices[0], "1g.10gb")
	s.expectOfferedIn(kindTimeSlicePartition, places)
	s.expectOfferedIn(kindPartition, places)
	gpu := s.devices[0]
	onGPU := s.is("parentUUID", gpu.uuid)
	s.createTemplate("slice", s.sharesFor(timeSlicePartitionClass, 1, nil, onGPU))
	s.createTemplate("client", s.sharesFor(mpsPartitionClass, 1, nil, onGPU))
	s.createTemplate("alone", s.partitionsFor(1, onGPU))

	devices := map[string]string{}
	for _, name := range names("slice", 3) {
		s.createPod(s.podFromTemplate(name, "slice"))
		devices[name] = s.expectOwnDevices(name)[0].uuid
	}
	if devices["slice-0"] != devices["slice-1"] || devices["slice-1"] == devices["slice-2"] {
		t.Errorf("three claims with a share of a partition have %v, want two on one and one on another", devices)
	}
	for _, name := range names("client", 2) {
		s.createPod(s.clientFromTemplate(name, "client"))
		s.expectLimits(name, amounts{"memory": s.shareOfMemory("2g.20gb", 2), "cores": "50"})
	}
	s.createPod(s.podFromTemplate("alone", "alone"))
	if alone := s.expectOwnDevices("alone")[0]; slices.Contains([]string{devices["slice-0"], devices["slice-2"]}, alone.uuid) {
		t.Errorf("a claim for a partition of its own has %s, which is shared", alone.uuid)
	}
	if got := len(sim.gpu(gpu).Instances); got != 4 {
		t.Errorf("the GPU has %d instances, want 4", got)
	}
	s.deletePod("slice-0")
	s.expectOwnDevices("slice-1")
	eventually(t, goneTimeout, "the pods are gone", s.deletePods)
	s.expectUnpartitioned()
	s.expectUnshared()
}

// TestAPolicyThatDoesNotCompile expects the plugin to say what is wrong with it, and the node to offer what it did before.
func TestAPolicyThatDoesNotCompile(t *testing.T) {
	s, _ := newShareScenario(t, 0)
	policy := s.policyOf(fields{"whole": fields{}})
	must(t, unstructured.SetNestedSlice(policy.Object, []any{fields{
		"when":   "device.attributes['" + s.driver + "'].productName.isAnH100()",
		"shapes": fields{"timeSlice": fields{"replicas": int64(2)}},
	}}, "spec", "overrides"), "make a policy that does not compile")
	name := s.createPolicy(policy)
	s.expectPolicy(name, corev1.ConditionFalse, s.node)
	message := s.waitForNodeEvent("PolicyRefused", name)
	if !strings.Contains(message, "isAnH100") {
		t.Errorf("the event does not name what is wrong: %s", message)
	}
	s.readDevicesAgain()
}

// waitForNodeEvent returns the message of a warning about the node that has a text in it.
func (s *scenario) waitForNodeEvent(reason, text string) string {
	s.Helper()
	return s.waitForNodeEventOf(corev1.EventTypeWarning, reason, text)
}

func (s *scenario) waitForNodeEventOf(kind, reason, text string) string {
	s.Helper()
	return s.waitForNodeEvents(1, kind, reason, text)
}

// waitForNodeEventAgain waits until a warning has been given twice, which one Event counts.
func (s *scenario) waitForNodeEventAgain(reason, text string) {
	s.Helper()
	s.waitForNodeEvents(2, corev1.EventTypeWarning, reason, text)
}

func (s *scenario) waitForNodeEvents(times int32, kind, reason, text string) string {
	s.Helper()
	var message string
	eventually(s, startTimeout, fmt.Sprintf("node %s has the event %s about %s, times: %d", s.node, reason, text, times), func(ctx context.Context) error {
		events, err := s.client.CoreV1().Events(metav1.NamespaceAll).List(ctx, metav1.ListOptions{
			FieldSelector: "involvedObject.kind=Node,involvedObject.name=" + s.node + ",reason=" + reason,
		})
		if err != nil {
			return err
		}
		for _, event := range events.Items {
			if event.Type == kind && strings.Contains(event.Message, text) && event.Count >= times {
				message = event.Message
				return nil
			}
		}
		return errors.New("it has none")
	})
	return message
}

// wholeGPUsForSeveralClaims applies what users of NVIDIA's driver with consumable shares write, by the patterns of its
// demo/specs/consumable-shares: any number of claims of a GPU, claims by memory, and four shares. A GPU changes
// between one claim and several only while no claim has it.
func wholeGPUsForSeveralClaims(t *testing.T) {
	s, _ := newShareScenario(t, len(under.devices))
	s.createTemplate("whole", s.claimFor(1, s.of(s.devices[0])))
	s.createPod(s.podFromTemplate("alone", "whole"))
	s.expectOwnDevices("alone")
	policy := s.createPassingPolicy(s.policyOf(fields{"whole": fields{"consumableShares": "unlimited"}}))
	s.expectShared(true, s.devices[1:]...)
	s.expectShared(false, s.devices[0])
	s.deletePod("alone")
	s.expectShared(true, s.devices...)

	s.expectOneGPU("unlimited", 10)
	s.limitGPUs(policy, "memory", "memory")
	s.expectOneGPU("memory", 2)
	s.limitGPUs(policy, int64(4), "shares")
	pods := s.expectOneGPU("integer", 4)

	must(t, s.policies().Delete(t.Context(), policy, metav1.DeleteOptions{}), "delete the policy")
	gpu := s.allocated(s.claimOf(&pods[0]))[0]
	s.expectShared(false, slices.DeleteFunc(slices.Clone(s.devices), func(d device) bool { return d.uuid == gpu.uuid })...)
	s.expectShared(true, gpu)
	must(t, s.client.AppsV1().Deployments(s.namespace).Delete(t.Context(), "integer", metav1.DeleteOptions{}), "delete the last Deployment")
	s.expectShared(false, s.devices...)
}

// expectShared waits until the whole GPUs are published for several claims, or for one.
func (s *scenario) expectShared(want bool, gpus ...device) {
	s.Helper()
	eventually(s, withdrawalTimeout, fmt.Sprintf("several claims may have %v: %t", deviceNames(gpus), want), func(ctx context.Context) error {
		published, err := s.publishedDevices(ctx)
		if err != nil {
			return err
		}
		for _, d := range ofKind(published[s.node], kindGPU) {
			if d.shared() != want && slices.ContainsFunc(gpus, func(g device) bool { return g.name == d.name }) {
				return fmt.Errorf("several claims may have %s: %t", d.name, d.shared())
			}
		}
		return nil
	})
}

// limitGPUs changes the limit of claims, and waits until the whole GPUs have the capacity with its default.
func (s *scenario) limitGPUs(policy string, limit any, capacity resourcev1.QualifiedName) {
	s.Helper()
	patch, err := mergePatch(fields{"spec": fields{"shapes": fields{"whole": fields{"consumableShares": limit}}}})
	must(s, err, "encode a limit")
	_, err = s.policies().Patch(s.Context(), policy, types.MergePatchType, patch, metav1.PatchOptions{})
	must(s, err, "change the limit")
	eventually(s, startTimeout, fmt.Sprintf("the GPUs are limited by %v", limit), func(ctx context.Context) error {
		offered, _, err := s.shapesOf(ctx, kindGPU)
		if err != nil {
			return err
		}
		for _, d := range offered {
			if policy := d.Capacity[capacity].RequestPolicy; policy == nil || policy.Default.IsZero() {
				return fmt.Errorf("%s has the capacities %v", d.name, d.Capacity)
			}
		}
		return nil
	})
}

// expectOneGPU applies a Deployment for NVIDIA's driver, and expects its replicas on one GPU. Only the last stays.
func (s *scenario) expectOneGPU(name string, replicas int) []corev1.Pod {
	s.Helper()
	s.applyManifest("testdata/nvidia-consumable-" + name + ".yaml")
	var pods []corev1.Pod
	eventually(s, startTimeout, fmt.Sprintf("%d replicas of %s run", replicas, name), func(ctx context.Context) error {
		list, err := s.client.CoreV1().Pods(s.namespace).List(ctx, metav1.ListOptions{LabelSelector: "app=" + name})
		if err != nil {
			return err
		}
		pods = list.Items
		for i := range pods {
			if !isReady(&pods[i]) {
				return errors.New(summary(&pods[i]))
			}
		}
		if len(pods) != replicas {
			return fmt.Errorf("there are %d", len(pods))
		}
		return nil
	})
	gpus := map[string]int{}
	for _, pod := range pods {
		gpus[s.expectOwnDevices(pod.Name)[0].uuid]++
	}
	if len(gpus) != 1 {
		s.Errorf("%d replicas of %s are on the GPUs %v", replicas, name, gpus)
	}
	if name != "integer" {
		must(s, s.client.AppsV1().Deployments(s.namespace).Delete(s.Context(), name, metav1.DeleteOptions{}), "delete Deployment %s", name)
		eventually(s, goneTimeout, "the pods are gone", s.deletePods)
	}
	return pods
}
