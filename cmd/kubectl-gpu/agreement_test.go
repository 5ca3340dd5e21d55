package main

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/events"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/mica-gpu/mica/api/v1alpha1"
	"github.com/mica-gpu/mica/pkg/scaleout"
	"github.com/mica-gpu/mica/pkg/scaleout/control"
	"github.com/mica-gpu/mica/pkg/scaleout/pair"
	"github.com/mica-gpu/mica/pkg/scaleout/template"
	"github.com/mica-gpu/mica/pkg/scaleout/view"
)

// planned keeps the snapshot of the controller's plan.
type planned struct{ snapshot scaleout.Snapshot }

func (*planned) Replicas() []scaleout.Replica                       { return nil }
func (p *planned) Planned(s scaleout.Snapshot, _ scaleout.Decision) { p.snapshot = s }
func (*planned) Failed(error)                                       {}

// writeStatuses runs a controller until it has written the status of a group.
func writeStatuses(t *testing.T, options control.Options, known client.Client, group string) {
	t.Helper()
	clock := clocktesting.NewFakeClock(now)
	options.Clock = clock
	loop := control.New(options)
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	running.Go(func() {
		if err := loop.Start(ctx); err != nil {
			t.Error(err)
		}
	})
	err := wait.PollUntilContextTimeout(ctx, 10*time.Millisecond, time.Minute, true, func(ctx context.Context) (bool, error) {
		clock.Step(10 * time.Millisecond)
		var written v1alpha1.GPUNodeGroup
		err := known.Get(ctx, client.ObjectKey{Name: group}, &written)
		return written.Status.ProviderSize != nil, err
	})
	if err != nil {
		t.Fatalf("wait for the status of group %s: %v", group, err)
	}
}

// fullEKS has a node group that has all the machines that it may have.
type fullEKS struct{ pair.Nodegroups }

func (fullEKS) Describe(context.Context, *v1alpha1.GPUNodeGroup) view.Nodegroup {
	return view.Nodegroup{Max: 1, Desired: 1, Status: "ACTIVE"}
}

// The plugin plans with the same snapshot as the controller, also with limits that only the controller can
// read from EKS, and without the right to read Cluster Autoscaler's status.
func TestThePluginAndTheControllerPlanTheSame(t *testing.T) {
	known := clusterOf(t, "testdata/cluster.yaml", "testdata/bounded.yaml").
		WithStatusSubresource(&corev1.Pod{}, &v1alpha1.GPUNodeGroup{}).Build()
	heard := &planned{}
	options := control.Options{
		Driver: defaults.driver, Client: known, Recorder: events.NewFakeRecorder(1000), Clock: clocktesting.NewFakeClock(now),
		Placeholder: pair.PlaceholderOptions{Namespace: "mica", Image: "pause"}, Autoscaler: defaults.autoscaler,
		Nodegroups: fullEKS{}, Forecast: heard,
	}
	writeStatuses(t, options, known, "rare")
	if _, err := control.New(options).Pass(t.Context()); err != nil {
		t.Fatal(err)
	}
	bounds := map[string]scaleout.Group{}
	for _, group := range heard.snapshot.Groups {
		bounds[group.Name] = group
	}
	if g := bounds["rare"]; g.Max == nil || *g.Max != 1 || g.Size != 0 {
		t.Errorf("group rare has %d of at most %v nodes, want none, as its node is being deleted, of 1 by EKS", g.Size, g.Max)
	}
	if g := bounds["h100"]; g.Max == nil || *g.Max != 3 || g.Closed == "" {
		t.Errorf("group h100 may have %v nodes and is closed for %q, want 3, and that Cluster Autoscaler backs off", g.Max, g.Closed)
	}
	if len(heard.snapshot.Nodes) != 1 {
		t.Errorf("%d nodes are planned with, want 1: the other is being deleted", len(heard.snapshot.Nodes))
	}
	forbidden := interceptor.NewClient(known, interceptor.Funcs{Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
		if _, is := o.(*corev1.ConfigMap); is {
			return apierrors.NewForbidden(schema.GroupResource{Resource: "configmaps"}, key.Name, nil)
		}
		return c.Get(ctx, key, o, opts...)
	}})
	for name, reader := range map[string]client.Reader{"with all rights": known, "without a right to the autoscaler's status": forbidden} {
		t.Run(name, func(t *testing.T) {
			v, err := explainer{defaults, reader, now}.look(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			// Selectors are kept from one plan to the next, and decide nothing.
			kept := cmpopts.IgnoreFields(scaleout.Snapshot{}, "Selectors")
			if diff := cmp.Diff(heard.snapshot, v.Snapshot, cmpopts.IgnoreUnexported(template.Template{}), kept); diff != "" {
				t.Errorf("snapshot (-controller +plugin):\n%s", diff)
			}
		})
	}
}
