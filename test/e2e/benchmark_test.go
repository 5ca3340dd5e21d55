//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/watch"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"

	"github.com/mica-gpu/mica/test/fixture/kubelet"
)

// BenchmarkPodsWithGPUs measures how long a pod for every GPU takes from the first request
// until all run, against the same pods without claims. The two alternate in one run, so
// that other load on the machine affects both. The time that claims add is split by cause: their
// creation and their allocation are Kubernetes', and so is what kubelet does around the driver's
// part, which the plugin's metrics have.
func BenchmarkPodsWithGPUs(b *testing.B) {
	s := newScenario(b, len(under.devices))
	s.createTemplate("one", s.claimFor(1))
	with := func(name string) *corev1.Pod { return s.podFromTemplate(name, "one") }
	without := s.plainPod
	s.timeUndisturbed("warm-up", with) // images are unpacked, caches are filled

	var withClaims, withoutClaims []burst
	for b.Loop() {
		for round := range benchRounds(b) {
			withoutClaims = append(withoutClaims, s.timeUndisturbed(fmt.Sprintf("without-%d", round), without))
			withClaims = append(withClaims, s.timeUndisturbed(fmt.Sprintf("with-%d", round), with))
		}
	}
	claims, plain := reportBursts(b, "with-claims", withClaims), reportBursts(b, "without-claims", withoutClaims)
	b.ReportMetric(milliseconds(claims.claimed), "claim-creation-ms")
	b.ReportMetric(milliseconds(claims.bound-claims.claimed), "allocation-ms")
	b.ReportMetric(milliseconds(claims.prepared), "driver-prepare-ms")
	b.ReportMetric(milliseconds(claims.running-claims.bound-(plain.running-plain.bound)), "added-once-bound-ms")
	b.ReportMetric(float64(claims.running)/float64(plain.running), "ratio")
	b.ReportMetric(float64(claims.running-claims.bound)/float64(plain.running-plain.bound), "ratio-once-bound")
}

// burst is how long it took until all pods had their claims, were bound and ran.
// A pod without claims has them at once.
type burst struct {
	claimed, bound, running time.Duration
	// prepared is what the driver took for each claim, on average.
	prepared time.Duration
}

