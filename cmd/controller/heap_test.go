package main

import (
	"context"
	"fmt"
	"reflect"
	"runtime"
	"runtime/metrics"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"

	"github.com/mica-gpu/mica/api/v1alpha1"
	"github.com/mica-gpu/mica/pkg/gpu"
	"github.com/mica-gpu/mica/pkg/scaleout"
	"github.com/mica-gpu/mica/pkg/scaleout/view"
	"github.com/mica-gpu/mica/pkg/slice"
	"github.com/mica-gpu/mica/test/fixture"
)

// largeFleet is a cluster of p5 nodes with the chart's default GPUPolicy: of each node its ten slices
// with 216 devices, eight pods of DaemonSets, and four pods with a claim of a GPU each.
type largeFleet struct {
	nodes, pending int
	published      []resourceapi.ResourceSliceSpec
}

const (
	largeGroups  = 5
	largeDaemons = 8
	largeBusy    = 4
)

func newLargeFleet(t testing.TB, nodes int) *largeFleet {
	facts := fixture.Node(t, "p5.48xlarge")
	policy := gpu.Policy{Whole: true, MIG: true, TimeSlicing: &gpu.TimeSlicing{Replicas: 4, Interval: gpu.DefaultInterval}}
	pool := slice.Pool(facts, gpu.Shapes(facts.GPUs, func(gpu.GPU) gpu.Policy { return policy }), nil)
	f := &largeFleet{nodes: nodes, pending: 100}
	devices := 0
	for _, s := range pool.Slices {
		f.published = append(f.published, resourceapi.ResourceSliceSpec{Devices: s.Devices, SharedCounters: s.SharedCounters})
		devices += len(s.Devices)
	}
	if len(f.published) != 10 || devices != 216 {
		t.Fatalf("a node publishes %d slices with %d devices", len(f.published), devices)
	}
	return f
}

// wired is what can be sent by protobuf.
type wired interface {
	apiruntime.Object
	Marshal() ([]byte, error)
	Unmarshal([]byte) error
}

// stream sends the objects of a kind one by one, as an API server does since Kubernetes 1.34: each is
// in memory of its own.
func (f *largeFleet) stream(kind apiruntime.Object, send func(apiruntime.Object)) {
	decoded := func(object, into wired) {
		wire, err := object.Marshal()
		if err == nil {
			err = into.Unmarshal(wire)
		}
		if err != nil {
			panic(err)
		}
		send(into)
	}
	switch kind.(type) {
	case *corev1.Node:
		for i := range f.nodes {
			decoded(f.node(i), &corev1.Node{})
		}
	case *resourceapi.ResourceSlice:
		for i := range f.nodes {
			for n := range f.published {
				decoded(f.slice(i, n), &resourceapi.ResourceSlice{})
			}
		}
	case *corev1.Pod:
		for i := range f.nodes {
			for n := range largeDaemons {
				decoded(f.daemon(i, n), &corev1.Pod{})
			}
			for n := range largeBusy {
				decoded(servingPod(i*nodeGPUs+n), &corev1.Pod{})
			}
		}
		for n := range f.pending {
			pod := servingPod(n)
			pod.ObjectMeta = made("llm", fmt.Sprint("waiting-", n))
			pod.Spec.NodeName, pod.Status = "", corev1.PodStatus{Phase: corev1.PodPending}
			decoded(pod, &corev1.Pod{})
		}
	case *resourceapi.ResourceClaim:
		for i := range f.nodes {
			for n := range largeBusy {
				decoded(heldClaim(i*nodeGPUs+n), &resourceapi.ResourceClaim{})
			}
		}
	case *v1alpha1.GPUNodeGroup:
		for g := range largeGroups {
			group := &v1alpha1.GPUNodeGroup{ObjectMeta: made("", fmt.Sprint("group-", g))}
			group.Spec.InstanceType = "p5.48xlarge"
			group.Spec.Provider.NodeSelector = map[string]string{"pool": group.Name}
			send(group)
		}
	default:
		for _, object := range fleetObjects(kind, nil) {
			send(object)
		}
	}
}

