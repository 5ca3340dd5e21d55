//go:build e2e

package e2e

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"
)

// The DeviceClasses of shares, and the resource by which a pod asks for one without a claim.
const (
	timeSliceClass          = "timeslice.nvidia.com"
	mpsClass                = "mps.nvidia.com"
	timeSlicePartitionClass = "mig-timeslice.nvidia.com"
	mpsPartitionClass       = "mig-mps.nvidia.com"

	wholeResource  = "nvidia.com/gpu"
	sharedResource = "nvidia.com/gpu.shared"
)

// defaultShares is how many shares of default size the policy of the chart makes of a GPU.
const defaultShares = 4

// amounts are how much of a device's capacities a claim wants, by name.
type amounts map[resourcev1.QualifiedName]string

// sharesFor is a claim for count shares of the class's devices, each of these amounts.
func (in *installation) sharesFor(class string, count int, want amounts, expressions ...string) resourcev1.ResourceClaimSpec {
	spec := in.claimFor(count, expressions...)
	exactly := spec.Devices.Requests[0].Exactly
	exactly.DeviceClassName = class
	if len(want) > 0 {
		exactly.Capacity = &resourcev1.CapacityRequirements{Requests: map[resourcev1.QualifiedName]resource.Quantity{}}
		for name, amount := range want {
			exactly.Capacity.Requests[name] = quantityOf(amount)
		}
	}
	return spec
}

// of selects the shapes of one GPU.
func (in *installation) of(gpu device) string { return in.is("uuid", gpu.uuid) }

// newShareScenario is a scenario on a node that offers its GPUs in shares.
func newShareScenario(t testing.TB, gpus int) (*scenario, simulator) {
	t.Helper()
	sim := under.onSimulator(t)
	for _, kind := range []string{kindTimeSlice, kindMPS} {
		if len(ofKind(under.shares, kind)) != len(under.devices) {
			skip(t, "node %s does not offer each GPU as %s", under.node, kind)
		}
	}
	return newScenario(t, gpus), sim
}

// ofPartition reports whether the device is a partition, for one claim or in shares.
func (d device) ofPartition() bool { return strings.HasPrefix(d.kind, kindPartition) }

// shared reports whether several claims may have the device.
func (d device) shared() bool { return ptr.Deref(d.AllowMultipleAllocations, false) }

// unshared is the name of what the device has shares of.
func (d device) unshared() string {
	return strings.TrimSuffix(strings.TrimSuffix(d.name, "-"+kindTimeSlice), "-"+kindMPS)
}

// shareOf is the pod's result, which must be the only one of its claim.
func (s *scenario) shareOf(pod string) resourcev1.DeviceRequestAllocationResult {
	s.Helper()
	results := s.claimOf(s.waitRunning(pod)).Status.Allocation.Devices.Results
	if len(results) != 1 || ptr.Deref(results[0].ShareID, "") == "" {
		s.Fatalf("pod %s has %+v, want one share", pod, results)
	}
	return results[0]
}

// TestExtendedResourcesTellSharesFromGPUs runs pods without claims: one with a share while
// all GPUs are shared, and one for a whole GPU that has to wait until one is free.
func TestExtendedResourcesTellSharesFromGPUs(t *testing.T) {
	s, _ := newShareScenario(t, len(under.devices))
	s.createTemplate("a-share-of-each", distinct(s.sharesFor(timeSliceClass, len(s.devices), nil), s.driver+"/uuid"))
	s.createPod(s.podFromTemplate("on-each", "a-share-of-each"))
	expectCount(t, s.expectOwnDevices("on-each"), len(s.devices))

	s.createPod(s.podAsking("shared", sharedResource))
	s.createPod(s.podAsking("whole", wholeResource))
	if shared := s.expectOwnDevices("shared"); len(shared) != 1 || shared[0].kind != kindTimeSlice {
		t.Errorf("%s: 1 got %v", sharedResource, deviceNames(shared))
	}
	s.expectUnschedulable("whole")
	s.deletePod("shared")
	s.deletePod("on-each")
	if whole := s.expectOwnDevices("whole"); len(whole) != 1 || whole[0].kind != kindGPU {
		t.Errorf("%s: 1 got %v", wholeResource, deviceNames(whole))
	}
}