// reportBursts returns the medians.
func reportBursts(b *testing.B, name string, bursts []burst) burst {
	middle := func(of func(burst) time.Duration) time.Duration {
		var all []time.Duration
		for _, one := range bursts {
			all = append(all, of(one))
		}
		return median(all)
	}
	b.Logf("%s: %+v", name, bursts)
	medians := burst{
		claimed:  middle(func(one burst) time.Duration { return one.claimed }),
		bound:    middle(func(one burst) time.Duration { return one.bound }),
		running:  middle(func(one burst) time.Duration { return one.running }),
		prepared: middle(func(one burst) time.Duration { return one.prepared }),
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(milliseconds(medians.running), name+"-ms")
	b.ReportMetric(milliseconds(medians.bound), name+"-bound-ms")
	return medians
}

// timeUndisturbed repeats a burst in which the node authorizer made kubelet wait: that time
// belongs to no driver. How often that was is in the log.
func (s *scenario) timeUndisturbed(prefix string, build func(name string) *corev1.Pod) burst {
	s.Helper()
	const attempts = 5
	for attempt := range attempts {
		before, err := s.refused(s.Context())
		must(s, err, "read the events")
		taken := s.timeBurst(fmt.Sprintf("%s-%d", prefix, attempt), build)
		after, err := s.refused(s.Context())
		must(s, err, "read the events")
		if len(after) == len(before) {
			return taken
		}
		s.Logf("%s took %s because the node authorizer refused kubelet a claim; once more", prefix, taken.running)
	}
	s.Fatalf("the node authorizer refused kubelet a claim in each of %d attempts of %s", attempts, prefix)
	return burst{}
}

// timeBurst applies a pod a GPU together and returns the time until the last one has come
// how far. It returns after the pods are gone again.
func (s *scenario) timeBurst(prefix string, build func(name string) *corev1.Pod) burst {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Context(), retryTimeout)
	defer cancel()
	watcher, err := s.client.CoreV1().Pods(s.namespace).Watch(ctx, metav1.ListOptions{LabelSelector: "burst=" + prefix})
	must(s, err, "watch the pods")
	defer watcher.Stop()
	before := s.prepared()
	start := time.Now()
	all := names(prefix, len(s.devices))
	errs := make(chan error, len(all))
	for _, name := range all {
		pod := build(name)
		pod.Labels = map[string]string{"burst": prefix}
		go func() {
			_, err := s.client.CoreV1().Pods(s.namespace).Create(ctx, pod, metav1.CreateOptions{})
			errs <- err
		}()
	}
	for range all {
		must(s, <-errs, "create the pods")
	}
	var taken burst
	stages := []*stage{
		{pods: sets.New[string](), reached: hasClaims, last: &taken.claimed},
		{pods: sets.New[string](), reached: func(pod *corev1.Pod) bool { return pod.Spec.NodeName != "" }, last: &taken.bound},
		{pods: sets.New[string](), reached: func(pod *corev1.Pod) bool { return pod.Status.Phase == corev1.PodRunning }, last: &taken.running},
	}
	running := stages[len(stages)-1]
	for len(running.pods) < len(all) {
		event, open := <-watcher.ResultChan()
		if !open {
			s.Fatalf("only %d of %d pods run after %s", len(running.pods), len(all), time.Since(start))
		}
		if pod, ok := event.Object.(*corev1.Pod); ok && event.Type == watch.Modified {
			for _, stage := range stages {
				stage.see(pod, time.Since(start))
			}
		}
	}
	taken.prepared = (s.prepared() - before) / time.Duration(len(all))
	eventually(s, goneTimeout, "the pods are gone", s.deletePods)
	eventually(s, goneTimeout, "their claims are gone", s.expectNoClaims)
	return taken
}

// stage is how far pods come.
type stage struct {
	reached func(*corev1.Pod) bool
	pods    sets.Set[string]
	// last is when the last of the pods came there.
	last *time.Duration
}

func (s *stage) see(pod *corev1.Pod, after time.Duration) {
	if s.reached(pod) && !s.pods.Has(pod.Name) {
		s.pods.Insert(pod.Name)
		*s.last = after
	}
}

func hasClaims(pod *corev1.Pod) bool {
	return len(pod.Spec.ResourceClaims) > 0 && len(pod.Status.ResourceClaimStatuses) == len(pod.Spec.ResourceClaims)
}

// prepared is how long the plugin has prepared claims since it began, each from kubelet's
// request to the answer.
func (s *scenario) prepared() time.Duration {
	s.Helper()
	plugin, err := s.readyPlugin(s.Context())
	must(s, err, "find the plugin")
	seconds, err := s.metric(s.Context(), plugin, `mica_claim_operation_duration_seconds_sum{operation="prepare",result="ok"}`)
	must(s, err, "read how long the plugin has prepared claims")
	return time.Duration(seconds * float64(time.Second))
}

func benchRounds(b *testing.B) int {
	text := os.Getenv("MICA_E2E_BENCH_ROUNDS")
	if text == "" {
		return 5
	}
	rounds, err := strconv.Atoi(text)
	if err != nil || rounds < 1 {
		b.Fatalf("MICA_E2E_BENCH_ROUNDS is %q, want a number from 1 on", text)
	}
	return rounds
}

