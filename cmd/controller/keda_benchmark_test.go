package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/meta/testrestmapper"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/cache"

	"github.com/mica-gpu/mica/api/externalscaler"
	"github.com/mica-gpu/mica/api/v1alpha1"
	"github.com/mica-gpu/mica/pkg/elastic/forecast"
	"github.com/mica-gpu/mica/pkg/elastic/keda"
	"github.com/mica-gpu/mica/pkg/elastic/profile"
	"github.com/mica-gpu/mica/pkg/elastic/usage"
	"github.com/mica-gpu/mica/pkg/elastic/workload"
	"github.com/mica-gpu/mica/pkg/gpu"
	"github.com/mica-gpu/mica/pkg/scaleout"
	"github.com/mica-gpu/mica/pkg/scaleout/view"
	"github.com/mica-gpu/mica/pkg/slice"
	"github.com/mica-gpu/mica/test/fixture"
)

// The fleet has 1,000 Deployments of five pods with a GPU each. Each remembers ten
// revisions, on nodes of eight GPUs.
const (
	fleetWorkloads = 1000
	fleetPods      = 5
	fleetRevisions = 10
	fleetNodes     = 700
	nodeGPUs       = 8
)

// scaledFleet is what KEDA is answered from, as the controller assembles it: only the API
// server, Prometheus, the plugins' metrics and what a pass writes are not the real ones.
type scaledFleet struct {
	client externalscaler.ExternalScalerClient
	pods   *watch.FakeWatcher
	// plans counts the passes, planning is how long the last plan took.
	plans    atomic.Int32
	planning atomic.Int64
}

// fleetServer lists objects that it makes anew each time: the heap that is measured has none of
// an API server.
type fleetServer struct{ *toolscache.ListWatch }

func (fleetServer) IsWatchListSemanticsUnSupported() bool { return true }

func newScaledFleet(b *testing.B) *scaledFleet {
	b.Helper()
	saveMemory()
	f := &scaledFleet{pods: watch.NewFake()}
	published := publishedByNode(b)
	f.serve(b, newCache(b, func(object apiruntime.Object) toolscache.ListerWatcher {
		watched := watch.NewFake()
		if reflect.TypeOf(object) == reflect.TypeOf(&corev1.Pod{}) {
			watched = f.pods
		}
		return fleetServer{&toolscache.ListWatch{
			ListWithContextFunc: func(context.Context, metav1.ListOptions) (apiruntime.Object, error) {
				list := &corev1.List{ListMeta: metav1.ListMeta{ResourceVersion: "1"}}
				return list, meta.SetList(list, fleetObjects(object, published))
			},
			WatchFuncWithContext: func(context.Context, metav1.ListOptions) (watch.Interface, error) { return watched, nil },
		}}
	}))
	return f
}

// newCache is the controller's cache, with servers for the kinds.
func newCache(t testing.TB, server func(kind apiruntime.Object) toolscache.ListerWatcher) cache.Cache {
	t.Helper()
	scheme := apiruntime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		t.Fatal(err)
	}
	options := cacheOptions(&flags{autoscalerNamespace: "kube-system", autoscalerName: "status"})
	options.Scheme, options.HTTPClient, options.Mapper = scheme, http.DefaultClient, testrestmapper.TestOnlyStaticRESTMapper(scheme)
	options.NewInformer = func(_ toolscache.ListerWatcher, object apiruntime.Object, resync time.Duration, indexers toolscache.Indexers) toolscache.SharedIndexInformer {
		return toolscache.NewSharedIndexInformer(server(object), object, resync, indexers)
	}
	known, err := cache.New(&rest.Config{}, options)
	if err != nil {
		t.Fatal(err)
	}
	return known
}

