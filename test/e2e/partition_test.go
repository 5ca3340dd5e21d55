//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/dynamic-resource-allocation/api/metadata"
	"k8s.io/dynamic-resource-allocation/devicemetadata"
	"k8s.io/utils/ptr"
)

// partitionClass is the DeviceClass of MIG partitions.
const partitionClass = "mig.nvidia.com"

// newPartitionScenario is a scenario on a node that offers its GPUs whole and in
// partitions, and its simulator.
func newPartitionScenario(t testing.TB, gpus int) (*scenario, simulator) {
	t.Helper()
	sim := under.onSimulator(t)
	for _, gpu := range under.devices {
		if len(under.partitions) == 0 || under.places(gpu, under.smallest()) == 0 {
			skip(t, "%s of node %s offers no MIG partitions", gpu.name, under.node)
		}
	}
	return newScenario(t, gpus), sim
}

// needProfiles skips the test where a manifest names profiles that the GPUs do not have.
func (s *scenario) needProfiles(profiles ...string) {
	s.Helper()
	for _, profile := range profiles {
		if s.places(s.devices[0], profile) == 0 {
			skip(s, "the manifest is for boards with the profile %s", profile)
		}
	}
}

// partitionsFor is a claim for count partitions that fulfil all CEL expressions.
func (in *installation) partitionsFor(count int, expressions ...string) resourcev1.ResourceClaimSpec {
	spec := in.claimFor(count, expressions...)
	spec.Devices.Requests[0].Exactly.DeviceClassName = partitionClass
	return spec
}

// is is a CEL expression that selects by the value of a text attribute, also where some
// devices lack it.
func (in *installation) is(attribute, value string) string {
	return fmt.Sprintf("device.attributes['%s'].?%s.orValue('') == '%s'", in.driver, attribute, value)
}

// onGPU selects partitions that are to be made on one GPU.
func (in *installation) onGPU(gpu device) string {
	return in.is("parentUUID", gpu.uuid) + " && " + in.is("uuid", "")
}

// smallest is the profile that is published first, with most places on a GPU.
func (in *installation) smallest() string { return in.partitions[0].text("profile") }

// places counts the placements of a profile on one GPU.
func (in *installation) places(gpu device, profile string) int {
	count := 0
	for _, p := range in.partitions {
		if p.text("parentUUID") == gpu.uuid && p.text("profile") == profile {
			count++
		}
	}
	return count
}

// inUse adds to a partition what it has since it was made: its UUID and its capability
// devices. The claim's status must have the same UUID.
func (s *scenario) inUse(claim *resourcev1.ResourceClaim, d device) device {
	s.Helper()
	if !d.ofPartition() {
		return d
	}
	client, found := simulated()
	if !found {
		skip(s, "MICA_SIM_SOCKET is not set, so the capability devices of a partition are unknown")
	}
	state, err := client.State()
	must(s, err, "ask the simulator")
	gi, found := instanceAt(state, d)
	if !found || len(gi.ComputeInstances) != 1 {
		s.Fatalf("claim %s was given the partition %s, and at its place there is %+v", claim.Name, d.name, gi)
	}
	ci := gi.ComputeInstances[0]
	d.uuid = ci.UUID
	d.capabilities = []string{capabilityOf(gi.Capability), capabilityOf(ci.Capability)}
	s.expectInStatus(claim, d)
	return d
}

