package deletioncost

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	testingclock "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/mica-gpu/mica/pkg/devices"
	"github.com/mica-gpu/mica/pkg/elastic/usage"
	"github.com/mica-gpu/mica/pkg/elastic/workload"
)

var llm = workload.Ref{Kind: workload.KindDeployment, Namespace: "llm", Name: "llm"}

// world is a cluster whose pods hold a device each.
type world struct {
	client.WithWatch
	clock *testingclock.FakeClock
	pods  []workload.Pod
	busy  map[string]float64
	err   error
}

func (w *world) Workload(context.Context, workload.Ref) (workload.State, error) {
	return workload.State{Ref: llm, ByCost: true, Pods: w.pods}, nil
}

func (w *world) Usage(_ context.Context, of workload.State) (usage.Usage, error) {
	return usage.Usage{Utilization: usage.Mean{Value: w.busy[of.Pods[0].Name]}, Devices: 1}, w.err
}

// replicas are written as NAME:NODE:BUSY, a standby with a busyness of -1.
func newWorld(t *testing.T, replicas ...string) *world {
	t.Helper()
	w := &world{clock: testingclock.NewFakeClock(time.Date(2026, 9, 1, 8, 0, 0, 0, time.UTC)), busy: map[string]float64{}}
	var objects []client.Object
	for _, text := range replicas {
		parts := strings.Split(text, ":")
		var busy float64
		if _, err := fmt.Sscan(parts[2], &busy); err != nil {
			t.Fatal(err)
		}
		p := workload.Pod{UID: types.UID("uid-" + parts[0]), Name: parts[0], Node: parts[1], Gate: workload.Open, Devices: []workload.Device{{Holding: devices.Holding{ID: devices.ID{Name: "gpu-0"}}}}}
		if busy < 0 {
			p.Gate, busy = workload.Standby, 0
		}
		w.pods, w.busy[p.Name] = append(w.pods, p), busy
		o := &corev1.Pod{}
		o.Namespace, o.Name, o.UID, o.Spec.NodeName = llm.Namespace, p.Name, p.UID, p.Node
		o.Annotations = map[string]string{AnnotationManage: "true"}
		o.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu"}}
		objects = append(objects, o)
	}
	builder := fake.NewClientBuilder().WithObjects(objects...)
	if err := Index(t.Context(), indexer{builder}); err != nil {
		t.Fatal(err)
	}
	// As the API server, which takes metadata along with a status.
	w.WithWatch = interceptor.NewClient(builder.Build(), interceptor.Funcs{
		SubResourcePatch: func(ctx context.Context, c client.Client, _ string, o client.Object, p client.Patch, _ ...client.SubResourcePatchOption) error {
			return c.Patch(ctx, o, p)
		},
	})
	return w
}

// indexer adds the index to a fake cluster.
type indexer struct{ *fake.ClientBuilder }

func (i indexer) IndexField(_ context.Context, object client.Object, field string, values client.IndexerFunc) error {
	i.WithIndex(object, field, values)
	return nil
}

func (w *world) writer() *Writer {
	return New(Options{Workloads: w, Usages: w, Client: w, Reader: w, Clock: w.clock})
}

// costs are of the pods by their names, with the costs that were written.
func (w *world) costs(t *testing.T) []string {
	t.Helper()
	var list corev1.PodList
	if err := w.List(t.Context(), &list); err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, pod := range list.Items {
		if cost := pod.Annotations[corev1.PodDeletionCost]; cost != "" {
			all = append(all, pod.Name+" "+cost)
		}
	}
	return all
}

func TestWhoHasLeastToDoGoesFirst(t *testing.T) {
	for _, test := range []struct {
		name     string
		replicas []string
		want     []string
	}{
		{"all alike", []string{"a:n1:0.5", "b:n2:0.5"}, nil},
		{"load", []string{"a:n1:0.9", "b:n2:0.1"}, []string{"a 400"}},
		{"a little more load is none", []string{"a:n1:0.52", "b:n2:0.5"}, nil},
		{"who leaves a node empty", []string{"a:n1:0.5", "b:n1:0.5", "c:n2:0.5"}, []string{"a 201", "b 201", "c 200"}},
		{"load is before nodes", []string{"a:n1:0", "b:n1:0", "c:n2:1"}, []string{"a 1", "b 1", "c 400"}},
		{"standbys", []string{"a:n1:0", "b:n2:-1"}, []string{"b -1000"}},
		{"one alone", []string{"a:n1:0.5"}, nil},
	} {
		w := newWorld(t, test.replicas...)
		if err := w.writer().look(t.Context(), llm); err != nil {
			t.Errorf("%s: %v", test.name, err)
		}
		if got := w.costs(t); !slices.Equal(got, test.want) {
			t.Errorf("%s: wrote %q, want %q", test.name, got, test.want)
		}
	}
}