func (f *largeFleet) node(i int) *corev1.Node {
	node := fleetNode(i)
	node.Labels["pool"] = fmt.Sprint("group-", i%largeGroups)
	for n := range 50 { // feature discovery's
		node.Labels[fmt.Sprint("feature.node.kubernetes.io/cpu-feature-", n)] = fmt.Sprint("value-", n)
	}
	node.Status.Capacity = node.Status.Allocatable
	for _, kind := range []corev1.NodeConditionType{"MemoryPressure", "DiskPressure", "PIDPressure", "NetworkUnavailable"} {
		node.Status.Conditions = append(node.Status.Conditions, corev1.NodeCondition{Type: kind, Status: corev1.ConditionFalse, Reason: "KubeletHasEnough", Message: "kubelet has enough of what this condition is about"})
	}
	for n := range 40 {
		node.Status.Images = append(node.Status.Images, corev1.ContainerImage{Names: []string{fmt.Sprint("registry.example.com/image-", n, "@sha256:", strings.Repeat("0", 64))}})
	}
	return node
}

func (f *largeFleet) slice(i, n int) *resourceapi.ResourceSlice {
	spec := f.published[n].DeepCopy()
	spec.Driver, spec.NodeName = fixture.Driver, ptr.To(nodeName(i))
	spec.Pool = resourceapi.ResourcePool{Name: nodeName(i), Generation: 1, ResourceSliceCount: int64(len(f.published))}
	for d := range spec.Devices {
		attributes := spec.Devices[d].Attributes
		for _, name := range []resourceapi.QualifiedName{"uuid", "parentUUID"} {
			if value, has := attributes[name]; has {
				attributes[name] = resourceapi.DeviceAttribute{StringValue: ptr.To(fmt.Sprintf("%s-%05d", (*value.StringValue)[:34], i))}
			}
		}
	}
	return &resourceapi.ResourceSlice{ObjectMeta: ownedBy("v1", "Node", nodeName(i), made("", fmt.Sprintf("%s-gpu.nvidia.com-%05d", nodeName(i), n))), Spec: *spec}
}

func (f *largeFleet) daemon(i, n int) *corev1.Pod {
	pod := servingPod(0)
	pod.ObjectMeta = ownedBy("apps/v1", "DaemonSet", fmt.Sprint("daemon-", n), made("kube-system", fmt.Sprintf("daemon-%d-%d", n, i)))
	pod.Labels = map[string]string{"app": fmt.Sprint("daemon-", n), "controller-revision-hash": "5d8f7c9b4", "pod-template-generation": "1"}
	pod.Spec.ResourceClaims, pod.Status.ResourceClaimStatuses, pod.Spec.NodeName = nil, nil, nodeName(i)
	pod.Spec.Containers[0].Resources = corev1.ResourceRequirements{}
	for range 6 {
		pod.Spec.Tolerations = append(pod.Spec.Tolerations, corev1.Toleration{Key: "node.kubernetes.io/not-ready", Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute})
	}
	return pod
}

// informers is the controller's cache, filled from the fleet.
func (f *largeFleet) informers(t testing.TB, ctx context.Context) cache.Cache {
	known := newCache(t, func(object apiruntime.Object) toolscache.ListerWatcher {
		return &toolscache.ListWatch{
			ListWithContextFunc: func(context.Context, metav1.ListOptions) (apiruntime.Object, error) {
				return nil, fmt.Errorf("%T is listed at once, which takes its memory twice", object)
			},
			WatchFuncWithContext: func(_ context.Context, o metav1.ListOptions) (watch.Interface, error) {
				watched := watch.NewFake()
				if ptr.Deref(o.SendInitialEvents, false) {
					go f.sendInitial(object, watched)
				}
				return watched, nil
			},
		}
	})
	go func() { _ = known.Start(ctx) }()
	if !known.WaitForCacheSync(ctx) {
		t.Fatal("the cache has not started")
	}
	return known
}