// serve is addKEDA and the loop, without a manager.
func (f *scaledFleet) serve(b *testing.B, known cache.Cache) {
	b.Helper()
	marked := make(chan struct{}, 1)
	room := forecast.New(func() {
		select {
		case marked <- struct{}{}:
		default:
		}
	}, clock.RealClock{})
	workloads := workload.New(known, fixture.Driver, nil)
	if err := workloads.Observe(b.Context(), known); err != nil {
		b.Fatal(err)
	}
	profiles, err := profile.NewSource("", clock.RealClock{})
	if err != nil {
		b.Fatal(err)
	}
	answering := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `{"status":"success","data":{"resultType":"vector","result":[{"metric":{},"value":[1,"90"]}]}}`)
	}))
	b.Cleanup(answering.Close)
	prometheus, err := keda.NewPrometheus(keda.PrometheusOptions{Address: answering.URL, Clock: clock.RealClock{}})
	if err != nil {
		b.Fatal(err)
	}
	listening := make(chan net.Addr, 1)
	server, err := keda.NewServer(
		keda.Options{Address: "127.0.0.1:0", Clock: clock.RealClock{}, Listening: func(a net.Addr) { listening <- a }},
		keda.NewScaler(keda.ScalerOptions{
			Sources:  keda.Sources{Workloads: workloads, Usages: busyGPUs{}, Forecast: room, Prometheus: prometheus},
			Profiles: profiles, Recorder: &events.FakeRecorder{}, Clock: clock.RealClock{},
		}))
	if err != nil {
		b.Fatal(err)
	}
	ctx, stop := context.WithCancel(b.Context())
	var running sync.WaitGroup
	b.Cleanup(func() { stop(); running.Wait() })
	run := func(start func(context.Context) error) {
		running.Go(func() {
			if err := start(ctx); err != nil {
				b.Error(err)
			}
		})
	}
	run(known.Start)
	if !known.WaitForCacheSync(ctx) {
		b.Fatal("the cache has not been filled")
	}
	run(func(ctx context.Context) error { return f.plan(ctx, known, room, marked) })
	run(server.Start)
	connection, err := grpc.NewClient((<-listening).String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = connection.Close() })
	f.client = externalscaler.NewExternalScalerClient(connection)
}

// plan is what of a pass is about KEDA, at the pace of package control.
func (f *scaledFleet) plan(ctx context.Context, known cache.Cache, room *forecast.Forecast, marked <-chan struct{}) error {
	memo := view.NewMemo()
	for {
		seen, err := view.Read(ctx, known, view.Options{Driver: fixture.Driver, Now: time.Now(), Memo: memo})
		if err != nil {
			return err
		}
		seen.Replicas = room.Replicas()
		began := time.Now()
		planner := scaleout.NewPlanner(seen.Snapshot)
		decision, err := planner.Decide(ctx)
		if err == nil {
			decision.Supplies, err = planner.Supplies(ctx)
		}
		f.planning.Store(int64(time.Since(began)))
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		f.plans.Add(1)
		room.Planned(seen.Snapshot, decision)
		select {
		case <-ctx.Done():
			return nil
		case <-marked:
		case <-time.After(time.Minute):
		}
		time.Sleep(200 * time.Millisecond)
	}
}

// busyGPUs are the plugins.
type busyGPUs struct{}

func (busyGPUs) Usage(_ context.Context, of workload.State) (usage.Usage, error) {
	return usage.Usage{Utilization: usage.Mean{Value: 0.9}, Memory: usage.Mean{Value: 0.5}, Devices: len(of.Pods)}, nil
}

func publishedByNode(b *testing.B) []resourceapi.ResourceSliceSpec {
	facts := fixture.Node(b, "p5.48xlarge")
	pool := slice.Pool(facts, gpu.Shapes(facts.GPUs, func(gpu.GPU) gpu.Policy { return gpu.Policy{Whole: true} }), nil)
	var specs []resourceapi.ResourceSliceSpec
	for _, s := range pool.Slices {
		specs = append(specs, resourceapi.ResourceSliceSpec{Devices: s.Devices, SharedCounters: s.SharedCounters})
	}
	return specs
}

