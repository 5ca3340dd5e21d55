package workload

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

var (
	vllm  = ofWorkload(KindDeployment, "vllm")
	noon  = time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)
	basis = []client.Object{newDeployment("vllm"), newReplicaSet("vllm-1", "vllm"), newClass("gpu", "nvidia.com/gpu"), newClass("mig", ""), newTemplate("gpu", "gpu")}
)

func requests(resources ...corev1.ResourceName) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		for _, name := range resources {
			pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{
				Name:      "c",
				Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{name: resource.MustParse("2")}},
			})
		}
	}
}

func inPhase(phase corev1.PodPhase) func(*corev1.Pod) {
	return func(pod *corev1.Pod) { pod.Status.Phase = phase }
}

func deleting(object client.Object) {
	object.SetDeletionTimestamp(&metav1.Time{Time: noon})
	object.SetFinalizers([]string{"keep"})
}

func TestCountsWhatWaits(t *testing.T) {
	alternatives := newClaim("c")
	alternatives.Spec.Devices.Requests = []resourceapi.DeviceRequest{{Name: "r", FirstAvailable: []resourceapi.DeviceSubRequest{
		{Name: "a", DeviceClassName: "mig"}, {Name: "b", DeviceClassName: "gpu"}, {Name: "c", DeviceClassName: "gpu"},
	}}}
	ending := newClaim("c", "gpu")
	deleting(ending)
	elsewhere := newPod("a", "", namesClaim("g", "c"))
	elsewhereClaim := newClaim("c", "gpu")
	elsewhere.Namespace, elsewhereClaim.Namespace = "other", "other"
	stolen := generated("b", "g", "gpu")
	stolen.Name = "a-g"
	older, newer := newClass("old", "example.com/gpu"), newClass("new", "example.com/gpu")
	newer.CreationTimestamp = metav1.NewTime(noon)
	for name, test := range map[string]struct {
		objects            []client.Object
		workload, gpu, mig int
	}{
		"nothing":                                    {nil, 0, 0, 0},
		"a claim that no pod names":                  {[]client.Object{newClaim("c", "gpu")}, 0, 0, 0},
		"a shared claim":                             {[]client.Object{newClaim("c", "gpu"), newPod("a", "vllm-1", namesClaim("g", "c"))}, 1, 1, 0},
		"a shared claim of two pods":                 {[]client.Object{newClaim("c", "gpu"), newPod("a", "vllm-1", namesClaim("g", "c")), newPod("b", "vllm-1", namesClaim("g", "c"))}, 1, 1, 0},
		"a shared claim, twice in a pod":             {[]client.Object{newClaim("c", "gpu"), newPod("a", "vllm-1", namesClaim("g", "c"), namesClaim("h", "c"))}, 1, 1, 0},
		"a shared claim with a pod without an owner": {[]client.Object{newClaim("c", "gpu"), newPod("a", "vllm-1", namesClaim("g", "c")), newPod("b", "", namesClaim("g", "c"))}, 1, 1, 0},
		"a shared claim that is not there":           {[]client.Object{newPod("a", "vllm-1", namesClaim("g", "c"))}, 0, 0, 0},
		"a claim that is allocated":                  {[]client.Object{allocated(newClaim("c", "gpu"), noon), newPod("a", "vllm-1", namesClaim("g", "c"))}, 0, 0, 0},
		"a claim that is being deleted":              {[]client.Object{ending, newPod("a", "vllm-1", namesClaim("g", "c"))}, 0, 0, 0},
		"a generated claim":                          {[]client.Object{generated("a", "g", "gpu"), newPod("a", "vllm-1", namesTemplate("g", "gpu"), hasGenerated("g"))}, 1, 1, 0},
		"a generated claim, not named yet":           {[]client.Object{generated("a", "g", "gpu"), newPod("a", "vllm-1", namesTemplate("g", "gpu"))}, 1, 1, 0},
		"a generated claim, not seen yet":            {[]client.Object{newPod("a", "vllm-1", namesTemplate("g", "gpu"), hasGenerated("g"))}, 1, 1, 0},
		"a claim generated for another pod":          {[]client.Object{allocated(stolen, noon), newPod("a", "vllm-1", namesTemplate("g", "gpu"), hasGenerated("g"))}, 1, 1, 0},
		"two generated claims":                       {[]client.Object{newPod("a", "vllm-1", namesTemplate("g", "gpu"), namesTemplate("h", "gpu"))}, 2, 2, 0},
		"a template that is not there":               {[]client.Object{newPod("a", "vllm-1", namesTemplate("g", "none"))}, 1, 0, 0},
		"a pod on a node, its claim gone":            {[]client.Object{newPod("a", "vllm-1", namesTemplate("g", "gpu"), on("n"))}, 0, 0, 0},
		"an entry that needs no claim":               {[]client.Object{newPod("a", "vllm-1", namesTemplate("g", "gpu"), func(p *corev1.Pod) { p.Status.ResourceClaimStatuses = []corev1.PodResourceClaimStatus{{Name: "g"}} })}, 0, 0, 0},
		"a claim for two classes":                    {[]client.Object{newClaim("c", "gpu", "mig", "gpu"), newPod("a", "vllm-1", namesClaim("g", "c"))}, 1, 1, 1},
		"a claim with alternatives":                  {[]client.Object{alternatives, newPod("a", "vllm-1", namesClaim("g", "c"))}, 1, 1, 1},
		"a pod that has ended":                       {[]client.Object{newPod("a", "vllm-1", namesTemplate("g", "gpu"), inPhase(corev1.PodFailed))}, 0, 0, 0},
		"a pod that has succeeded":                   {[]client.Object{newPod("a", "vllm-1", namesTemplate("g", "gpu"), inPhase(corev1.PodSucceeded))}, 0, 0, 0},
		"a pod that is being deleted":                {[]client.Object{newPod("a", "vllm-1", namesTemplate("g", "gpu"), func(p *corev1.Pod) { deleting(p) })}, 0, 0, 0},
		"another namespace":                          {[]client.Object{elsewhere, elsewhereClaim}, 0, 0, 0},
		"another Deployment's":                       {[]client.Object{newReplicaSet("x-1", "x"), newPod("a", "x-1", namesTemplate("g", "gpu"))}, 0, 1, 0},
		"a ReplicaSet that is not there":             {[]client.Object{newPod("a", "x-1", namesTemplate("g", "gpu"))}, 0, 1, 0},
		"an extended resource":                       {[]client.Object{newPod("a", "vllm-1", requests("nvidia.com/gpu", "nvidia.com/gpu", "cpu"))}, 1, 1, 0},
		"a class's own resource":                     {[]client.Object{newPod("a", "vllm-1", requests("deviceclass.resource.kubernetes.io/mig", "nvidia.com/gpu"))}, 1, 1, 1},
		"an extended resource without a class":       {[]client.Object{newPod("a", "vllm-1", requests("example.com/fpga"))}, 0, 0, 0},
		"an extended resource, on a node":            {[]client.Object{newPod("a", "vllm-1", requests("nvidia.com/gpu"), on("n"))}, 0, 0, 0},
		"an extended resource of two classes":        {[]client.Object{older, newer, newPod("a", "vllm-1", requests("example.com/gpu"))}, 1, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, append(test.objects, basis...)...)
			for _, count := range []struct {
				of   Pending
				want int
			}{{vllm, test.workload}, {ofClass("gpu"), test.gpu}, {ofClass("mig"), test.mig}} {
				got, err := w.index.Pending(t.Context(), count.of)
				if err != nil || got != count.want {
					t.Errorf("of %v %s: got %d, %v, want %d", count.of.Workload, count.of.Class, got, err, count.want)
				}
			}
		})
	}
}

