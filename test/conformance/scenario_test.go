//go:build conformance

package conformance

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// claimName is that of a pod's claim in the pod.
const claimName = "gpus"

// probeScript prints what a container sees of GPUs. It needs a POSIX shell and no other program: a plain image has no
// nvidia-smi, which has to come from the container runtime.
const probeScript = `
for f in /dev/nvidia*; do [ -c "$f" ] && echo "device $f"; done
if command -v nvidia-smi >/dev/null 2>&1; then
	nvidia-smi --query-gpu=uuid,driver_version --format=csv,noheader
	nvidia-smi
else
	echo "no nvidia-smi"
fi
if [ -r /proc/driver/nvidia/version ]; then
	while read -r line; do echo "module $line"; done </proc/driver/nvidia/version
fi
echo probed
`

// waitScript keeps a container, and so its claim: the shell waits for input that never comes.
const waitScript = "read -r _\n"

// scenario is the test of a requirement. What it makes lies in a namespace of its own, which goes with it.
type scenario struct {
	*testing.T
	*cluster
	requirement string
	namespace   string
}

// begin makes the namespace.
func (s *scenario) begin() {
	s.Helper()
	namespace, err := s.client.CoreV1().Namespaces().Create(s.Context(), &corev1.Namespace{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "mica-conformance-"},
	}, metav1.CreateOptions{})
	s.must(err, "create a namespace")
	s.namespace = namespace.Name
	s.Cleanup(s.end)
	s.eventually(startTimeout, "the namespace has its default ServiceAccount", func(ctx context.Context) error {
		_, err := s.client.CoreV1().ServiceAccounts(s.namespace).Get(ctx, "default", metav1.GetOptions{})
		return err
	})
}

// sub is a test of a part of the requirement.
func (s *scenario) sub(name string, test func(*scenario)) {
	s.Helper()
	s.Run(name, func(t *testing.T) {
		part := *s
		part.T = t
		test(&part)
	})
}

// createTemplate makes a template for claims of so many requests with so many GPUs each.
func (s *scenario) createTemplate(name string, requests, gpus int) {
	s.Helper()
	template := &resourcev1.ResourceClaimTemplate{ObjectMeta: metav1.ObjectMeta{Name: name}}
	for i := range requests {
		template.Spec.Spec.Devices.Requests = append(template.Spec.Spec.Devices.Requests, resourcev1.DeviceRequest{
			Name: requestOf(i),
			Exactly: &resourcev1.ExactDeviceRequest{
				DeviceClassName: s.driver, AllocationMode: resourcev1.DeviceAllocationModeExactCount, Count: int64(gpus),
			},
		})
	}
	_, err := s.client.ResourceV1().ResourceClaimTemplates(s.namespace).Create(s.Context(), template, metav1.CreateOptions{})
	s.must(err, "create a ResourceClaimTemplate")
}

func requestOf(i int) string { return fmt.Sprintf("gpu-%d", i) }

// end waits until the namespace is gone, and its GPUs are free.
func (s *scenario) end() {
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	err := s.client.CoreV1().Namespaces().Delete(ctx, s.namespace, metav1.DeleteOptions{})
	if err == nil {
		err = until(ctx, func(ctx context.Context) error {
			_, err := s.client.CoreV1().Namespaces().Get(ctx, s.namespace, metav1.GetOptions{})
			if apierrors.IsNotFound(err) {
				return nil
			}
			return errors.Join(err, errors.New("it is still there"))
		})
	}
	if err != nil {
		s.Errorf("delete namespace %s: %v", s.namespace, err)
	}
}

// container looks for GPUs and waits. It has a claim to the named request, or none.
type container struct{ name, request string }

// podSpec is that of a pod on the nodes to test, with a claim from the template if a container has a request.
func (s *scenario) podSpec(template string, containers ...container) corev1.PodSpec {
	spec := corev1.PodSpec{
		Affinity:                      s.onNodes(),
		Tolerations:                   []corev1.Toleration{{Key: gpuTaint, Operator: corev1.TolerationOpExists}},
		RestartPolicy:                 corev1.RestartPolicyNever,
		TerminationGracePeriodSeconds: ptr.To(int64(0)),
	}
	for _, c := range containers {
		added := corev1.Container{Name: c.name, Image: *imageFlag, Command: []string{"sh", "-c", probeScript + waitScript}, Stdin: true}
		if c.request != "" {
			spec.ResourceClaims = []corev1.PodResourceClaim{{Name: claimName, ResourceClaimTemplateName: ptr.To(template)}}
			added.Resources.Claims = []corev1.ResourceClaim{{Name: claimName, Request: c.request}}
		}
		spec.Containers = append(spec.Containers, added)
	}
	return spec
}