func fleetObjects(kind apiruntime.Object, published []resourceapi.ResourceSliceSpec) []apiruntime.Object {
	var all []apiruntime.Object
	forEach := func(n int, object func(i int) apiruntime.Object) {
		for i := range n {
			all = append(all, object(i))
		}
	}
	switch kind.(type) {
	case *corev1.Node:
		forEach(fleetNodes, func(i int) apiruntime.Object { return fleetNode(i) })
	case *resourceapi.ResourceSlice:
		for i := range fleetNodes {
			for n := range published {
				spec := published[n].DeepCopy()
				spec.Driver, spec.NodeName = fixture.Driver, ptr.To(nodeName(i))
				spec.Pool = resourceapi.ResourcePool{Name: nodeName(i), ResourceSliceCount: int64(len(published))}
				all = append(all, &resourceapi.ResourceSlice{ObjectMeta: made("", fmt.Sprint(nodeName(i), "-", n)), Spec: *spec})
			}
		}
	case *resourceapi.DeviceClass:
		class := &resourceapi.DeviceClass{ObjectMeta: made("", "gpu.nvidia.com")}
		class.Spec.Selectors = []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: `device.driver == "gpu.nvidia.com" && device.attributes["gpu.nvidia.com"].type == "gpu"`}}}
		all = append(all, class)
	case *resourceapi.ResourceClaimTemplate:
		all = append(all, &resourceapi.ResourceClaimTemplate{ObjectMeta: made("llm", "gpu"), Spec: resourceapi.ResourceClaimTemplateSpec{Spec: oneGPU()}})
	case *appsv1.Deployment:
		forEach(fleetWorkloads, func(i int) apiruntime.Object {
			return &appsv1.Deployment{ObjectMeta: made("llm", workloadName(i)), Spec: appsv1.DeploymentSpec{Template: servingTemplate(i)}}
		})
		all = append(all, &appsv1.Deployment{ObjectMeta: made("llm", "idle"), Spec: appsv1.DeploymentSpec{Template: servingTemplate(fleetWorkloads)}})
	case *appsv1.ReplicaSet:
		forEach(fleetWorkloads*fleetRevisions, func(n int) apiruntime.Object {
			i := n / fleetRevisions
			return &appsv1.ReplicaSet{
				ObjectMeta: ownedBy("apps/v1", "Deployment", workloadName(i), made("llm", fmt.Sprint(workloadName(i), "-", n%fleetRevisions))),
				Spec:       appsv1.ReplicaSetSpec{Template: servingTemplate(i)},
			}
		})
	case *corev1.Pod:
		forEach(fleetWorkloads*fleetPods, func(n int) apiruntime.Object { return servingPod(n) })
	case *resourceapi.ResourceClaim:
		forEach(fleetWorkloads*fleetPods, func(n int) apiruntime.Object { return heldClaim(n) })
	}
	return all
}

func nodeName(i int) string     { return fmt.Sprint("node-", i) }
func workloadName(i int) string { return fmt.Sprint("llm-", i) }
func podName(n int) string      { return fmt.Sprint(workloadName(n/fleetPods), "-0-", n%fleetPods) }

func made(namespace, name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Namespace: namespace, Name: name, UID: types.UID("uid-" + name), ResourceVersion: "1",
		ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "kubectl", FieldsV1: metav1.NewFieldsV1(strings.Repeat("x", 1000))}},
	}
}

func ownedBy(apiVersion, kind, name string, object metav1.ObjectMeta) metav1.ObjectMeta {
	object.OwnerReferences = []metav1.OwnerReference{{APIVersion: apiVersion, Kind: kind, Name: name, UID: types.UID("uid-" + name), Controller: ptr.To(true)}}
	return object
}

func oneGPU() resourceapi.ResourceClaimSpec {
	return resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{{
		Name: "gpu", Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: "gpu.nvidia.com", AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: 1},
	}}}}
}

// servingTemplate differs by workload in its labels, so that each is a sample of its own.
func servingTemplate(i int) corev1.PodTemplateSpec {
	template := podTemplate(corev1.Container{
		Name: "server", Image: "vllm", Env: make([]corev1.EnvVar, 20),
		Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{
			corev1.ResourceCPU: resource.MustParse(fmt.Sprint(2 + i%20)), corev1.ResourceMemory: resource.MustParse("16Gi"),
		}},
	})
	template.Labels = map[string]string{"app": workloadName(i)}
	return template
}