func TestTheNewestClassStandsForAResource(t *testing.T) {
	older, newer := newClass("a", "example.com/gpu"), newClass("b", "example.com/gpu")
	newer.CreationTimestamp = metav1.NewTime(noon)
	w := newWorld(t, older, newPod("p", "", requests("example.com/gpu")))
	a, b := w.watch(ofClass("a")), w.watch(ofClass("b"))
	w.await(a, 1)
	w.add(newer)
	w.await(b, 1)
	w.await(a, 0)
	renamed := newClass("b", "")
	w.change(renamed)
	w.await(a, 1)
	w.await(b, 0)
	w.remove(older)
	w.await(a, 0)
}

func TestCountsOfEachKindOfWorkload(t *testing.T) {
	set := &appsv1.StatefulSet{ObjectMeta: named("db")}
	job := &batchv1.Job{ObjectMeta: named("train")}
	w := newWorld(t, set, job, newReplicaSet("alone", ""), newTemplate("gpu", "gpu"),
		newPod("a", "alone", namesTemplate("g", "gpu")),
		newPod("b", "", namesTemplate("g", "gpu"), func(p *corev1.Pod) { p.OwnerReferences = owner("apps/v1", KindStatefulSet, "db") }),
		newPod("c", "", namesTemplate("g", "gpu"), func(p *corev1.Pod) { p.OwnerReferences = owner("batch/v1", KindJob, "train") }))
	for kind, name := range map[string]string{KindReplicaSet: "alone", KindStatefulSet: "db", KindJob: "train"} {
		if got, err := w.index.Pending(t.Context(), ofWorkload(kind, name)); err != nil || got != 1 {
			t.Errorf("%s/%s: got %d, %v, want 1", kind, name, got, err)
		}
	}
}

// A slow reader gets the last count; others are not held up by it.
func TestASlowReaderMissesCountsButTheLast(t *testing.T) {
	w := newWorld(t, basis...)
	slow, quick := w.watch(vllm), w.watch(vllm)
	for _, name := range []string{"a", "b", "c"} {
		w.add(newPod(name, "vllm-1", namesTemplate("g", "gpu")))
	}
	w.await(quick, 3)
	w.index.tally.count(*vllm.Workload) // waits until the last count has been pushed to all
	if got := <-slow; got != 3 {
		t.Errorf("the slow reader got %d first, want the last count, 3", got)
	}
}

