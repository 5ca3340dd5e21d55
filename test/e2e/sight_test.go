//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// endOfShow is the last line that the workload image prints.
const endOfShow = "shown"

// gpuMajor is the major device number of NVIDIA's GPUs (Documentation/admin-guide/devices.txt
// of Linux).
const gpuMajor = 195

// sight is what a container sees of GPUs: its /dev/nvidia<minor> and the capability devices
// of partitions with their numbers, and the UUIDs of GPUs and partitions that
// `nvidia-smi -L` prints, all sorted.
type sight struct {
	devices []string
	uuids   []string
}

func (s sight) String() string {
	return fmt.Sprintf("device nodes [%s], nvidia-smi -L [%s]", strings.Join(s.devices, ", "), strings.Join(s.uuids, ", "))
}

func (s sight) equal(other sight) bool {
	return slices.Equal(s.devices, other.devices) && slices.Equal(s.uuids, other.uuids)
}

// sightOf is what a container sees that was given exactly these devices. Of a partition's
// GPU it sees the device node and the name as well; what else is on it, it does not see.
func sightOf(devices []device) sight {
	var seen sight
	for _, d := range devices {
		seen.devices = append(seen.devices, fmt.Sprintf("/dev/nvidia%d %d:%d", d.minor, gpuMajor, d.minor))
		seen.devices = append(seen.devices, d.capabilities...)
		seen.uuids = append(seen.uuids, d.uuid)
		if d.ofPartition() {
			seen.uuids = append(seen.uuids, d.text("parentUUID"))
		}
	}
	return seen.sorted()
}

// sorted is the same with nothing twice: several partitions have one GPU.
func (s sight) sorted() sight {
	slices.Sort(s.devices)
	slices.Sort(s.uuids)
	return sight{devices: slices.Compact(s.devices), uuids: slices.Compact(s.uuids)}
}

var (
	deviceLine     = regexp.MustCompile(`(?m)^device (/dev/nvidia\d+ \d+:\d+)$`)
	capabilityLine = regexp.MustCompile(`(?m)^device /dev/nvidia-caps/(nvidia-cap\d+) \d+:(\d+)$`)
	gpuLine        = regexp.MustCompile(`(?m)^GPU \d+: .+ \(UUID: (GPU-[0-9a-f-]+)\)$`)
	partitionLine  = regexp.MustCompile(`(?m)^  MIG .+ \(UUID: (MIG-[0-9a-f-]+)\)$`)
)

// capability is how a capability device is written in a sight: its major number is the
// node's own choice.
func capability(name, minor string) string { return name + " *:" + minor }

// readSight reads the output of the workload image's show and once.
func readSight(log string) sight {
	var seen sight
	for _, match := range deviceLine.FindAllStringSubmatch(log, -1) {
		seen.devices = append(seen.devices, match[1])
	}
	for _, match := range capabilityLine.FindAllStringSubmatch(log, -1) {
		seen.devices = append(seen.devices, capability(match[1], match[2]))
	}
	for _, line := range []*regexp.Regexp{gpuLine, partitionLine} {
		for _, match := range line.FindAllStringSubmatch(log, -1) {
			seen.uuids = append(seen.uuids, match[1])
		}
	}
	return seen.sorted()
}

func (in *installation) podLog(ctx context.Context, namespace, pod string, options *corev1.PodLogOptions) (string, error) {
	log, err := in.client.CoreV1().Pods(namespace).GetLogs(pod, options).DoRaw(ctx)
	return string(log), err
}

// expectSight waits until the container has printed what it sees, and fails unless that is
// exactly the devices.
func (s *scenario) expectSight(pod *corev1.Pod, container string, devices []device) {
	s.Helper()
	if len(devices) == 0 {
		s.Fatalf("pod %s has no allocated device", pod.Name)
	}
	want := sightOf(devices)
	eventually(s, startTimeout, fmt.Sprintf("container %s of pod %s sees exactly its claim's devices", container, pod.Name), func(ctx context.Context) error {
		log, err := s.podLog(ctx, pod.Namespace, pod.Name, &corev1.PodLogOptions{Container: container})
		if err != nil {
			return err
		}
		if !strings.Contains(log, "\n"+endOfShow+"\n") {
			return fmt.Errorf("its log has no line %q yet:\n%s", endOfShow, log)
		}
		if seen := readSight(log); !seen.equal(want) {
			return fmt.Errorf("%w: it sees %s, want %s; its log:\n%s", errNever, seen, want, log)
		}
		return nil
	})
}

// claimOf returns the pod's claim: the one it names, the one made from its template, or
// the one that the scheduler made for its extended resources.
func (s *scenario) claimOf(pod *corev1.Pod) *resourcev1.ResourceClaim {
	s.Helper()
	name, err := claimNameOf(pod)
	must(s, err, "find the claim of pod %s", pod.Name)
	claim, err := s.client.ResourceV1().ResourceClaims(pod.Namespace).Get(s.Context(), name, metav1.GetOptions{})
	must(s, err, "get the claim of pod %s", pod.Name)
	return claim
}

func claimNameOf(pod *corev1.Pod) (string, error) {
	if status := pod.Status.ExtendedResourceClaimStatus; status != nil {
		return status.ResourceClaimName, nil
	}
	for _, claim := range pod.Spec.ResourceClaims {
		if claim.ResourceClaimName != nil {
			return *claim.ResourceClaimName, nil
		}
	}
	for _, status := range pod.Status.ResourceClaimStatuses {
		if status.ResourceClaimName != nil {
			return *status.ResourceClaimName, nil
		}
	}
	return "", errors.New("neither its spec nor its status names one")
}

// allocated returns the devices that the claim was given.
func (s *scenario) allocated(claim *resourcev1.ResourceClaim) []device {
	s.Helper()
	return s.allocatedTo(claim, "")
}

// allocatedTo returns the devices that one of the claim's requests was given; "" means all.
func (s *scenario) allocatedTo(claim *resourcev1.ResourceClaim, request string) []device {
	s.Helper()
	if claim.Status.Allocation == nil {
		s.Fatalf("claim %s is not allocated", claim.Name)
	}
	var devices []device
	for _, result := range claim.Status.Allocation.Devices.Results {
		if request != "" && result.Request != request {
			continue
		}
		d, err := s.deviceByName(s.Context(), result.Device)
		if result.Driver != s.driver || result.Pool != s.node || err != nil {
			s.Fatalf("claim %s was given %s/%s/%s, which is no device of driver %s on node %s: %v", claim.Name, result.Driver, result.Pool, result.Device, s.driver, s.node, err)
		}
		devices = append(devices, s.inUse(claim, d))
	}
	return devices
}

// expectOwnDevices waits until the pod runs, and returns the devices of its claim after
// every container has shown that it sees exactly those.
func (s *scenario) expectOwnDevices(name string) []device {
	s.Helper()
	pod := s.waitRunning(name)
	devices := s.allocated(s.claimOf(pod))
	for _, container := range pod.Spec.Containers {
		s.expectSight(pod, container.Name, devices)
	}
	return devices
}

// expectDistinct fails when two of the groups share a GPU.
func (s *scenario) expectDistinct(groups map[string][]device) {
	s.Helper()
	owner := map[string]string{}
	for name, devices := range groups {
		for _, d := range devices {
			if other, taken := owner[d.uuid]; taken {
				s.Errorf("%s and %s both have %s", name, other, d.uuid)
			}
			owner[d.uuid] = name
		}
	}
}