// reportTimes reports the median of durations and the longest one.
func reportTimes(b *testing.B, name string, times []time.Duration) {
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(milliseconds(median(times)), name+"-ms")
	b.ReportMetric(milliseconds(slices.Max(times)), "worst-"+name+"-ms")
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

func median(durations []time.Duration) time.Duration {
	sorted := slices.Sorted(slices.Values(durations))
	middle := len(sorted) / 2
	if len(sorted)%2 == 1 {
		return sorted[middle]
	}
	return (sorted[middle-1] + sorted[middle]) / 2
}

// BenchmarkPrepare measures what kubelet waits for: NodePrepareResources over the plugin's
// own socket, with living claims that the plugin reads from the API server, one after the
// other and a claim for every GPU at once.
func BenchmarkPrepare(b *testing.B) {
	s := newScenario(b, len(under.devices))
	claims := s.allocateEveryGPU()
	plugin := s.dialPlugin()

	single, burst := s.timePreparations(b, plugin, claims)
	reportTimes(b, "one-claim", single)
	reportTimes(b, "all-gpus-at-once", burst)
}

// timePreparations measures the preparation of each claim, and that of all at once.
func (s *scenario) timePreparations(b *testing.B, plugin pluginSocket, claims []*drapb.Claim) (single, burst []time.Duration) {
	b.Helper()
	for b.Loop() {
		for _, claim := range claims {
			one := []*drapb.Claim{claim}
			single = append(single, s.timeEach(one, plugin.prepare))
			s.timeEach(one, plugin.unprepare)
		}
		burst = append(burst, s.timeEach(claims, plugin.prepare))
		s.timeEach(claims, plugin.unprepare)
	}
	return single, burst
}

// allocateEveryGPU makes a claim for each GPU and allocates it as the scheduler would, so
// that no pod and no kubelet takes part.
func (s *scenario) allocateEveryGPU() []*drapb.Claim {
	s.Helper()
	var claims []*drapb.Claim
	for _, device := range s.devices {
		claims = append(claims, s.allocate("bench-"+device.name, device, nil))
	}
	return claims
}

// allocate makes a claim that has a device, or the share of it with an ID.
func (s *scenario) allocate(name string, device device, share *types.UID) *drapb.Claim {
	s.Helper()
	claim := s.createClaim(name, s.claimFor(1))
	result := resourcev1.DeviceRequestAllocationResult{
		Request: claim.Spec.Devices.Requests[0].Name,
		Driver:  s.driver, Pool: s.node, Device: device.name, ShareID: share,
	}
	for capacity, value := range device.Capacity {
		if share != nil && value.RequestPolicy != nil {
			if result.ConsumedCapacity == nil {
				result.ConsumedCapacity = map[resourcev1.QualifiedName]resource.Quantity{}
			}
			result.ConsumedCapacity[capacity] = *value.RequestPolicy.Default
		}
	}
	claim.Status.Allocation = &resourcev1.AllocationResult{Devices: resourcev1.DeviceAllocationResult{
		Results: []resourcev1.DeviceRequestAllocationResult{result},
	}}
	_, err := s.client.ResourceV1().ResourceClaims(s.namespace).UpdateStatus(s.Context(), claim, metav1.UpdateOptions{})
	must(s, err, "allocate %s", device.name)
	return &drapb.Claim{Namespace: claim.Namespace, Name: claim.Name, Uid: string(claim.UID)}
}

// dialPlugin connects to the socket that kubelet uses.
func (s *scenario) dialPlugin() pluginSocket {
	s.Helper()
	machine := s.onNode(s)
	root, err := machine.pluginRoot(s.Context())
	must(s, err, "find the plugin's directory")
	pod, err := s.readyPlugin(s.Context())
	must(s, err, "find the plugin")
	// The way through /proc/PID/root can be longer than a socket's path may be.
	directory, err := os.Open(filepath.Join(root, s.pluginsDirectory, s.driver))
	must(s, err, "open the plugin's directory")
	socket := fmt.Sprintf("unix:///proc/self/fd/%d/dra-%s.sock", directory.Fd(), pod.UID)
	connection, err := grpc.NewClient(socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	must(s, err, "dial the plugin")
	s.Cleanup(func() { must(s, errors.Join(connection.Close(), directory.Close()), "hang up") })
	return pluginSocket{drapb.NewDRAPluginClient(connection)}
}

// pluginSocket calls the plugin as kubelet does.
type pluginSocket struct{ client drapb.DRAPluginClient }

func (p pluginSocket) prepare(ctx context.Context, claim *drapb.Claim) error {
	response, err := p.client.NodePrepareResources(ctx, &drapb.NodePrepareResourcesRequest{Claims: []*drapb.Claim{claim}})
	if err != nil {
		return fmt.Errorf("prepare %s: %w", claim.Name, err)
	}
	if result := response.Claims[claim.Uid]; result.GetError() != "" || len(result.GetDevices()) != 1 {
		return fmt.Errorf("prepare %s: %d devices, error %q, want one device", claim.Name, len(result.GetDevices()), result.GetError())
	}
	return nil
}

func (p pluginSocket) unprepare(ctx context.Context, claim *drapb.Claim) error {
	response, err := p.client.NodeUnprepareResources(ctx, &drapb.NodeUnprepareResourcesRequest{Claims: []*drapb.Claim{claim}})
	if err != nil {
		return fmt.Errorf("unprepare %s: %w", claim.Name, err)
	}
	if text := response.Claims[claim.Uid].GetError(); text != "" {
		return fmt.Errorf("unprepare %s: %s", claim.Name, text)
	}
	return nil
}

// timeEach makes a call for every claim at once and measures until the last has returned.
func (s *scenario) timeEach(claims []*drapb.Claim, call func(context.Context, *drapb.Claim) error) time.Duration {
	s.Helper()
	start := time.Now()
	var group errgroup.Group
	for _, claim := range claims {
		group.Go(func() error { return call(s.Context(), claim) })
	}
	must(s, group.Wait(), "call the plugin")
	return time.Since(start)
}

const benchDriver = "bench.gpu.nvidia.com"

// BenchmarkStart measures the time from the start of a plugin process until the API server
// has the node's devices, without kubelet's registration, and the size of the binary. The process has a driver name and directories of its own, so that
// the installed plugin goes on undisturbed.
func BenchmarkStart(b *testing.B) {
	binary := os.Getenv("MICA_PLUGIN_BINARY")
	if binary == "" {
		skip(b, "MICA_PLUGIN_BINARY does not name the plugin's binary")
	}
	info, err := os.Stat(binary)
	must(b, err, "look at the plugin's binary")
	var taken []time.Duration
	for b.Loop() {
		taken = append(taken, under.timeStart(b, binary))
	}
	reportTimes(b, "start-to-published", taken)
	b.ReportMetric(float64(info.Size())/1e6, "binary-MB")
}

// timeStart starts the binary on a node that has no slices of its driver, waits for them,
// and stops it.
func (in *installation) timeStart(b *testing.B, binary string) time.Duration {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.Context(), startTimeout)
	defer cancel()
	selector := metav1.ListOptions{FieldSelector: "spec.driver=" + benchDriver}
	slices := in.client.ResourceV1().ResourceSlices()
	must(b, slices.DeleteCollection(ctx, metav1.DeleteOptions{}, selector), "delete the slices of the last round")
	watcher, err := slices.Watch(ctx, selector)
	must(b, err, "watch slices")
	defer watcher.Stop()

	root, err := os.MkdirTemp("", "mica") // short: the sockets' paths are limited
	must(b, err, "make the plugin's directories")
	defer func() { must(b, os.RemoveAll(root), "remove the plugin's directories") }()
	must(b, os.Mkdir(filepath.Join(root, "registry"), 0o755), "make the plugin's directories")
	go kubelet.Know(ctx, filepath.Join(root, "registry"))
	driverRoot := os.Getenv("MICA_DRIVER_ROOT")
	command := exec.CommandContext(ctx, binary,
		"--node-name", in.node, "--driver-name", benchDriver, "--kubeconfig", os.Getenv("KUBECONFIG"),
		"--cdi-root", filepath.Join(root, "cdi"),
		"--kubelet-registrar-directory-path", filepath.Join(root, "registry"),
		"--kubelet-plugins-directory-path", filepath.Join(root, "plugins"),
		"--nvidia-driver-root", driverRoot, "--container-driver-root", driverRoot,
		"--nvidia-cdi-hook-path", "/usr/bin/nvidia-cdi-hook", // never run here
		"--healthcheck-port", "-1", "--metrics-port", "-1")
	var log bytes.Buffer
	command.Stderr = &log
	command.Cancel = func() error { return command.Process.Signal(syscall.SIGTERM) }
	start := time.Now()
	must(b, command.Start(), "start the plugin")
	for {
		event, open := <-watcher.ResultChan()
		if !open {
			b.Fatalf("no slice was published within %s; the plugin says:\n%s", startTimeout, log.String())
		}
		if event.Type == watch.Added {
			break
		}
	}
	taken := time.Since(start)
	must(b, command.Process.Signal(syscall.SIGTERM), "stop the plugin")
	if err := command.Wait(); err != nil {
		b.Errorf("the plugin stopped with %v:\n%s", err, log.String())
	}
	must(b, slices.DeleteCollection(context.WithoutCancel(ctx), metav1.DeleteOptions{}, selector), "delete the slices")
	return taken
}

// BenchmarkScaleOut measures from Cluster Autoscaler's word that it cannot help a pod to the
// placeholder (limit: 2 s), and from the pod to the node that has it. In the latter, most is
// the autoscaler's: two scans of 5 s, and 2 s that a machine of the simulated cloud takes.
func BenchmarkScaleOut(b *testing.B) {
	s := newScaleOut(b, "bench")
	s.createTemplate("one", s.claimFor(8))
	var toPlaceholder, toNode []time.Duration
	for i := 0; b.Loop(); i++ {
		name := fmt.Sprintf("pod-%d", i)
		start := time.Now()
		reported, made := s.timePlaceholder(name)
		s.expectPlaced(name)
		toNode = append(toNode, time.Since(start))
		toPlaceholder = append(toPlaceholder, made.Sub(reported))
		s.deletePod(name)
		must(b, theFleet(b).cloud.Remove(b.Context(), "bench"), "remove the nodes")
		eventually(b, startTimeout, "the nodes are gone", func(ctx context.Context) error { return s.expectNodesGone(ctx, "bench") })
		must(b, theFleet(b).cloud.Put(b.Context(), groupOf(b, "bench").machines("bench")), "set the group up again")
	}
	reportTimes(b, "verdict-to-placeholder", toPlaceholder)
	reportTimes(b, "pod-to-placed", toNode)
}

// timePlaceholder makes a pod, and returns when the autoscaler's Event and the placeholder
// arrived. Without that Event there is the placeholder's grace, which is not what is measured.
func (s *scaleOut) timePlaceholder(name string) (reported, made time.Time) {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Context(), nodeTimeout)
	defer cancel()
	events, err := s.client.CoreV1().Events(s.namespace).Watch(ctx, metav1.ListOptions{FieldSelector: "reason=NotTriggerScaleUp,involvedObject.name=" + name})
	must(s, err, "watch Events")
	defer events.Stop()
	pods, err := s.client.CoreV1().Pods("").Watch(ctx, metav1.ListOptions{LabelSelector: placeholderLabel + "=" + s.groups[0]})
	must(s, err, "watch placeholders")
	defer pods.Stop()
	s.createPod(s.onGroups(s.podFromTemplate(name, "one")))
	for reported.IsZero() || made.IsZero() {
		select {
		case <-ctx.Done():
			s.Fatalf("no placeholder for pod %s: the autoscaler has reported it: %t", name, !reported.IsZero())
		case event := <-events.ResultChan():
			if reported.IsZero() && event.Type == watch.Added {
				reported = time.Now()
			}
		case event := <-pods.ResultChan():
			if pod, is := event.Object.(*corev1.Pod); is && made.IsZero() && event.Type == watch.Added && pod.DeletionTimestamp == nil {
				made = time.Now()
			}
		}
	}
	return reported, made
}