// What counts stays the same while a claim is made for a pod: no watcher is notified.
func TestMakingAPodsClaimChangesNoCount(t *testing.T) {
	w := newWorld(t, basis...)
	counts := w.watch(vllm)
	w.await(counts, 0)
	pod := newPod("a", "vllm-1", namesTemplate("g", "gpu"))
	w.add(pod)
	w.await(counts, 1)
	w.change(with(pod, hasGenerated("g")))
	w.add(generated("a", "g", "gpu"))
	w.add(newPod("b", "vllm-1", namesTemplate("g", "gpu")))
	if got := <-counts; got != 2 {
		t.Errorf("the count after 1 is %d, want 2", got)
	}
	w.change(allocated(generated("a", "g", "gpu"), noon))
	w.await(counts, 1)
}

func TestAWatchEndsWithItsContext(t *testing.T) {
	w := newWorld(t, basis...)
	ctx, cancel := context.WithCancel(t.Context())
	counts, err := w.index.Watch(ctx, vllm)
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	for range counts { // ends when the channel is closed
	}
	w.index.tally.mu.Lock()
	defer w.index.tally.mu.Unlock()
	if len(w.index.tally.watchers) != 0 {
		t.Errorf("%d watchers are left", len(w.index.tally.watchers))
	}
}

func TestAWorkloadMayComeAfterItsWatch(t *testing.T) {
	w := newWorld(t, newTemplate("gpu", "gpu"), newPod("a", "vllm-1", namesTemplate("g", "gpu")))
	counts := w.watch(vllm)
	w.await(counts, 0)
	w.add(newDeployment("vllm"), newReplicaSet("vllm-1", "vllm"))
	w.await(counts, 1)
	w.remove(newReplicaSet("vllm-1", "vllm"))
	w.await(counts, 0)
}

func TestAnErrorSaysWhatCannotBeCounted(t *testing.T) {
	w := newWorld(t, basis...)
	foreign := Pending{Namespace: "other", Workload: vllm.Workload}
	both := vllm
	both.Class = "gpu"
	for name, test := range map[string]struct {
		of   Pending
		want string
	}{
		"no such workload":  {ofWorkload(KindDeployment, "vlm"), `Deployment/vlm does not exist in namespace "llm": create it, or name one that is there`},
		"no such class":     {ofClass("gqu"), "DeviceClass gqu does not exist: the cluster has [gpu, mig]"},
		"no such kind":      {ofWorkload("DaemonSet", "vllm"), `workloads of kind "DaemonSet" are not known: name one of Deployment, StatefulSet, ReplicaSet or Job`},
		"a Deployment's":    {ofWorkload(KindReplicaSet, "vllm-1"), `ReplicaSet/vllm-1 in namespace "llm" is one of Deployment/vllm, which decides how many replicas it has: name that one`},
		"another namespace": {foreign, `claims of Deployment/vllm in namespace "llm" are not counted for namespace "other"`},
		"both":              {both, "claims are counted by workload or by class, not by both Deployment/vllm and gpu"},
		"neither":           {Pending{Namespace: namespace}, "cannot count claims: name a workload or a class"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := w.index.Pending(t.Context(), test.of); err == nil || err.Error() != test.want {
				t.Errorf("got %v, want %s", err, test.want)
			}
		})
	}
	if _, err := w.index.Pending(t.Context(), ofClass("gqu")); !errors.Is(err, ErrNotFound) {
		t.Errorf("%v is not ErrNotFound", err)
	}
	for _, of := range []Pending{foreign, both, {}} {
		if _, err := w.index.Watch(t.Context(), of); err == nil {
			t.Errorf("%+v is watched", of)
		}
	}
}

func TestNothingIsCountedBeforeTheClusterIsRead(t *testing.T) {
	if _, err := New(nil, driver, nil).Pending(t.Context(), vllm); err == nil {
		t.Error("an index without a cache counts")
	}
	w := newWorld(t, basis...)
	w.index.handlers = append(w.index.handlers, unread{})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := w.index.Pending(ctx, vllm); !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "have not been read completely yet") {
		t.Errorf("got %v, want that the cluster has not been read", err)
	}
}

// unread is a kind that is never read completely.
type unread struct{}

func (unread) HasSynced() bool                          { return false }
func (unread) HasSyncedChecker() toolscache.DoneChecker { return unread{} }
func (unread) Name() string                             { return "unread" }
func (unread) Done() <-chan struct{}                    { return nil }

func TestABrokenCountIsAnError(t *testing.T) {
	w := newWorld(t, basis...)
	w.index.fail(t.Context(), errors.New("no index"))
	if _, err := w.index.Pending(t.Context(), vllm); err == nil || !strings.Contains(err.Error(), "restart the controller: no index") {
		t.Errorf("got %v, want the failure", err)
	}
}