func fleetNode(i int) *corev1.Node {
	node := &corev1.Node{ObjectMeta: made("", nodeName(i))}
	node.Labels = map[string]string{corev1.LabelHostname: node.Name, "pool": "h100", corev1.LabelInstanceTypeStable: "p5.48xlarge"}
	node.Status.Allocatable = corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("192"), corev1.ResourceMemory: resource.MustParse("2000Gi"), corev1.ResourcePods: resource.MustParse("110"),
	}
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	return node
}

func servingPod(n int) *corev1.Pod {
	i := n / fleetPods
	template := servingTemplate(i)
	pod := &corev1.Pod{ObjectMeta: ownedBy("apps/v1", "ReplicaSet", workloadName(i)+"-0", made("llm", podName(n))), Spec: template.Spec}
	pod.Labels = template.Labels
	pod.Spec.NodeName = nodeName(n / nodeGPUs)
	pod.Status.Phase = corev1.PodRunning
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionTrue}, {Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	pod.Status.ResourceClaimStatuses = []corev1.PodResourceClaimStatus{{Name: "gpu", ResourceClaimName: ptr.To(pod.Name + "-gpu")}}
	return pod
}

func heldClaim(n int) *resourceapi.ResourceClaim {
	claim := &resourceapi.ResourceClaim{ObjectMeta: ownedBy("v1", "Pod", podName(n), made("llm", podName(n)+"-gpu")), Spec: oneGPU()}
	claim.Status.Allocation = &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{Results: []resourceapi.DeviceRequestAllocationResult{{
		Request: "gpu", Driver: fixture.Driver, Pool: nodeName(n / nodeGPUs), Device: fmt.Sprint("gpu-", n%nodeGPUs),
	}}}}
	claim.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: podName(n), UID: types.UID("uid-" + podName(n))}}
	return claim
}

// scaledObjects have a target each, and half of them want more replicas than run.
func scaledObjects() []*externalscaler.ScaledObjectRef {
	all := make([]*externalscaler.ScaledObjectRef, fleetWorkloads)
	for i := range all {
		target := "Deployment/" + workloadName(i)
		metadata := []map[string]string{
			{"metric": "prometheus", "query": fmt.Sprintf("sum(waiting{app=%q})", workloadName(i)), "threshold": "10"},
			{"metric": "gpuUtilization", "threshold": "70"},
			{"metric": "pendingClaims", "threshold": "1"},
		}[i%3]
		metadata["target"] = target
		all[i] = &externalscaler.ScaledObjectRef{Namespace: "llm", Name: workloadName(i), ScalerMetadata: metadata}
	}
	return all
}

// ask is what KEDA does each polling interval, and tells how long the value took.
func (f *scaledFleet) ask(b *testing.B, object *externalscaler.ScaledObjectRef) time.Duration {
	began := time.Now()
	if _, err := f.client.GetMetrics(b.Context(), &externalscaler.GetMetricsRequest{ScaledObjectRef: object, MetricName: "m"}); err != nil {
		b.Error(err)
	}
	took := time.Since(began)
	if _, err := f.client.IsActive(b.Context(), object); err != nil {
		b.Error(err)
	}
	return took
}

// BenchmarkFirstQuestions is of 1,000 ScaledObjects that all ask at once a controller that has
// just begun to lead. Each waits for a plan with its sample, and no plan is made for one alone.
func BenchmarkFirstQuestions(b *testing.B) {
	plans := 0
	var f *scaledFleet
	for b.Loop() {
		b.StopTimer()
		f = newScaledFleet(b)
		b.StartTimer()
		f.askAll(b, scaledObjects())
		plans += int(f.plans.Load())
	}
	b.ReportMetric(float64(plans)/float64(b.N), "plans/op")
	b.ReportMetric(float64(time.Duration(f.planning.Load()).Milliseconds()), "ms/plan")
	if plans > 10*b.N {
		b.Errorf("%d plans were made for %d times 1,000 questions", plans, b.N)
	}
}

