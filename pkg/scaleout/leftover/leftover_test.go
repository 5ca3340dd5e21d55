package leftover

import (
	"context"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
)

const (
	disabled, ours  = "cluster-autoscaler.kubernetes.io/scale-down-disabled", "mica.gpu/protected-for"
	until, mark     = "mica.gpu/held-until", "mica.gpu/scale-in"
	before, after   = "2026-03-01T11:59:59Z", "2026-03-01T12:00:01Z"
	cordoned, empty = "cordoned 2026-03-01T08:00:00Z", "empty 2026-03-01T08:00:00Z"
)

var now = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

type annotations = map[string]string

func nodeWith(has annotations, unschedulable bool) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", Annotations: has}, Spec: corev1.NodeSpec{Unschedulable: unschedulable}}
}

func TestNodesAreReleased(t *testing.T) {
	for name, test := range map[string]struct {
		has      annotations
		cordoned bool
		// expired are the annotations after a release of what has expired, and all after one of everything.
		expired, all     annotations
		stays, staysLast bool
	}{
		"a node":                           {annotations{"x": "y"}, false, annotations{"x": "y"}, annotations{"x": "y"}, false, false},
		"cordoned by a person":             {annotations{"x": "y"}, true, annotations{"x": "y"}, annotations{"x": "y"}, true, true},
		"protected by a person":            {annotations{disabled: "true"}, false, annotations{disabled: "true"}, annotations{disabled: "true"}, false, false},
		"protected":                        {annotations{disabled: "true", ours: "use", until: after}, false, annotations{disabled: "true", ours: "use", until: after}, nil, false, false},
		"protected too long":               {annotations{disabled: "true", ours: "use", until: before, "x": "y"}, false, annotations{"x": "y"}, annotations{"x": "y"}, false, false},
		"protected, cordoned by us":        {annotations{disabled: "true", ours: "use", until: before, mark: cordoned}, true, nil, nil, false, false},
		"protected, of an earlier version": {annotations{disabled: "true", ours: "use"}, false, nil, nil, false, false},
		"protected, cordoned by others":    {annotations{disabled: "true", ours: "use", until: before}, true, nil, nil, true, true},
		"empty":                            {annotations{mark: empty}, false, annotations{mark: empty}, nil, false, false},
		"cordoned":                         {annotations{mark: cordoned, until: after}, true, annotations{mark: cordoned, until: after}, nil, true, false},
		"cordoned too long":                {annotations{mark: cordoned, until: before}, true, nil, nil, false, false},
		"cordoned, protected by others":    {annotations{mark: cordoned, until: before, disabled: "true"}, true, annotations{disabled: "true"}, annotations{disabled: "true"}, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			for expired, want := range map[bool]annotations{true: test.expired, false: test.all} {
				c := fake.NewClientBuilder().WithObjects(nodeWith(test.has, test.cordoned)).Build()
				for range 2 { // it may be done again
					if err := Nodes(t.Context(), c, now, expired); err != nil {
						t.Fatal(err)
					}
				}
				var node corev1.Node
				if err := c.Get(t.Context(), client.ObjectKey{Name: "n"}, &node); err != nil {
					t.Fatal(err)
				}
				stays := test.staysLast
				if expired {
					stays = test.stays
				}
				if diff := cmp.Diff(want, node.Annotations); diff != "" || node.Spec.Unschedulable != stays {
					t.Errorf("with expired %t, the node is cordoned: %t, and has (-want +got):\n%s", expired, node.Spec.Unschedulable, diff)
				}
			}
		})
	}
}

// A controller that leads again renews a hold between the list and the patch.
func TestAHoldThatIsRenewedMeanwhileStays(t *testing.T) {
	c := interceptor.NewClient(fake.NewClientBuilder().WithObjects(nodeWith(annotations{disabled: "true", ours: "use", until: before}, false)).Build(), interceptor.Funcs{
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, o ...client.ListOption) error {
			if err := c.List(ctx, list, o...); err != nil {
				return err
			}
			node := list.(*corev1.NodeList).Items[0].DeepCopy()
			node.Annotations[until] = after
			return c.Update(ctx, node)
		},
	})
	if err := Nodes(t.Context(), c, now, true); !apierrors.IsConflict(err) {
		t.Errorf("the error is %v, want a conflict", err)
	}
	var node corev1.Node
	if err := c.Get(t.Context(), client.ObjectKey{Name: "n"}, &node); err != nil || node.Annotations[ours] != "use" {
		t.Errorf("the node has %v, error %v", node.Annotations, err)
	}
}
