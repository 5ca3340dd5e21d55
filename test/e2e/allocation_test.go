//go:build e2e

package e2e

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/utils/ptr"
)

func TestOnePodGetsOneGPU(t *testing.T) {
	t.Parallel()
	s := newScenario(t, 1)
	s.createTemplate("one", s.claimFor(1))
	s.createPod(s.podFromTemplate("pod", "one"))
	if devices := s.expectOwnDevices("pod"); len(devices) != 1 {
		t.Errorf("the pod got %d GPUs, want 1", len(devices))
	}
}

func TestPodWithoutClaimSeesNoGPU(t *testing.T) {
	t.Parallel()
	s := newScenario(t, 0)
	s.createPod(s.plainPod("pod"))
	pod := s.waitRunning("pod")
	s.expectSightOf(pod, "main", sight{})
}

func TestTwoPodsGetTwoGPUs(t *testing.T) {
	t.Parallel()
	s := newScenario(t, 2)
	s.createTemplate("one", s.claimFor(1))
	s.createPod(s.podFromTemplate("first", "one"))
	s.createPod(s.podFromTemplate("second", "one"))
	s.expectDistinct(map[string][]device{
		"first":  s.expectOwnDevices("first"),
		"second": s.expectOwnDevices("second"),
	})
}

func TestSeveralRequestsInOneClaim(t *testing.T) {
	t.Parallel()
	s := newScenario(t, 2)
	spec := s.claimFor(1)
	second := *spec.Devices.Requests[0].DeepCopy()
	second.Name = "other"
	spec.Devices.Requests = append(spec.Devices.Requests, second)
	s.createTemplate("two-requests", spec)

	pod := s.podFromTemplate("pod", "two-requests")
	pod.Spec.Containers[0].Resources.Claims[0].Request = requestName
	other := s.container("other", "show")
	other.Resources.Claims = []corev1.ResourceClaim{{Name: claimName, Request: "other"}}
	pod.Spec.Containers = append(pod.Spec.Containers, other)
	s.createPod(pod)

	pod = s.waitRunning("pod")
	claim := s.claimOf(pod)
	s.expectSight(pod, "main", s.allocatedTo(claim, requestName))
	s.expectSight(pod, "other", s.allocatedTo(claim, "other"))
}

func TestFourGPUsWithMatchingAttribute(t *testing.T) {
	tests := []struct{ name, attribute string }{
		{"NVLink group", under.driver + "/nvlinkGroup"},
		{"NUMA node", "resource.kubernetes.io/numaNode"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			// All GPUs: four of one group must be free whatever other tests hold.
			s := newScenario(t, len(under.devices))
			group := s.largestGroup(test.attribute)
			if group < 4 {
				skip(t, "no four GPUs of the node have the same %s, the largest group has %d", test.attribute, group)
			}
			s.createTemplate("four", matching(s.claimFor(4), test.attribute))
			s.createPod(s.podFromTemplate("pod", "four"))
			devices := s.expectOwnDevices("pod")
			if len(devices) != 4 {
				t.Errorf("the pod got %d GPUs, want 4", len(devices))
			}
			for _, d := range devices[1:] {
				if got, want := s.attribute(d, test.attribute), s.attribute(devices[0], test.attribute); got != want {
					t.Errorf("%s has the %s %s, %s has %s", d.name, test.name, got, devices[0].name, want)
				}
			}
		})
	}
}

func TestSelectionByCEL(t *testing.T) {
	first := under.devices[0]
	product := ptr.Deref(first.Attributes["productName"].StringValue, "")
	architecture := ptr.Deref(first.Attributes["architecture"].StringValue, "")
	memory := first.Capacity["memory"].Value
	tests := []struct{ name, expression string }{
		{"product name", fmt.Sprintf("device.attributes['%s'].productName == '%s'", under.driver, product)},
		{"part of the product name", fmt.Sprintf("device.attributes['%s'].productName.lowerAscii().contains('nvidia')", under.driver)},
		{"memory", fmt.Sprintf("device.capacity['%s'].memory.compareTo(quantity('%s')) >= 0", under.driver, memory.String())},
		{"architecture", fmt.Sprintf("device.attributes['%s'].architecture == '%s'", under.driver, architecture)},
		{"driver version", fmt.Sprintf("device.attributes['%s'].driverVersion.isGreaterThan(semver('400.0.0'))", under.driver)},
		{"UUID", fmt.Sprintf("device.attributes['%s'].uuid == '%s'", under.driver, first.uuid)},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			count := 1
			if test.name == "UUID" {
				count = len(under.devices) // that very GPU must be free
			}
			s := newScenario(t, count)
			s.createTemplate("selected", s.claimFor(1, test.expression))
			s.createPod(s.podFromTemplate("pod", "selected"))
			devices := s.expectOwnDevices("pod")
			if test.name == "UUID" && devices[0].uuid != first.uuid {
				t.Errorf("the pod got %s, want %s", devices[0].uuid, first.uuid)
			}
		})
	}
}

func TestSelectionThatMatchesNothingStaysPending(t *testing.T) {
	t.Parallel()
	s := newScenario(t, 0)
	s.createTemplate("none", s.claimFor(1, fmt.Sprintf("device.attributes['%s'].productName == 'Voodoo 2'", s.driver)))
	s.createPod(s.podFromTemplate("pod", "none"))
	s.expectUnschedulable("pod")

	// The pod must not be bound by a later attempt either: another pod's whole life on the
	// same node gives the scheduler a reason for one.
	watcher, err := s.client.CoreV1().Pods(s.namespace).Watch(t.Context(), metav1.ListOptions{FieldSelector: "metadata.name=pod"})
	must(t, err, "watch the pending pod")
	defer watcher.Stop()
	s.createPod(s.plainPod("other"))
	s.waitRunning("other")
	s.deletePod("other")
	s.expectUnschedulable("pod")
	s.deletePod("pod")
	for event := range watcher.ResultChan() {
		if pod, ok := event.Object.(*corev1.Pod); ok && pod.Spec.NodeName != "" {
			t.Errorf("the pod was bound to node %s", pod.Spec.NodeName)
		}
		if event.Type == watch.Deleted {
			return
		}
	}
	t.Error("the watch of the pending pod ended before the pod did")
}

func TestClaimForMoreGPUsThanThereAreStaysPending(t *testing.T) {
	t.Parallel()
	s := newScenario(t, 0)
	if len(s.devices) >= resourcev1.AllocationResultsMaxSize {
		skip(t, "a claim cannot ask for more GPUs than the %d of the node", len(s.devices))
	}
	s.createTemplate("too-many", s.claimFor(len(s.devices)+1))
	s.createPod(s.podFromTemplate("pod", "too-many"))
	s.expectUnschedulable("pod")
}

func TestDeletedAndRecreatedPodGetsAGPUAgain(t *testing.T) {
	t.Parallel()
	s := newScenario(t, 1)
	s.createTemplate("one", s.claimFor(1))
	uids := map[string]bool{}
	for range 3 {
		s.createPod(s.podFromTemplate("pod", "one"))
		s.expectOwnDevices("pod")
		pod, err := s.pod(t.Context(), "pod")
		must(t, err, "get the pod")
		uids[string(s.claimOf(pod).UID)] = true
		s.deletePod("pod")
	}
	if len(uids) != 3 {
		t.Errorf("three pods had %d claims, want 3", len(uids))
	}
}
