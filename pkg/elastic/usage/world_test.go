package usage

import (
	"context"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/mica-gpu/mica/pkg/devices"
	"github.com/mica-gpu/mica/pkg/elastic/workload"
	"github.com/mica-gpu/mica/pkg/gpu"
)

const (
	testDriver    = "gpu.nvidia.com"
	testNamespace = "mica"
)

var (
	testLabels = labels.Set{"app.kubernetes.io/component": "kubelet-plugin"}
	t0         = time.Date(2026, 9, 1, 12, 0, 0, 0, time.UTC)
)

// indexed is a cache with the indexes that Index adds to the controller's.
type indexed struct {
	client.Reader
	indexers map[string]toolscache.Indexer
	fields   map[string]client.Object
}

// IndexField implements client.FieldIndexer.
func (r *indexed) IndexField(_ context.Context, object client.Object, name string, extract client.IndexerFunc) error {
	if _, twice := r.fields[name]; twice {
		return fmt.Errorf("index %s is there already", name)
	}
	r.fields[name] = object
	r.indexers[name] = toolscache.NewIndexer(toolscache.MetaNamespaceKeyFunc, toolscache.Indexers{
		name: func(o any) ([]string, error) { return extract(o.(client.Object)), nil },
	})
	return nil
}

func (r *indexed) List(_ context.Context, list client.ObjectList, options ...client.ListOption) error {
	var o client.ListOptions
	o.ApplyOptions(options)
	requirement := o.FieldSelector.Requirements()[0]
	found, err := r.indexers[requirement.Field].ByIndex(requirement.Field, requirement.Value)
	if err != nil {
		return err
	}
	objects := make([]runtime.Object, len(found))
	for i := range found {
		objects[i] = found[i].(runtime.Object)
	}
	return meta.SetList(list, objects)
}

// add adds, or replaces, objects.
func (r *indexed) add(t testing.TB, objects ...client.Object) {
	t.Helper()
	for _, object := range objects {
		for name, of := range r.fields {
			if fmt.Sprintf("%T", of) == fmt.Sprintf("%T", object) {
				if err := r.indexers[name].Update(object); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
}

func (r *indexed) options() Options {
	return Options{Driver: testDriver, Reader: r, Namespace: testNamespace, Plugin: testLabels.AsSelector()}
}

func newIndexed(t testing.TB, objects ...client.Object) *indexed {
	t.Helper()
	r := &indexed{indexers: map[string]toolscache.Indexer{}, fields: map[string]client.Object{}}
	if err := Index(t.Context(), r, r.options()); err != nil {
		t.Fatal(err)
	}
	r.add(t, objects...)
	return r
}

// pluginPod is one that is ready on a node.
func pluginPod(node, ip string, port int32, options ...func(*corev1.Pod)) *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: testNamespace, Name: "plugin-" + node, Labels: testLabels, CreationTimestamp: metav1.NewTime(t0)},
		Spec: corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{
			Name: "plugin", Ports: []corev1.ContainerPort{{Name: "health", ContainerPort: 51515}, {Name: "metrics", ContainerPort: port}},
		}}},
		Status: corev1.PodStatus{
			Phase: corev1.PodRunning, PodIP: ip,
			Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
		},
	}
	for _, option := range options {
		option(pod)
	}
	return pod
}

// plugins serves the metrics of all nodes' plugins; which one is asked does not matter.
type plugins struct {
	*httptest.Server
	mu     sync.Mutex
	lines  []string
	asked  int
	answer http.HandlerFunc
}

func newPlugins(t testing.TB) *plugins {
	p := &plugins{}
	p.Server = httptest.NewServer(p)
	t.Cleanup(p.Close)
	return p
}

// ServeHTTP implements http.Handler.
func (p *plugins) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	p.asked++
	lines, answer := slices.Clone(p.lines), p.answer
	p.mu.Unlock()
	if answer != nil {
		answer(w, r)
		return
	}
	servePage(w, lines...)
}

func servePage(w http.ResponseWriter, lines ...string) {
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	fmt.Fprint(w, strings.Join(lines, "\n")+"\n")
}

func (p *plugins) tell(lines ...string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lines = lines
}

func (p *plugins) respond(answer http.HandlerFunc) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.answer = answer
}

