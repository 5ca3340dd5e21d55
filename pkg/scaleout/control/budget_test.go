package control

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/mica-gpu/mica/api/v1alpha1"
	"github.com/mica-gpu/mica/pkg/scaleout/autoscaler"
)

func TestABudgetTellsWhatItHasAndHolds(t *testing.T) {
	price := resource.MustParse("4.6")
	w := newWorld(t, append(oneGPU(9), group("g6", func(g *v1alpha1.GPUNodeGroup) { g.Spec.PricePerHour = &price }),
		&v1alpha1.GPUBudget{ObjectMeta: metav1.ObjectMeta{Name: "team"}, Spec: v1alpha1.GPUBudgetSpec{GPUs: ptr.To[int32](8)}})...)
	w.run(4 * time.Minute)
	if got := w.nodes(); got != 2 {
		t.Errorf("there are %d nodes of 4 GPUs, want 2 within a budget of 8", got)
	}
	var budget v1alpha1.GPUBudget
	if err := w.client.Get(t.Context(), types.NamespacedName{Name: "team"}, &budget); err != nil {
		t.Fatal(err)
	}
	if want := (v1alpha1.GPUBudgetStatus{ObservedGeneration: 1, GPUs: 8, PricePerHour: "9.2", Held: 1}); budget.Status != want {
		t.Errorf("the status is %+v, want %+v", budget.Status, want)
	}
	before := w.writes
	w.pass()
	if w.writes != before {
		t.Errorf("a pass without a change has written %d times", w.writes-before)
	}
}

// A budget that was changed or deleted meanwhile is no failure.
func TestABudgetThatCannotBeWrittenSaysSo(t *testing.T) {
	budgets := schema.GroupResource{Resource: "gpubudgets"}
	for name, test := range map[string]struct {
		answer error
		again  bool
		want   string
	}{
		"written":      {nil, false, "<nil>"},
		"changed":      {apierrors.NewConflict(budgets, "team", errors.New("it has changed")), true, "<nil>"},
		"deleted":      {apierrors.NewNotFound(budgets, "team"), true, "<nil>"},
		"not answered": {errors.New("no answer"), false, "write the status of GPUBudget team: no answer"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.loop.Client = interceptor.NewClient(w.client, interceptor.Funcs{
				SubResourceUpdate: func(context.Context, client.Client, string, client.Object, ...client.SubResourceUpdateOption) error {
					return test.answer
				},
			})
			_, err := w.loop.updateStatus(t.Context(), "GPUBudget", &v1alpha1.GPUBudget{ObjectMeta: metav1.ObjectMeta{Name: "team"}})
			if again := len(w.loop.dirty) > 0; again != test.again {
				t.Errorf("another pass is due: %t", again)
			}
			if said := fmt.Sprint(err); said != test.want {
				t.Errorf("the failure is %q, want %q", said, test.want)
			}
		})
	}
}

// What Cluster Autoscaler has asked for, and has not come, still counts when its status is away: it deletes it when
// it ends (ExitCleanUp), and one that hangs leaves it to grow old. After the time that a node may take, it counts no more.
func TestABudgetRemembersWhatTheAutoscalerHasAskedFor(t *testing.T) {
	for name, away := range map[string]func(*world, *corev1.ConfigMap){
		"restarts": func(w *world, status *corev1.ConfigMap) {
			if err := w.client.Delete(w.t.Context(), status); err != nil {
				w.t.Fatal(err)
			}
		},
		"hangs": func(w *world, _ *corev1.ConfigMap) { w.clock.Step(autoscaler.Fresh + time.Minute) },
		"has just started": func(w *world, status *corev1.ConfigMap) {
			status.Data = map[string]string{"status": writtenAt(w.clock.Now())}
			w.update(status)
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, append(oneGPU(1), group("g6"), budget(4))...)
			status := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: autoscaler.Namespace, Name: autoscaler.StatusName}}
			if err := w.client.Get(t.Context(), client.ObjectKeyFromObject(status), status); err != nil {
				t.Fatal(err)
			}
			status.Data = map[string]string{"status": writtenAt(w.clock.Now()) + "nodeGroups:\n- name: g6\n  health:\n    cloudProviderTarget: 1\n    maxSize: 5\n"}
			w.update(status)
			expect := func(when string, gpus int32, placeholders int) {
				t.Helper()
				w.say(&all(w, &corev1.PodList{}).Items[0], "NotTriggerScaleUp", "pod didn't trigger scale-up")
				w.pass()
				w.pass()
				var b v1alpha1.GPUBudget
				if err := w.client.Get(t.Context(), types.NamespacedName{Name: "all"}, &b); err != nil {
					t.Fatal(err)
				}
				if b.Status.GPUs != gpus || w.placeholders() != placeholders {
					t.Errorf("%s: %d GPUs are there or coming, with %d placeholders, want %d and %d", when, b.Status.GPUs, w.placeholders(), gpus, placeholders)
				}
			}
			expect("before", 4, 0)
			away(w, status)
			expect("at once", 4, 0)
			w.restart()
			w.clock.Step(v1alpha1.DefaultProvisionTimeout - autoscaler.Fresh - 2*time.Minute)
			expect("with another leader, later", 4, 0)
			w.clock.Step(autoscaler.Fresh + 3*time.Minute)
			expect("after the time that a node may take", 4, 1)
		})
	}
}

// writtenAt is the beginning of what Cluster Autoscaler writes.
func writtenAt(now time.Time) string {
	return fmt.Sprintf("time: %q\n", now.UTC().Format("2006-01-02 15:04:05.999999999 -0700 MST"))
}
