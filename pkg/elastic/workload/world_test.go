package workload

import (
	"context"
	"fmt"
	"net/http"
	"reflect"
	"strconv"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/meta/testrestmapper"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	source "k8s.io/client-go/tools/cache/testing"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/mica-gpu/mica/pkg/devices"
	"github.com/mica-gpu/mica/pkg/elastic/scaletarget"
)

const (
	driver    = "gpu.nvidia.com"
	namespace = "llm"
)

// world is a cluster's objects behind the cache that the controller has: only what lists and
// watches the API server is not the real one.
type world struct {
	testing.TB
	sources map[reflect.Type]*source.FakeControllerSource
	targets targets
	index   *Index
}

// targets are workloads of other kinds, by name.
type targets map[string]*scaletarget.Target

func (t targets) Read(_ context.Context, name scaletarget.Name) (*scaletarget.Target, error) {
	if target := t[name.String()]; target != nil && name.Namespace == namespace {
		return target, nil
	}
	return nil, fmt.Errorf("%s %w", name, scaletarget.ErrNotFound)
}

// newWorld has objects from before the controller came.
func newWorld(t testing.TB, objects ...client.Object) *world {
	t.Helper()
	w := &world{TB: t, sources: map[reflect.Type]*source.FakeControllerSource{}, targets: targets{}}
	for _, kind := range []client.Object{
		&corev1.Pod{}, &resourceapi.ResourceClaim{}, &resourceapi.ResourceClaimTemplate{}, &resourceapi.DeviceClass{},
		&appsv1.ReplicaSet{}, &appsv1.Deployment{}, &appsv1.StatefulSet{}, &batchv1.Job{},
	} {
		w.sources[reflect.TypeOf(kind)] = source.NewFakeControllerSource()
	}
	w.add(objects...)
	c, err := cache.New(&rest.Config{}, cache.Options{
		Scheme:     scheme.Scheme,
		HTTPClient: http.DefaultClient,
		Mapper:     testrestmapper.TestOnlyStaticRESTMapper(scheme.Scheme),
		NewInformer: func(_ toolscache.ListerWatcher, object runtime.Object, resync time.Duration, indexers toolscache.Indexers) toolscache.SharedIndexInformer {
			return toolscache.NewSharedIndexInformer(w.sources[reflect.TypeOf(object)], object, resync, indexers)
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	w.index = New(c, driver, w.targets)
	ctx, cancel := context.WithCancel(t.Context())
	if err := w.index.Observe(ctx, c); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error)
	go func() { ended <- c.Start(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	if !c.WaitForCacheSync(ctx) {
		t.Fatal("the cache has not been filled")
	}
	return w
}

// add, change and remove pass copies, because objects of the cache must not change.
func (w *world) add(objects ...client.Object) {
	for _, o := range objects {
		w.sources[reflect.TypeOf(o)].Add(o.DeepCopyObject())
	}
}

func (w *world) change(objects ...client.Object) {
	for _, o := range objects {
		w.sources[reflect.TypeOf(o)].Modify(o.DeepCopyObject())
	}
}

func (w *world) remove(objects ...client.Object) {
	for _, o := range objects {
		w.sources[reflect.TypeOf(o)].Delete(o.DeepCopyObject())
	}
}

// watch fails the test where it cannot be.
func (w *world) watch(of Pending) <-chan int {
	w.Helper()
	counts, err := w.index.Watch(w.Context(), of)
	if err != nil {
		w.Fatal(err)
	}
	return counts
}

// await reads counts until one is as wanted.
func (w *world) await(counts <-chan int, want int) {
	w.Helper()
	late := time.After(30 * time.Second)
	last := "none"
	for {
		select {
		case count, open := <-counts:
			if !open {
				w.Fatalf("the counts ended while %d was awaited", want)
			}
			if count == want {
				return
			}
			last = strconv.Itoa(count)
		case <-late:
			w.Fatalf("%d was awaited, the last count was %s", want, last)
		}
	}
}

func ofWorkload(kind, name string) Pending {
	return Pending{Namespace: namespace, Workload: &Ref{Kind: kind, Namespace: namespace, Name: name}}
}

func ofClass(name string) Pending { return Pending{Namespace: namespace, Class: name} }

func named(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID("uid-" + name)}
}

func owner(apiVersion, kind, name string) []metav1.OwnerReference {
	return []metav1.OwnerReference{{APIVersion: apiVersion, Kind: kind, Name: name, UID: types.UID("uid-" + name), Controller: ptr.To(true)}}
}

func newDeployment(name string) *appsv1.Deployment {
	d := &appsv1.Deployment{ObjectMeta: named(name)}
	d.Spec.Template.Labels = map[string]string{"app": name}
	d.Spec.Template.Spec.Containers = []corev1.Container{{Name: "server"}}
	return d
}

func newReplicaSet(name, deployment string) *appsv1.ReplicaSet {
	set := &appsv1.ReplicaSet{ObjectMeta: named(name)}
	if deployment != "" {
		set.OwnerReferences = owner("apps/v1", KindDeployment, deployment)
	}
	return set
}

func newClass(name, extendedResource string) *resourceapi.DeviceClass {
	class := &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if extendedResource != "" {
		class.Spec.ExtendedResourceName = &extendedResource
	}
	return class
}

func asking(classes ...string) resourceapi.ResourceClaimSpec {
	var spec resourceapi.ResourceClaimSpec
	for _, class := range classes {
		spec.Devices.Requests = append(spec.Devices.Requests, resourceapi.DeviceRequest{
			Name:    class,
			Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: class},
		})
	}
	return spec
}

func newTemplate(name string, classes ...string) *resourceapi.ResourceClaimTemplate {
	return &resourceapi.ResourceClaimTemplate{
		ObjectMeta: named(name),
		Spec:       resourceapi.ResourceClaimTemplateSpec{Spec: asking(classes...)},
	}
}

func newClaim(name string, classes ...string) *resourceapi.ResourceClaim {
	return &resourceapi.ResourceClaim{ObjectMeta: named(name), Spec: asking(classes...)}
}

// generated is a claim that was made for a pod.
func generated(pod, entry string, classes ...string) *resourceapi.ResourceClaim {
	claim := newClaim(pod+"-"+entry, classes...)
	claim.OwnerReferences = owner("v1", "Pod", pod)
	return claim
}

func allocated(claim *resourceapi.ResourceClaim, at time.Time, results ...resourceapi.DeviceRequestAllocationResult) *resourceapi.ResourceClaim {
	claim = claim.DeepCopy()
	claim.Status.Allocation = &resourceapi.AllocationResult{AllocationTimestamp: ptr.To(metav1.NewTime(at))}
	claim.Status.Allocation.Devices.Results = results
	return claim
}

func device(pool, name string) resourceapi.DeviceRequestAllocationResult {
	return resourceapi.DeviceRequestAllocationResult{Request: "gpu", Driver: driver, Pool: pool, Device: name}
}

// holding is that of one result of an allocation.
func holding(result resourceapi.DeviceRequestAllocationResult) devices.Holding {
	allocation := &resourceapi.AllocationResult{}
	allocation.Devices.Results = []resourceapi.DeviceRequestAllocationResult{result}
	for h := range devices.Holdings(allocation) {
		return h
	}
	return devices.Holding{}
}

// newPod is one of a ReplicaSet, or of nothing where that has no name.
func newPod(name, set string, changes ...func(*corev1.Pod)) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: named(name)}
	if set != "" {
		pod.OwnerReferences = owner("apps/v1", KindReplicaSet, set)
	}
	return with(pod, changes...)
}