func (f *largeFleet) sendInitial(kind apiruntime.Object, watched *watch.FakeWatcher) {
	f.stream(kind, watched.Add)
	end := reflect.New(reflect.TypeOf(kind).Elem()).Interface().(interface {
		apiruntime.Object
		metav1.Object
	})
	end.SetResourceVersion("1")
	end.SetAnnotations(map[string]string{metav1.InitialEventsAnnotationKey: "true"})
	watched.Action(watch.Bookmark, end)
}

// heap is what the controller has in memory of the fleet: at rest after some passes, and the most
// on the way. A pass is without what it writes, and plan is how long the last one planned.
func (f *largeFleet) heap(t testing.TB, passes int) (rest, most uint64, plan time.Duration) {
	ctrl.SetLogger(klog.Background())
	saveMemory()
	runtime.GC()
	before := readHeap()
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	peak := make(chan uint64)
	done := make(chan struct{})
	go func() {
		var most uint64
		for {
			most = max(most, readHeap())
			select {
			case <-done:
				peak <- most
				return
			case <-time.After(5 * time.Millisecond):
			}
		}
	}()
	known := f.informers(t, ctx)
	memo := view.NewMemo()
	for range passes {
		seen, err := view.Read(ctx, known, view.Options{Driver: fixture.Driver, Now: time.Now(), Memo: memo})
		if err != nil {
			t.Fatal(err)
		}
		if len(seen.Nodes) != f.nodes || len(seen.Slices) != f.nodes*len(f.published) {
			t.Fatalf("a pass has seen %d nodes and %d slices", len(seen.Nodes), len(seen.Slices))
		}
		began := time.Now()
		if _, err := scaleout.NewPlanner(seen.Snapshot).Decide(ctx); err != nil {
			t.Fatal(err)
		}
		plan = time.Since(began)
	}
	close(done)
	most = <-peak - before
	runtime.GC()
	rest = readHeap() - before
	runtime.KeepAlive(memo)
	runtime.KeepAlive(known)
	return rest, most, plan
}

func readHeap() uint64 {
	heap := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
	metrics.Read(heap)
	return heap[0].Value.Uint64()
}

// Equal content of nodes is in memory once. A node's 216 devices alone would take 1.1 MB.
func TestHeapOfANode(t *testing.T) {
	const nodes, limit = 50, 500_000
	rest, _, _ := newLargeFleet(t, nodes).heap(t, 1)
	if perNode := rest / nodes; perNode > limit {
		t.Errorf("a node of %d takes %d bytes of the controller's heap: it is to be %d at most", nodes, perNode, limit)
	}
}

// BenchmarkHeap is of a replica of the controller that has read such a cluster, and plans for 100 pods.
// The limits are 400 MB for 1,000 nodes, and 1.6 GB and a plan within 3 s for 5,000.
func BenchmarkHeap(b *testing.B) {
	for nodes, limit := range map[int]struct {
		bytes uint64
		plan  time.Duration
	}{1_000: {400e6, time.Second}, 5_000: {1600e6, 3 * time.Second}} {
		b.Run(fmt.Sprint(nodes), func(b *testing.B) {
			for b.Loop() {
				rest, most, plan := newLargeFleet(b, nodes).heap(b, 3)
				b.ReportMetric(float64(rest)/1e6, "rest-MB")
				b.ReportMetric(float64(most)/1e6, "peak-MB")
				b.ReportMetric(float64(plan.Milliseconds()), "ms/plan")
				if most > limit.bytes {
					b.Errorf("%d nodes take %d MB of the heap: %d are promised", nodes, most/1e6, limit.bytes/1e6)
				}
				if plan > limit.plan {
					b.Errorf("a plan over %d nodes took %s: %s are promised", nodes, plan, limit.plan)
				}
			}
		})
	}
}
