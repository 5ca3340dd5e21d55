package pair

import (
	"context"
	"errors"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/mica-gpu/mica/api/v1alpha1"
	"github.com/mica-gpu/mica/pkg/scaleout/view"
)

// An overloaded API server takes many seconds per request. Hundreds of requests per pass would make that worse, and the
// liveness probe would end the controller.
func TestAnOverloadedServerIsAskedOnceForEachKind(t *testing.T) {
	for name, refusal := range map[string]error{
		"too many requests": apierrors.NewTooManyRequests("busy", 10),
		"server timeout":    apierrors.NewServerTimeout(corev1.Resource("nodes"), "patch", 1),
		"unavailable":       apierrors.NewServiceUnavailable("starting"),
		"client timeout":    fmt.Errorf("patch: %w", context.DeadlineExceeded),
	} {
		t.Run(name, func(t *testing.T) {
			var objects []client.Object
			result := &Result{Status: map[string]GroupStatus{}}
			for i := range 50 {
				node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("n", i)}}
				objects = append(objects, node)
				result.Actions = append(result.Actions, protect{Node: node.Name, For: forUse}, markNode{Node: node, Mark: view.Mark{Step: view.StepEmpty, Since: epoch}})
				group := fmt.Sprint("g", i)
				pod := placeholderOf(group, "mica-"+group)
				result.Actions = append(result.Actions, createPlaceholder{Pod: pod})
				result.Status[group] = GroupStatus{InFlight: []v1alpha1.InFlight{{ID: pod.Name}}}
			}
			asked := 0
			c := apiWith(t, interceptor.Funcs{
				Patch: func(context.Context, client.WithWatch, client.Object, client.Patch, ...client.PatchOption) error {
					asked++
					return refusal
				},
				Create: func(context.Context, client.WithWatch, client.Object, ...client.CreateOption) error {
					asked++
					return refusal
				},
			}, objects...)
			if err := (&Executor{Client: c}).Do(t.Context(), result); err == nil {
				t.Error("no error")
			}
			if asked != 3 {
				t.Errorf("the API server was asked %d times, want 3: once for each kind of action", asked)
			}
			for group, status := range result.Status {
				if len(status.InFlight) > 0 {
					t.Errorf("group %s has %v in flight", group, status.InFlight)
				}
			}
		})
	}
}

// If the time for acting ends between two actions, no status mentions the rest.
func TestWhatIsNotDoneInTimeIsNotInFlight(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	c := apiWith(t, interceptor.Funcs{Create: func(ctx context.Context, c client.WithWatch, o client.Object, options ...client.CreateOption) error {
		defer cancel()
		return c.Create(ctx, o, options...)
	}})
	result := &Result{
		Actions: []Action{createPlaceholder{Pod: placeholderOf("a", "mica-a-0")}, createPlaceholder{Pod: placeholderOf("b", "mica-b-0")}},
		Status:  map[string]GroupStatus{"a": {InFlight: []v1alpha1.InFlight{{ID: "mica-a-0"}}}, "b": {InFlight: []v1alpha1.InFlight{{ID: "mica-b-0"}}}},
	}
	if err := (&Executor{Client: c}).Do(ctx, result); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	if len(result.Status["a"].InFlight) != 1 || len(result.Status["b"].InFlight) != 0 {
		t.Errorf("in flight are %v", result.Status)
	}
}
