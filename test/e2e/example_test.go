//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/mica-gpu/mica/test/manifest"
)

const examplesDirectory = "../../examples"

// TestExamples applies the files of examples/ as they are, apart from the image, which is
// the workload's, and the namespace, which is the test's.
func TestExamples(t *testing.T) {
	tests := []struct {
		file  string
		gpus  int
		check func(t *testing.T, s *scenario)
	}{
		{"pod-with-template.yaml", 1, func(t *testing.T, s *scenario) {
			expectCount(t, s.expectOwnDevices("gpu-pod"), 1)
		}},
		{"shared-claim.yaml", 1, func(t *testing.T, s *scenario) {
			both := s.expectOwnDevices("two-containers")
			one := s.expectOwnDevices("one-container")
			expectCount(t, one, 1)
			if both[0].uuid != one[0].uuid {
				t.Errorf("the pods that share a claim see %s and %s", both[0].uuid, one[0].uuid)
			}
		}},
		{"four-gpus-nvlink.yaml", len(under.devices), func(t *testing.T, s *scenario) {
			expectCount(t, s.expectOwnDevices("four-gpus"), 4)
		}},
		{"extended-resource.yaml", 1, func(t *testing.T, s *scenario) {
			expectCount(t, s.expectOwnDevices("classic"), 1)
		}},
		{"first-available.yaml", 2, checkFirstAvailable},
		{"admin-access.yaml", len(under.devices), checkAdminAccess},
		{"mig-partition.yaml", 1, func(t *testing.T, s *scenario) {
			expectCount(t, s.expectOwnDevices("mig-pod"), 1)
		}},
		{"two-partitions.yaml", 1, checkTwoPartitions},
		{"extended-resource-shared.yaml", 1, func(t *testing.T, s *scenario) {
			if share := s.expectOwnDevices("classic-shared"); len(share) != 1 || share[0].kind != kindTimeSlice {
				t.Errorf("the pod got %v, want one share", deviceNames(share))
			}
		}},
		{"time-slice-share.yaml", 2, func(t *testing.T, s *scenario) {
			for _, name := range []string{"share-1", "share-2"} {
				expectCount(t, s.expectOwnDevices(name), 1)
			}
		}},
		{"mps-shares.yaml", 2, func(_ *testing.T, s *scenario) {
			s.expectLimitsIn("large", "mps-client", amounts{"memory": "10Gi", "cores": "60"})
			s.expectLimitsIn("small", "mps-client", amounts{"memory": "4Gi", "cores": "20"})
		}},
	}
	files, err := filepath.Glob(filepath.Join(examplesDirectory, "*.yaml"))
	must(t, err, "list the examples")
	if len(files) != len(tests) {
		t.Errorf("there are %d examples and %d tests of them: %v", len(files), len(tests), files)
	}
	for _, test := range tests {
		t.Run(test.file, func(t *testing.T) {
			t.Parallel()
			s := newScenario(t, test.gpus)
			switch test.file {
			case "admin-access.yaml":
				holdOneGPU(s)
			case "mig-partition.yaml", "two-partitions.yaml":
				s.needProfiles("1g.10gb")
			}
			s.applyManifest(filepath.Join(examplesDirectory, test.file))
			test.check(t, s)
		})
	}
}

func expectCount(t *testing.T, devices []device, want int) {
	t.Helper()
	if len(devices) != want {
		t.Errorf("the pod got %d GPUs, want %d", len(devices), want)
	}
}

// checkFirstAvailable expects the first alternative on GPUs that fulfil it, else the second.
func checkFirstAvailable(t *testing.T, s *scenario) {
	devices := s.expectOwnDevices("first-available")
	pod, err := s.pod(t.Context(), "first-available")
	must(t, err, "get the pod")
	hundred := quantityOf("100Gi")
	want, count := "gpu/two-medium", 2
	if memory := s.devices[0].Capacity["memory"].Value; memory.Cmp(hundred) >= 0 {
		want, count = "gpu/one-big", 1
	}
	expectCount(t, devices, count)
	for _, result := range s.claimOf(pod).Status.Allocation.Devices.Results {
		if result.Request != want {
			t.Errorf("device %s was allocated for %s, want %s", result.Device, result.Request, want)
		}
	}
}