func TestAPodIsWrittenOnceAMinute(t *testing.T) {
	w := newWorld(t, "a:n1:1", "b:n2:0")
	writer := w.writer()
	look := func() {
		writer.current()
		if err := writer.look(t.Context(), llm); err != nil {
			t.Fatal(err)
		}
	}
	look()
	w.busy["a"], w.busy["b"] = 0, 1
	look()
	if got := w.costs(t); !slices.Equal(got, []string{"a 400", "b 400"}) {
		t.Errorf("within the minute: %q", got)
	}
	w.clock.Step(atMost + time.Second)
	look()
	if got := w.costs(t); !slices.Equal(got, []string{"a 0", "b 400"}) {
		t.Errorf("after it: %q", got)
	}
	w.busy["b"] = 0.4 // in the right order still
	w.clock.Step(2 * atMost)
	look()
	if got := w.costs(t); !slices.Equal(got, []string{"a 0", "b 400"}) {
		t.Errorf("without need: %q", got)
	}
}

func TestNothingIsWrittenOfDevicesThatDoNotTell(t *testing.T) {
	w := newWorld(t, "a:n1:1", "b:n2:0")
	w.err = errors.New("the plugin is away")
	if err := w.writer().look(t.Context(), llm); err == nil || len(w.costs(t)) > 0 {
		t.Errorf("%v, wrote %q", err, w.costs(t))
	}
}

func TestWorkloadsThatAreNotScaledAreForgotten(t *testing.T) {
	w := newWorld(t)
	writer := w.writer()
	writer.Scaled(llm)
	writer.Scaled(workload.Ref{Kind: workload.KindStatefulSet, Namespace: "llm", Name: "ordinals"})
	if got := writer.current(); !slices.Equal(got, []workload.Ref{llm}) {
		t.Errorf("looks at %v", got)
	}
	w.clock.Step(forgotten + time.Second)
	if got := writer.current(); len(got) > 0 {
		t.Errorf("still looks at %v", got)
	}
}

// An existing cost is a user's choice, and so is the annotation that leaves it to Mica.
func TestCostsOfOthersStay(t *testing.T) {
	for name, test := range map[string]struct {
		annotations map[string]string
		want        []string
	}{
		"a workload that did not ask": {map[string]string{AnnotationManage: ""}, nil},
		"a user's cost":               {map[string]string{AnnotationManage: "true", corev1.PodDeletionCost: "1000"}, []string{"b 1000"}},
		"a cost that replaced Mica's": {map[string]string{AnnotationManage: "true", corev1.PodDeletionCost: "-100", annotationWritten: "0"}, []string{"b -100"}},
		"Mica's own":                  {map[string]string{AnnotationManage: "true", corev1.PodDeletionCost: "0", annotationWritten: "0"}, []string{"a 100", "b 400"}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, "a:n1:0.25", "b:n2:1")
			for _, pod := range []string{"a", "b"} {
				if pod == "a" && name != "a workload that did not ask" {
					continue
				}
				var object corev1.Pod
				key := client.ObjectKey{Namespace: llm.Namespace, Name: pod}
				if err := w.Get(t.Context(), key, &object); err != nil {
					t.Fatal(err)
				}
				object.Annotations = test.annotations
				if err := w.Update(t.Context(), &object); err != nil {
					t.Fatal(err)
				}
			}
			for range 3 {
				if err := w.writer().look(t.Context(), llm); err != nil {
					t.Fatal(err)
				}
			}
			if got := w.costs(t); !slices.Equal(got, test.want) {
				t.Errorf("the costs are %q, want %q", got, test.want)
			}
		})
	}
}