func (s *scenario) createPod(name string, spec corev1.PodSpec) {
	s.Helper()
	_, err := s.client.CoreV1().Pods(s.namespace).Create(s.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec,
	}, metav1.CreateOptions{})
	s.must(err, "create pod %s", name)
}

// awaitRunning waits until the pod runs.
func (s *scenario) awaitRunning(name string, within time.Duration) *corev1.Pod {
	s.Helper()
	var pod *corev1.Pod
	s.eventually(within, "pod "+name+" runs", func(ctx context.Context) (err error) {
		if pod, err = s.client.CoreV1().Pods(s.namespace).Get(ctx, name, metav1.GetOptions{}); err != nil {
			return err
		}
		if pod.Status.Phase != corev1.PodRunning {
			return errors.New(summary(pod))
		}
		return nil
	})
	return pod
}

// sightOf waits until a container has printed what it sees.
func (s *scenario) sightOf(pod *corev1.Pod, container string) sight {
	s.Helper()
	var seen sight
	s.eventually(startTimeout, fmt.Sprintf("container %s of pod %s prints what it sees", container, pod.Name), func(ctx context.Context) error {
		log, err := s.client.CoreV1().Pods(s.namespace).GetLogs(pod.Name, &corev1.PodLogOptions{Container: container}).DoRaw(ctx)
		if err != nil {
			return err
		}
		var complete bool
		if seen, complete = readSight(string(log)); !complete {
			return fmt.Errorf("its log is\n%s", log)
		}
		s.Logf("container %s of pod %s on node %s prints\n%s", container, pod.Name, pod.Spec.NodeName, log)
		return nil
	})
	return seen
}

// allocated are the GPUs that a running pod's claim was given, by request.
func (s *scenario) allocated(pod *corev1.Pod) map[string]gpu {
	s.Helper()
	found := map[string]gpu{}
	for _, status := range pod.Status.ResourceClaimStatuses {
		claim, err := s.client.ResourceV1().ResourceClaims(s.namespace).Get(s.Context(), ptr.Deref(status.ResourceClaimName, ""), metav1.GetOptions{})
		s.must(err, "get the claim of pod %s", pod.Name)
		if claim.Status.Allocation == nil {
			s.Fatalf("claim %s of the running pod %s is not allocated", claim.Name, pod.Name)
		}
		for _, result := range claim.Status.Allocation.Devices.Results {
			device, err := s.gpuOf(s.Context(), result)
			s.must(err, "find the device of claim %s", claim.Name)
			found[result.Request] = device
		}
	}
	return found
}

// deletePods waits until the pods are gone, and with them their claims.
func (s *scenario) deletePods(names ...string) {
	s.Helper()
	for _, name := range names {
		s.eventually(startTimeout, "pod "+name+" is gone", func(ctx context.Context) error {
			err := s.client.CoreV1().Pods(s.namespace).Delete(ctx, name, metav1.DeleteOptions{})
			if apierrors.IsNotFound(err) {
				return nil
			}
			return errors.Join(err, errors.New("it is still there"))
		})
	}
}

// until calls check until it returns nil, and returns its last error when the context ends.
func until(ctx context.Context, check func(context.Context) error) error {
	var last error
	for {
		err := check(ctx)
		if err == nil {
			return nil
		}
		if last == nil || ctx.Err() == nil {
			last = err
		}
		select {
		case <-ctx.Done():
			return last
		case <-time.After(pollInterval):
		}
	}
}

func (s *scenario) eventually(within time.Duration, what string, check func(context.Context) error) {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Context(), within)
	defer cancel()
	if err := until(ctx, check); err != nil {
		s.Fatalf("%s: not so after %s: %v", what, within, err)
	}
}

func (s *scenario) must(err error, format string, args ...any) {
	s.Helper()
	if err != nil {
		s.Fatalf("%s: %v", fmt.Sprintf(format, args...), err)
	}
}