func (f *scaledFleet) askAll(b *testing.B, objects []*externalscaler.ScaledObjectRef) {
	var all sync.WaitGroup
	for _, object := range objects {
		all.Go(func() { f.ask(b, object) })
	}
	all.Wait()
}

// BenchmarkKEDA is of 1,000 ScaledObjects. The limits are 20 ms for the 99th percentile of
// GetMetrics, 200 MB, and 500 ms from a pending claim to the push.
func BenchmarkKEDA(b *testing.B) {
	f := newScaledFleet(b)
	objects := scaledObjects()
	f.askAll(b, objects)
	b.Run("poll", func(b *testing.B) { f.poll(b, objects) })
	b.Run("push", func(b *testing.B) { f.push(b, objects) })
}

// poll asks at five times the pace of KEDA.
func (f *scaledFleet) poll(b *testing.B, objects []*externalscaler.ScaledObjectRef) {
	var mu sync.Mutex
	var took []time.Duration
	pace := time.NewTicker(15 * time.Second / 5 / time.Duration(len(objects)))
	defer pace.Stop()
	for b.Loop() {
		var under sync.WaitGroup
		for _, object := range objects {
			<-pace.C
			under.Go(func() {
				one := f.ask(b, object)
				mu.Lock()
				defer mu.Unlock()
				took = append(took, one)
			})
		}
		under.Wait()
	}
	report(b, took, 20*time.Millisecond)
	runtime.GC()
	var memory runtime.MemStats
	runtime.ReadMemStats(&memory)
	b.ReportMetric(float64(memory.HeapAlloc)/1e6, "heap-MB")
	b.ReportMetric(float64(memory.Sys-memory.HeapReleased)/1e6, "sys-MB")
	if memory.HeapAlloc > 200e6 {
		b.Errorf("the heap has %d MB: 200 are promised", memory.HeapAlloc/1e6)
	}
}

// push is from the API server's word of a pod with a claim to KEDA's client.
func (f *scaledFleet) push(b *testing.B, objects []*externalscaler.ScaledObjectRef) {
	idle := &externalscaler.ScaledObjectRef{Namespace: "llm", Name: "idle", ScalerMetadata: map[string]string{
		"metric": "pendingClaims", "deviceClass": "gpu.nvidia.com", "target": "Deployment/idle", "threshold": "1",
	}}
	for _, object := range objects {
		stream, err := f.client.StreamIsActive(b.Context(), object)
		if err != nil {
			b.Fatal(err)
		}
		if _, err := stream.Recv(); err != nil {
			b.Fatal(err)
		}
	}
	stream, err := f.client.StreamIsActive(b.Context(), idle)
	if err != nil {
		b.Fatal(err)
	}
	next := func(want bool) {
		if response, err := stream.Recv(); err != nil || response.Result != want {
			b.Fatalf("the stream says %v, %v", response, err)
		}
	}
	next(false)
	f.ask(b, idle)
	waiting := servingPod(0)
	waiting.ObjectMeta = made("llm", "waiting")
	waiting.Spec.NodeName, waiting.Status = "", corev1.PodStatus{Phase: corev1.PodPending}
	var took []time.Duration
	for b.Loop() {
		began := time.Now()
		f.pods.Add(waiting.DeepCopy())
		next(true)
		took = append(took, time.Since(began))
		f.pods.Delete(waiting.DeepCopy())
		next(false)
	}
	report(b, took, 500*time.Millisecond)
}

func report(b *testing.B, took []time.Duration, most time.Duration) {
	slices.Sort(took)
	p99 := took[len(took)*99/100]
	b.ReportMetric(float64(took[len(took)/2].Microseconds())/1000, "p50-ms")
	b.ReportMetric(float64(p99.Microseconds())/1000, "p99-ms")
	if p99 > most {
		b.Errorf("the 99th percentile is %s: %s are promised", p99, most)
	}
}