func (p *plugins) requests() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.asked
}

// at is where it listens.
func (p *plugins) at(t testing.TB) (ip string, port int32) {
	t.Helper()
	ip, text, err := net.SplitHostPort(p.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.ParseInt(text, 10, 32)
	if err != nil {
		t.Fatal(err)
	}
	return ip, int32(n)
}

// page is what a plugin serves, with the series of its devices.
func page(devices ...[]string) []string {
	lines := []string{"# HELP go_goroutines Number of goroutines.", "# TYPE go_goroutines gauge", "go_goroutines 12"}
	for _, metric := range []string{gpu.MetricUtilization, gpu.MetricMemoryUsed, gpu.MetricMemoryTotal, gpu.MetricSampled} {
		lines = append(lines, "# HELP "+metric+" Something.", "# TYPE "+metric+" gauge")
	}
	return append(lines, slices.Concat(devices...)...)
}

// series are those of one device.
func series(device string, utilization, used, total float64, at time.Time) []string {
	return []string{
		fmt.Sprintf("%s{device=%q} %v", gpu.MetricUtilization, device, utilization),
		fmt.Sprintf("%s{device=%q} %v", gpu.MetricMemoryUsed, device, used),
		fmt.Sprintf("%s{device=%q} %v", gpu.MetricMemoryTotal, device, total),
		fmt.Sprintf("%s{device=%q} %v", gpu.MetricSampled, device, float64(at.UnixMilli())/1000),
	}
}

// amounts are quantities by name.
func amounts(pairs ...string) map[resourceapi.QualifiedName]resource.Quantity {
	out := map[resourceapi.QualifiedName]resource.Quantity{}
	for _, pair := range pairs {
		name, value, _ := strings.Cut(pair, "=")
		out[resourceapi.QualifiedName(name)] = resource.MustParse(value)
	}
	return out
}

// holder is a claim that holds devices, each "device" or "device/share" with what it consumes.
func holder(uid string, devices map[string]map[resourceapi.QualifiedName]resource.Quantity, options ...func(*resourceapi.DeviceRequestAllocationResult)) *resourceapi.ResourceClaim {
	claim := &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "llm", Name: "claim-" + uid, UID: types.UID(uid)},
		Status:     resourceapi.ResourceClaimStatus{Allocation: &resourceapi.AllocationResult{}},
	}
	for _, name := range slices.Sorted(maps.Keys(devices)) {
		device, share, shared := strings.Cut(name, "/")
		result := resourceapi.DeviceRequestAllocationResult{Request: "r", Driver: testDriver, Pool: "n1", Device: device, ConsumedCapacity: devices[name]}
		if shared {
			result.ShareID = ptr.To(types.UID(share))
		}
		for _, option := range options {
			option(&result)
		}
		claim.Status.Allocation.Devices.Results = append(claim.Status.Allocation.Devices.Results, result)
	}
	return claim
}

// ofClaims is a workload with a pod on a node for each claim.
func ofClaims(claims ...*resourceapi.ResourceClaim) workload.State {
	state := workload.State{Ref: workload.Ref{Kind: "Deployment", Namespace: "llm", Name: "vllm"}}
	for i, claim := range claims {
		pod := workload.Pod{Name: fmt.Sprintf("vllm-%d", i), Node: "n1"}
		for held := range devices.HoldingsWithAdmin(claim.Status.Allocation) {
			pod.Devices = append(pod.Devices, workload.Device{Holding: held, Claim: claim.UID})
		}
		state.Pods = append(state.Pods, pod)
	}
	return state
}

// poolSlice is a slice of the pool of node n1 with devices in shares.
func poolSlice(name string, generation int64, devices map[string]map[resourceapi.QualifiedName]resource.Quantity) *resourceapi.ResourceSlice {
	out := &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: name}}
	out.Spec.Driver, out.Spec.Pool = testDriver, resourceapi.ResourcePool{Name: "n1", Generation: generation}
	for _, device := range slices.Sorted(maps.Keys(devices)) {
		has := map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{}
		for name, quantity := range devices[device] {
			has[name] = resourceapi.DeviceCapacity{Value: quantity}
		}
		out.Spec.Devices = append(out.Spec.Devices, resourceapi.Device{Name: device, Capacity: has})
	}
	return out
}
