package control

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/mica-gpu/mica/api/v1alpha1"
)

func TestABudgetReportsItsNodesAndHeldPods(t *testing.T) {
	price := resource.MustParse("4.6")
	w := newWorld(t, append(oneGPU(9), group("g6", func(g *v1alpha1.GPUNodeGroup) { g.Spec.PricePerHour = &price }),
		&v1alpha1.GPUBudget{ObjectMeta: metav1.ObjectMeta{Name: "team"}, Spec: v1alpha1.GPUBudgetSpec{GPUs: ptr.To[int32](8)}})...)
	w.run(4 * time.Minute)
	if got := w.nodes(); got != 2 {
		t.Errorf("there are %d nodes of 4 GPUs, want 2 within a budget of 8", got)
	}
	budget := get(w, &v1alpha1.GPUBudget{}, "", "team")
	if want := (v1alpha1.GPUBudgetStatus{ObservedGeneration: 1, GPUs: 8, PricePerHour: "9.2", Held: 1}); budget.Status != want {
		t.Errorf("the status is %+v, want %+v", budget.Status, want)
	}
	before := w.writes
	w.pass()
	if w.writes != before {
		t.Errorf("a pass without a change has written %d times", w.writes-before)
	}
}

// An object that was changed or deleted meanwhile is left to the next pass.
func TestFailuresToWriteAStatus(t *testing.T) {
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
			if got := fmt.Sprint(err); got != test.want {
				t.Errorf("the failure is %q, want %q", got, test.want)
			}
		})
	}
}