func checkTwoPartitions(t *testing.T, s *scenario) {
	pod := s.waitRunning("two-partitions")
	partitions := map[string][]device{
		"small": s.expectPartitionOfRequest(pod, "small", "small"),
		"large": s.expectPartitionOfRequest(pod, "large", "large"),
	}
	s.expectDistinct(partitions)
	expectOneParent(t, partitions)
	small, large := partitions["small"][0].Capacity["memory"].Value, partitions["large"][0].Capacity["memory"].Value
	if small.Cmp(large) >= 0 {
		t.Errorf("the small partition has the memory %s, the large one %s", &small, &large)
	}
}

// holdOneGPU runs a pod whose GPU the admin must see and not disturb.
func holdOneGPU(s *scenario) {
	s.Helper()
	s.createTemplate("one", s.claimFor(1))
	s.createPod(s.podFromTemplate("user", "one"))
	s.expectOwnDevices("user")
}

func checkAdminAccess(t *testing.T, s *scenario) {
	before, err := s.pod(t.Context(), "user")
	must(t, err, "get the user's pod")
	seen := s.expectOwnDevices("gpu-monitor")
	expectCount(t, seen, len(s.devices))

	// When the admin leaves, the user's claim stays prepared.
	s.deletePod("gpu-monitor")
	after := s.waitRunning("user")
	if containerRun(before) != containerRun(after) {
		t.Errorf("the pod that uses a GPU was disturbed by admin access: its container was %s, is %s", containerRun(before), containerRun(after))
	}
	must(t, s.expectClaimOnNode(t.Context(), string(s.claimOf(after).UID)), "look for the claim's files on the node")
}

// containerRun identifies a run of the pod's first container.
func containerRun(pod *corev1.Pod) string {
	if len(pod.Status.ContainerStatuses) == 0 {
		return ""
	}
	status := pod.Status.ContainerStatuses[0]
	return fmt.Sprintf("%s (restarts: %d)", status.ContainerID, status.RestartCount)
}

// applyManifest creates the objects of the file in the scenario's namespace. Labels of a
// namespace in the file go to the scenario's.
func (s *scenario) applyManifest(file string) {
	s.Helper()
	content, err := os.ReadFile(file)
	must(s, err, "read the manifest")
	objects, err := manifest.Read(content)
	must(s, err, "decode %s", file)
	for _, object := range objects {
		must(s, s.apply(object), "apply %s", file)
	}
}

func (s *scenario) apply(object runtime.Object) error {
	ctx, options := s.Context(), metav1.CreateOptions{}
	var err error
	switch object := object.(type) {
	case *corev1.Namespace:
		return s.labelNamespace(ctx, object.Labels)
	case *corev1.Pod:
		object.Namespace = s.namespace
		s.runHere(&object.Spec)
		_, err = s.client.CoreV1().Pods(s.namespace).Create(ctx, object, options)
	case *appsv1.Deployment:
		object.Namespace = s.namespace
		s.runHere(&object.Spec.Template.Spec)
		_, err = s.client.AppsV1().Deployments(s.namespace).Create(ctx, object, options)
	case *resourcev1.ResourceClaim:
		object.Namespace = s.namespace
		_, err = s.client.ResourceV1().ResourceClaims(s.namespace).Create(ctx, object, options)
	case *resourcev1.ResourceClaimTemplate:
		object.Namespace = s.namespace
		_, err = s.client.ResourceV1().ResourceClaimTemplates(s.namespace).Create(ctx, object, options)
	default:
		err = fmt.Errorf("the tests cannot apply a %T", object)
	}
	return err
}

// runHere lets pods of a manifest run on the tested node, with its image.
func (s *scenario) runHere(pod *corev1.PodSpec) {
	pod.NodeSelector = map[string]string{corev1.LabelHostname: s.hostname}
	for i := range pod.Containers {
		container := &pod.Containers[i]
		container.Image, container.Command, container.Args = s.image, nil, []string{verbOf(container.Name)}
	}
}

// verbOf lets containers whose name says so be clients of MPS.
func verbOf(container string) string {
	if strings.HasPrefix(container, "mps-") {
		return "mps"
	}
	return "show"
}

func (s *scenario) labelNamespace(ctx context.Context, labels map[string]string) error {
	patch, err := mergePatch(map[string]any{"metadata": map[string]any{"labels": labels}})
	if err != nil {
		return err
	}
	_, err = s.client.CoreV1().Namespaces().Patch(ctx, s.namespace, types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}