// expectInStatus waits until the claim's status has the UUID of an allocated device.
func (s *scenario) expectInStatus(claim *resourcev1.ResourceClaim, d device) {
	s.Helper()
	eventually(s, startTimeout, fmt.Sprintf("the status of claim %s has the UUID of %s", claim.Name, d.name), func(ctx context.Context) error {
		now, err := s.client.ResourceV1().ResourceClaims(claim.Namespace).Get(ctx, claim.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, status := range now.Status.Devices {
			if status.Driver != s.driver || status.Pool != s.node || status.Device != d.name || status.Data == nil {
				continue
			}
			var data struct{ UUID string }
			if err := json.Unmarshal(status.Data.Raw, &data); err != nil {
				return fmt.Errorf("%w: its data is %s: %w", errNever, status.Data.Raw, err)
			}
			if data.UUID == d.uuid {
				return nil
			}
		}
		return fmt.Errorf("its devices are %v, want the UUID %s", now.Status.Devices, d.uuid)
	})
}

// expectGone waits until a partition has been unmade.
func (sim simulator) expectGone(partition device) {
	sim.Helper()
	eventually(sim, startTimeout, "the partition "+partition.uuid+" is unmade", func(context.Context) error {
		state, err := sim.control.State()
		if err == nil {
			if gi, found := instanceAt(state, partition); found && (len(gi.ComputeInstances) == 0 || isDevice(gi, partition.uuid)) {
				err = errors.New("it is still there")
			}
		}
		return err
	})
}

// TestPodGetsAPartition has the second partition made after the first is destroyed, often in its place. The driver derives
// UUIDs from the place, so both may have the same.
func TestPodGetsAPartition(t *testing.T) {
	t.Parallel()
	s, sim := newPartitionScenario(t, 1)
	s.createTemplate("one", s.partitionsFor(1, s.is("profile", s.smallest())))
	for range 2 {
		s.createPod(s.podFromTemplate("pod", "one"))
		devices := s.expectOwnDevices("pod")
		expectCount(t, devices, 1)
		s.deletePod("pod")
		sim.expectGone(devices[0])
	}
}

// TestMetadataFileTellsThePartition reads, in a container, what KEP-5304 puts there for
// claims of both kinds.
func TestMetadataFileTellsThePartition(t *testing.T) {
	t.Parallel()
	s, _ := newPartitionScenario(t, 1)
	s.createTemplate("template", s.partitionsFor(1))
	s.createClaim("claim", s.partitionsFor(1))
	pods := map[*corev1.Pod]string{
		s.podFromTemplate("template", "template"): metadata.ResourceClaimTemplateFilePath(s.driver, claimName, requestName),
		s.podSharing("claim", "claim"):            metadata.ResourceClaimFilePath(s.driver, "claim", requestName),
	}
	for pod, path := range pods {
		read := s.container("read", "cat", path)
		read.Resources.Claims = pod.Spec.Containers[0].Resources.Claims
		pod.Spec.InitContainers = []corev1.Container{read}
		s.createPod(pod)
	}
	for pod := range pods {
		partition := s.expectOwnDevices(pod.Name)[0]
		text, err := s.podLog(t.Context(), s.namespace, pod.Name, &corev1.PodLogOptions{Container: "read"})
		must(t, err, "read what the container of pod %s found", pod.Name)
		var found metadata.DeviceMetadata
		must(t, devicemetadata.DecodeMetadataFromStream(json.NewDecoder(strings.NewReader(text)), &found), "decode %s", text)
		if len(found.Requests) != 1 || len(found.Requests[0].Devices) != 1 || found.Requests[0].Name != requestName {
			t.Fatalf("the file of pod %s is not of one device of one request: %s", pod.Name, text)
		}
		described := describe(resourcev1.Device{Name: found.Requests[0].Devices[0].Name, Attributes: found.Requests[0].Devices[0].Attributes})
		if described.name != partition.name || described.uuid != partition.uuid || described.kind != kindPartition {
			t.Errorf("the file has %s with the UUID %s, the pod has %s with %s", described.name, described.uuid, partition.name, partition.uuid)
		}
	}
}

// TestManifestOfNVIDIAsDriver applies a manifest that was written for NVIDIA's driver.
func TestManifestOfNVIDIAsDriver(t *testing.T) {
	t.Parallel()
	s, _ := newPartitionScenario(t, 1)
	s.needProfiles("1g.10gb", "2g.20gb", "3g.40gb")
	s.applyManifest("testdata/nvidia-mig.yaml")
	pod := s.waitRunning("four-partitions")
	partitions := map[string][]device{}
	for _, container := range pod.Spec.Containers {
		partitions[container.Name] = s.expectPartitionOfRequest(pod, container.Name, container.Resources.Claims[0].Request)
	}
	s.expectDistinct(partitions)
	expectOneParent(t, partitions)
}

// expectPartitionOfRequest expects the container to see one partition, that of the request.
func (s *scenario) expectPartitionOfRequest(pod *corev1.Pod, container, request string) []device {
	s.Helper()
	devices := s.allocatedTo(s.claimOf(pod), request)
	if len(devices) != 1 {
		s.Fatalf("request %s got %d partitions, want 1", request, len(devices))
	}
	s.expectSight(pod, container, devices)
	return devices
}

func expectOneParent(t *testing.T, partitions map[string][]device) {
	t.Helper()
	parents := map[string]bool{}
	for _, devices := range partitions {
		for _, d := range devices {
			parents[d.text("parentUUID")] = true
		}
	}
	if len(parents) != 1 {
		t.Errorf("the partitions are of the GPUs %v, want one", parents)
	}
}

// distinct demands that all devices of the claim have different values of the attribute.
func distinct(spec resourcev1.ResourceClaimSpec, attribute string) resourcev1.ResourceClaimSpec {
	spec.Devices.Constraints = append(spec.Devices.Constraints, resourcev1.DeviceConstraint{
		DistinctAttribute: ptr.To(resourcev1.FullyQualifiedName(attribute)),
	})
	return spec
}