// podAsking is a pod that asks for an extended resource and names no claim.
func (in *installation) podAsking(name string, wanted corev1.ResourceName) *corev1.Pod {
	pod := in.plainPod(name)
	pod.Spec.Containers[0].Resources.Limits = corev1.ResourceList{wanted: quantityOf("1")}
	return pod
}

// TestMPSShares fills a GPU with shares of different size that see their limits.
func TestMPSShares(t *testing.T) {
	s, sim := newShareScenario(t, len(under.devices))
	gpu := s.devices[0]
	wanted := map[string]amounts{
		"big":   {"memory": "30Gi", "cores": "40"},
		"small": {"memory": "20Gi", "cores": "25"},
		"other": {"memory": "20Gi", "cores": "25"},
		"late":  {"memory": "20Gi", "cores": "5"},
	}
	for name, want := range wanted {
		s.createTemplate(name, s.sharesFor(mpsClass, 1, want, s.of(gpu)))
	}
	for _, name := range []string{"big", "small", "other"} {
		s.createPod(s.clientFromTemplate(name, name))
		s.expectLimits(name, wanted[name])
	}
	s.createPod(s.clientFromTemplate("late", "late"))
	s.expectUnschedulable("late")
	if mode := sim.gpu(gpu).ComputeMode; mode != exclusiveProcess {
		t.Errorf("the GPU under MPS has the compute mode %s", mode)
	}
	s.deletePod("small")
	s.expectLimits("late", wanted["late"])
	for _, name := range []string{"big", "other", "late"} {
		s.expectConnected(name)
		s.deletePod(name)
	}
	s.expectUnshared()
}

// clientFromTemplate is a pod whose container is a client of MPS for as long as it runs.
func (in *installation) clientFromTemplate(name, template string) *corev1.Pod {
	pod := in.podFromTemplate(name, template)
	pod.Spec.Containers[0].Args = []string{"mps"}
	return pod
}

// TestShapesAtOnce has a whole GPU, one in partitions, one in time-slices and one under MPS
// at the same time, and then each of these GPUs in the next shape.
func TestShapesAtOnce(t *testing.T) {
	s, _ := newShareScenario(t, len(under.devices))
	shapes := []struct {
		name string
		spec func(gpu device) resourcev1.ResourceClaimSpec
	}{
		{"whole", func(gpu device) resourcev1.ResourceClaimSpec { return s.claimFor(1, s.of(gpu)) }},
		{"partition", func(gpu device) resourcev1.ResourceClaimSpec { return s.partitionsFor(1, s.onGPU(gpu)) }},
		{"timeslice", func(gpu device) resourcev1.ResourceClaimSpec {
			return s.sharesFor(timeSliceClass, 1, nil, s.of(gpu))
		}},
		{"mps", func(gpu device) resourcev1.ResourceClaimSpec { return s.sharesFor(mpsClass, 1, nil, s.of(gpu)) }},
	}
	if len(s.devices) < len(shapes) {
		skip(t, "it needs %d GPUs", len(shapes))
	}
	for round := range 2 {
		used := map[string][]device{}
		for i, shape := range shapes {
			name := fmt.Sprintf("%s-%d", shape.name, round)
			s.createTemplate(name, shape.spec(s.devices[(i+round)%len(shapes)]))
			s.createPod(s.podFromTemplate(name, name))
		}
		for _, shape := range shapes {
			name := fmt.Sprintf("%s-%d", shape.name, round)
			used[name] = s.expectOwnDevices(name)
			expectCount(t, used[name], 1)
		}
		s.expectDistinct(used)
		eventually(t, goneTimeout, "the pods are gone", s.deletePods)
	}
	s.expectUnshared()
	s.expectUnpartitioned()
}
