package standby

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/mica-gpu/mica/api/v1alpha1"
	"github.com/mica-gpu/mica/pkg/elastic/workload"
	"github.com/mica-gpu/mica/test/fixture"
)

// world is an API server, and writes that fail first.
type world struct {
	client.WithWatch
	mu      sync.Mutex
	writes  int
	failing int
}

func newWorld(t *testing.T, objects ...client.Object) *world {
	t.Helper()
	w := &world{}
	w.WithWatch = interceptor.NewClient(fake.NewClientBuilder().WithObjects(objects...).WithStatusSubresource(&corev1.Pod{}).Build(), interceptor.Funcs{
		SubResourcePatch: func(ctx context.Context, c client.Client, name string, o client.Object, p client.Patch, opts ...client.SubResourcePatchOption) error {
			w.mu.Lock()
			w.writes++
			fails := w.writes <= w.failing
			w.mu.Unlock()
			if fails {
				return errors.New("etcd is away")
			}
			return c.SubResource(name).Patch(ctx, o, p, opts...)
		},
	})
	return w
}

func object(name string, conditions ...corev1.PodCondition) *corev1.Pod {
	pod := &corev1.Pod{}
	pod.Namespace, pod.Name, pod.UID = "llm", name, types.UID("uid-"+name)
	pod.Spec.ReadinessGates = []corev1.PodReadinessGate{{ConditionType: v1alpha1.ConditionServing}}
	pod.Status.Conditions = conditions
	return pod
}

// condition is the gate's, of a pod.
func (w *world) condition(t *testing.T, name string) corev1.PodCondition {
	t.Helper()
	var pod corev1.Pod
	if err := w.Get(t.Context(), client.ObjectKey{Namespace: "llm", Name: name}, &pod); err != nil {
		t.Fatal(err)
	}
	for _, c := range pod.Status.Conditions {
		if c.Type == v1alpha1.ConditionServing {
			return c
		}
	}
	return corev1.PodCondition{}
}

// await waits for the gate's reason.
func (w *world) await(t *testing.T, name, reason string) corev1.PodCondition {
	t.Helper()
	var c corev1.PodCondition
	fixture.Eventually(t, "the gate of pod "+name, func() error {
		if c = w.condition(t, name); c.Reason != reason {
			return fmt.Errorf("it is %+v, want reason %q", c, reason)
		}
		return nil
	})
	return c
}

func start(t *testing.T, k *Keeper) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- k.Start(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

func TestGatesAreOpenedAndTheOthersSayWhyNot(t *testing.T) {
	loaded := corev1.PodCondition{Type: corev1.ContainersReady, Status: corev1.ConditionTrue}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}
	w := newWorld(t, node, object("a", loaded), object("b", loaded))
	k := NewKeeper(w, w, clock.RealClock{})
	start(t, k)
	target := &workload.State{Ref: workload.Ref{Kind: "Deployment", Namespace: "llm", Name: "llm"},
		Pods: []workload.Pod{pod("a", workload.Standby), pod("b", workload.Standby)}}

	k.Serve(t.Context(), target, 1, "ScaledObject llm")
	if c := w.await(t, "a", reasonServing); c.Status != corev1.ConditionTrue || c.LastTransitionTime.IsZero() || !strings.Contains(c.Message, "ScaledObject llm has work for 1 serving pods of Deployment/llm") {
		t.Errorf("opened: %+v", c)
	}
	if c := w.await(t, "b", reasonStandby); c.Status != corev1.ConditionFalse || !strings.Contains(c.Message, "out of Endpoints until ScaledObject llm has work") {
		t.Errorf("closed: %+v", c)
	}
	// The cache does not have it yet: nothing is written twice, and nothing more opened.
	k.Serve(t.Context(), target, 1, "ScaledObject llm")
	k.Serve(t.Context(), target, 0, "ScaledObject llm")
	k.Serve(t.Context(), target, 2, "ScaledObject llm")
	w.await(t, "b", reasonServing)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.writes != 3 {
		t.Errorf("there were %d writes, want 3", w.writes)
	}
}

func TestAGateThatCouldNotBeOpenedIsTriedAgain(t *testing.T) {
	w := newWorld(t, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}, object("a"))
	w.failing = 1
	k := NewKeeper(w, w, clock.RealClock{})
	start(t, k)
	target := &workload.State{Ref: workload.Ref{Namespace: "llm"}, Pods: []workload.Pod{pod("a", workload.Standby)}}
	fixture.Eventually(t, "the gate is opened", func() error {
		k.Serve(t.Context(), target, 1, "it")
		if c := w.condition(t, "a"); c.Status != corev1.ConditionTrue {
			return fmt.Errorf("it is %+v", c)
		}
		return nil
	})
}

// Another replica has opened it, and the cache of this one does not show that yet.
func TestAStaleCacheClosesNoGate(t *testing.T) {
	w := newWorld(t, object("a"))
	var stale corev1.Pod
	if err := w.Get(t.Context(), client.ObjectKey{Namespace: "llm", Name: "a"}, &stale); err != nil {
		t.Fatal(err)
	}
	behind := interceptor.NewClient(w, interceptor.Funcs{
		Get: func(_ context.Context, _ client.WithWatch, _ client.ObjectKey, o client.Object, _ ...client.GetOption) error {
			stale.DeepCopyInto(o.(*corev1.Pod))
			return nil
		},
	})
	a := task{pod: client.ObjectKeyFromObject(&stale), uid: stale.UID}
	opens, waits := a, a
	opens.open, opens.reason, waits.reason = true, reasonServing, reasonStandby
	if err := write(t.Context(), w, &opens, time.Now()); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]client.Client{"behind": behind, "up to date": w} {
		if err := write(t.Context(), c, &waits, time.Now()); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if c := w.condition(t, "a"); c.Status != corev1.ConditionTrue {
			t.Errorf("%s: %+v", name, c)
		}
	}
}

// A pod of the same name may be another by now: the API server refuses a patch of another UID.
func TestOnlyThePodThatWasMeantIsOpened(t *testing.T) {
	data, err := conditionPatch(&task{uid: "uid-a", open: true}, "", time.Now()).Data(nil)
	if err != nil || !strings.Contains(string(data), `"uid":"uid-a"`) {
		t.Errorf("%v, %s", err, data)
	}
}
