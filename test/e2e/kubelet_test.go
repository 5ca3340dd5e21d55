//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	podresourcesapi "k8s.io/kubelet/pkg/apis/podresources/v1"
	"k8s.io/utils/ptr"

	"github.com/mica-gpu/mica/pkg/node/podresources"
)

// kubeletFiles is the root of kubelet's file system as this process sees it: on the local cluster it is one of its own.
func (m machine) kubeletFiles(t testing.TB) string {
	t.Helper()
	root := "--root-dir=" + filepath.Dir(filepath.Clean(m.pluginsDirectory))
	commands, err := filepath.Glob("/proc/[0-9]*/cmdline")
	must(t, err, "list processes")
	for _, command := range commands {
		arguments, err := os.ReadFile(command)
		if err == nil && slices.Contains(strings.Split(string(arguments), "\x00"), root) {
			return filepath.Join(filepath.Dir(command), "root")
		}
	}
	t.Fatalf("no process has %s: kubelet does not run on this machine", root)
	return ""
}

// expectPodResources asks kubelet as tools do that repair or measure GPUs: List and Get name, for each of these containers
// and no other, the devices by which a ResourceSlice has the UUIDs that nvidia-smi shows there.
func (s *scenario) expectPodResources(pod *corev1.Pod, devices []device, containers ...string) {
	s.Helper()
	m := under.onNode(s)
	socket := filepath.Join(m.kubeletFiles(s), podresources.Directory(m.pluginsDirectory), "kubelet.sock")
	connection, err := grpc.NewClient("unix:"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	must(s, err, "connect to kubelet")
	defer func() { _ = connection.Close() }()
	kubelet := podresourcesapi.NewPodResourcesListerClient(connection)
	got, err := kubelet.Get(s.Context(), &podresourcesapi.GetPodResourcesRequest{PodNamespace: pod.Namespace, PodName: pod.Name})
	must(s, err, "ask kubelet for pod %s", pod.Name)
	list, err := kubelet.List(s.Context(), &podresourcesapi.ListPodResourcesRequest{})
	must(s, err, "ask kubelet for all pods")
	at := slices.IndexFunc(list.GetPodResources(), func(p *podresourcesapi.PodResources) bool {
		return p.GetNamespace() == pod.Namespace && p.GetName() == pod.Name
	})
	if at < 0 {
		s.Fatalf("kubelet lists %d pods without %s", len(list.GetPodResources()), pod.Name)
	}
	want := map[string][]string{}
	for _, container := range containers {
		for _, d := range devices {
			want[container] = append(want[container], d.uuid)
		}
	}
	for verb, of := range map[string]*podresourcesapi.PodResources{"Get": got.GetPodResources(), "List": list.GetPodResources()[at]} {
		if uuids := s.uuidsOf(of); fmt.Sprint(uuids) != fmt.Sprint(want) {
			s.Errorf("by kubelet's %s the containers have %v, want %v", verb, uuids, want)
		}
	}
}

// uuidsOf finds the UUIDs of the devices that kubelet names, per container.
func (s *scenario) uuidsOf(pod *podresourcesapi.PodResources) map[string][]string {
	s.Helper()
	found := map[string][]string{}
	for _, container := range pod.GetContainers() {
		for _, claim := range container.GetDynamicResources() {
			for _, r := range claim.GetClaimResources() {
				d, err := s.deviceByName(s.Context(), r.GetDeviceName())
				if err != nil || r.GetDriverName() != s.driver || r.GetPoolName() != s.node || len(r.GetCdiDevices()) == 0 {
					s.Errorf("kubelet names %s, which is no published device with CDI devices: %v", r, err)
				}
				found[container.GetName()] = append(found[container.GetName()], d.uuid)
			}
		}
	}
	return found
}

// expectKubeletMetrics reads that kubelet counts the driver's claims, and its calls (pkg/kubelet/metrics, DRASubsystem).
func (s *scenario) expectKubeletMetrics() {
	s.Helper()
	raw, err := s.client.CoreV1().RESTClient().Get().Resource("nodes").Name(s.node).SubResource("proxy").Suffix("metrics").DoRaw(s.Context())
	must(s, err, "read kubelet's metrics")
	for _, series := range []string{
		`dra_resource_claims_in_use{driver_name="` + s.driver + `"}`,
		`dra_operations_duration_seconds_count{is_error="false",operation_name="PrepareResources"}`,
		`dra_grpc_operations_duration_seconds_count{driver_name="` + s.driver + `",grpc_status_code="OK",method_name="/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodePrepareResources"}`,
	} {
		if !regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(series) + ` [1-9]`).Match(raw) {
			s.Errorf("kubelet's metrics have no %s above 0", series)
		}
	}
}

// drain evicts a pod as kubectl drain does: it stays, with its devices, as long as a PodDisruptionBudget protects it.
func (s *scenario) drain(name string, labels map[string]string) {
	s.Helper()
	budgets := s.client.PolicyV1().PodDisruptionBudgets(s.namespace)
	_, err := budgets.Create(s.Context(), &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       policyv1.PodDisruptionBudgetSpec{MinAvailable: ptr.To(intstr.FromInt32(1)), Selector: &metav1.LabelSelector{MatchLabels: labels}},
	}, metav1.CreateOptions{})
	must(s, err, "protect pod %s", name)
	eventually(s, startTimeout, "the budget counts the pod", func(ctx context.Context) error {
		// Until then, the API server refuses every eviction.
		budget, err := budgets.Get(ctx, name, metav1.GetOptions{})
		if err == nil && budget.Status.CurrentHealthy != 1 {
			err = fmt.Errorf("its status is %+v", budget.Status)
		}
		return err
	})
	evict := func() error {
		return s.client.PolicyV1().Evictions(s.namespace).Evict(s.Context(), &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: name}})
	}
	before := s.waitRunning(name)
	if err := evict(); !apierrors.IsTooManyRequests(err) {
		s.Errorf("the eviction of a protected pod: got %v, want that it is to be tried again later", err)
	}
	if after := s.waitRunning(name); containerRun(after) != containerRun(before) || after.DeletionTimestamp != nil {
		s.Errorf("a protected pod was disturbed: its container was %s, is %s", containerRun(before), containerRun(after))
	}
	must(s, s.expectClaimOnNode(s.Context(), string(s.claimOf(before).UID)), "look for the claim's files on the node")
	must(s, budgets.Delete(s.Context(), name, metav1.DeleteOptions{}), "lift the budget")
	must(s, evict(), "evict pod %s", name)
	s.waitGone(name)
}