func with(pod *corev1.Pod, changes ...func(*corev1.Pod)) *corev1.Pod {
	pod = pod.DeepCopy()
	for _, change := range changes {
		change(pod)
	}
	return pod
}

func namesClaim(entry, claim string) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		pod.Spec.ResourceClaims = append(pod.Spec.ResourceClaims, corev1.PodResourceClaim{Name: entry, ResourceClaimName: &claim})
	}
}

func namesTemplate(entry, template string) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		pod.Spec.ResourceClaims = append(pod.Spec.ResourceClaims, corev1.PodResourceClaim{Name: entry, ResourceClaimTemplateName: &template})
	}
}

// hasGenerated sets the status that the claim controller writes after it has created a claim.
func hasGenerated(entry string) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		pod.Status.ResourceClaimStatuses = append(pod.Status.ResourceClaimStatuses,
			corev1.PodResourceClaimStatus{Name: entry, ResourceClaimName: ptr.To(pod.Name + "-" + entry)})
	}
}

func on(node string) func(*corev1.Pod) {
	return func(pod *corev1.Pod) { pod.Spec.NodeName = node }
}

func since(condition corev1.PodConditionType, at time.Time) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		pod.Status.Conditions = append(pod.Status.Conditions,
			corev1.PodCondition{Type: condition, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(at)})
	}
}
