package eks

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	testingclock "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/mica-gpu/mica/api/v1alpha1"
	"github.com/mica-gpu/mica/pkg/scaleout"
	"github.com/mica-gpu/mica/pkg/scaleout/pair"
	"github.com/mica-gpu/mica/pkg/scaleout/template"
	"github.com/mica-gpu/mica/pkg/scaleout/view"
	"github.com/mica-gpu/mica/test/ekssim"
)

var errKilled = errors.New("the controller was killed")

// doom kills a controller just before or after one of its writes or calls of EKS. The server also counts moments, maybe
// after its call has failed.
type doom struct {
	lock sync.Mutex
	left int
	dead bool
}

// moment is a moment at which the controller may be killed.
func (d *doom) moment() error {
	d.lock.Lock()
	defer d.lock.Unlock()
	if !d.dead && d.left > 0 {
		d.left--
		return nil
	}
	d.dead = d.dead || d.left == 0
	if d.dead {
		return errKilled
	}
	return nil
}

func (d *doom) struck() bool {
	d.lock.Lock()
	defer d.lock.Unlock()
	return d.dead
}

// spent reports whether another controller has begun.
func (d *doom) spent() bool {
	d.lock.Lock()
	defer d.lock.Unlock()
	return d.left < 0
}

// pass lets the next controller live.
func (d *doom) pass() {
	d.lock.Lock()
	defer d.lock.Unlock()
	d.left, d.dead = -1, false
}

// around does something between two moments.
func (d *doom) around(do func() error) error {
	if err := d.moment(); err != nil {
		return err
	}
	if err := do(); err != nil {
		return err
	}
	return d.moment()
}

// fleet is a cluster on EKS whose machines boot for 40 s and publish their devices 20 s later. Claims are allocated at once.
type fleet struct {
	*bench
	t     *testing.T
	api   client.Client
	doom  *doom
	needs int
	// boots are the times at which machines become nodes.
	boots []time.Time
	nodes []*corev1.Node
	// claimed is the number of nodes with an allocated claim, the oldest first.
	claimed int
	// acted are the actions in order.
	acted []string
}

const (
	boot    = 40 * time.Second
	publish = 20 * time.Second
	pass    = 15 * time.Second
)

func newFleet(t *testing.T, needs, killAt int) *fleet {
	environment(t)
	f := &fleet{t: t, needs: needs, doom: &doom{left: killAt}, bench: &bench{clock: testingclock.NewFakeClock(time.Date(2026, 10, 1, 12, 0, 0, 0, time.UTC))}}
	f.Server = ekssim.New(ekssim.Options{
		Cluster: gpus.Cluster, UpdateTakes: takes,
		Now: f.clock.Now,
		Resized: func(_ string, from, to int) {
			for range to - from {
				f.boots = append(f.boots, f.clock.Now().Add(boot))
			}
		},
	})
	f.Add(ekssim.Group{Name: gpus.Nodegroup, Max: 5, InstanceTypes: []string{"p5.48xlarge"}})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet && !f.doom.struck() {
			f.ServeHTTP(w, r) // a question changes nothing: killed there is killed before the next write
			return
		}
		answer := httptest.NewRecorder()
		if err := f.doom.around(func() error { f.ServeHTTP(answer, r); return nil }); err != nil {
			panic(http.ErrAbortHandler) // the client is dead
		}
		for key, values := range answer.Header() {
			w.Header()[key] = values
		}
		w.WriteHeader(answer.Code)
		_, _ = w.Write(answer.Body.Bytes())
	}))
	t.Cleanup(server.Close)
	f.url = server.URL
	f.restart(t)
	f.api = f.newAPI()
	return f
}

func (f *fleet) group() *v1alpha1.GPUNodeGroup {
	f.t.Helper()
	var group v1alpha1.GPUNodeGroup
	if err := f.api.Get(context.Background(), types.NamespacedName{Name: gpus.Nodegroup}, &group); err != nil {
		f.t.Fatal(err)
	}
	return &group
}

func (f *fleet) newAPI() client.Client {
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		f.t.Fatal(err)
	}
	eks := gpus
	group := &v1alpha1.GPUNodeGroup{ObjectMeta: metav1.ObjectMeta{Name: gpus.Nodegroup}, Spec: v1alpha1.GPUNodeGroupSpec{
		Provider: v1alpha1.NodeGroupProvider{EKS: &eks}, Pairing: v1alpha1.PairingDirect,
		ProvisionTimeout: metav1.Duration{Duration: 10 * time.Minute}, ScaleInAfter: &metav1.Duration{},
	}}
	return fake.NewClientBuilder().WithScheme(scheme).WithStatusSubresource(group).WithObjects(group).
		WithInterceptorFuncs(interceptor.Funcs{
			SubResourceUpdate: func(ctx context.Context, c client.Client, sub string, o client.Object, opts ...client.SubResourceUpdateOption) error {
				return f.doom.around(func() error { return c.SubResource(sub).Update(ctx, o, opts...) })
			},
			Patch: func(ctx context.Context, c client.WithWatch, o client.Object, p client.Patch, opts ...client.PatchOption) error {
				return f.doom.around(func() error { return c.Patch(ctx, o, p, opts...) })
			},
		}).Build()
}

// live turns booted machines into nodes, and allocates claims.
func (f *fleet) live() {
	f.Settle()
	var booting []time.Time
	for _, at := range f.boots {
		if f.clock.Now().Before(at) {
			booting = append(booting, at)
			continue
		}
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{
			Name: fmt.Sprintf("node-%d", len(f.nodes)), CreationTimestamp: metav1.NewTime(at),
		}}
		instance := "i-" + node.Name
		node.Spec.ProviderID = "aws:///ap-northeast-2a/" + instance
		f.Change(gpus.Nodegroup, func(g *ekssim.Group) { g.Instances[instance] = "InService" })
		if err := f.api.Create(context.Background(), node); err != nil {
			f.t.Fatal(err)
		}
		f.nodes = append(f.nodes, node)
	}
	f.boots = booting
	f.bury()
	f.claimed = 0
	for _, node := range f.nodes {
		if f.clock.Now().Sub(node.CreationTimestamp.Time) > 2*publish && f.claimed < f.needs {
			f.claimed++
		}
	}
}

// situation is the state of the API server and EKS, with the planner's demand.
func (f *fleet) situation(ctx context.Context) (pair.Situation, error) {
	group := f.group()
	state := view.Group{Object: group, Template: &template.Template{Source: v1alpha1.SourceLearned}}
	v := &view.View{}
	for i, node := range f.nodes {
		live := &corev1.Node{}
		if err := f.api.Get(ctx, client.ObjectKeyFromObject(node), live); err != nil {
			return pair.Situation{}, err
		}
		state.Nodes = append(state.Nodes, f.nodeState(live))
		v.Nodes = append(v.Nodes, scaleout.Node{Object: live, Group: group.Name})
		if i < f.claimed {
			v.Claims = append(v.Claims, &resourceapi.ResourceClaim{Status: resourceapi.ResourceClaimStatus{Allocation: &resourceapi.AllocationResult{
				Devices: resourceapi.DeviceAllocationResult{Results: []resourceapi.DeviceRequestAllocationResult{{Driver: "d", Pool: live.Name}}},
			}}})
		}
	}
	v.GroupStates = []view.Group{state}
	v.Nodegroups = map[string]view.Nodegroup{group.Name: f.client.Describe(ctx, group)}
	s := pair.Situation{Now: f.clock.Now(), View: v}
	if missing := f.needs - len(f.nodes) - upcoming(group, f.nodes); missing > 0 && view.Closed(group, nil, f.clock.Now()) == "" {
		s.Decision.Growth = []scaleout.Growth{{Group: group.Name, Nodes: make([]scaleout.NewNode, missing)}}
	}
	return s, nil
}

func (f *fleet) nodeState(node *corev1.Node) view.NodeState {
	since := node.CreationTimestamp.Time
	state := view.NodeState{Object: node, Ready: true, ReadySince: since, Missing: []string{"all devices"}}
	if f.clock.Now().Sub(since) >= publish {
		slice := &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: metav1.NewTime(since.Add(publish))}}
		slice.Spec.Driver, slice.Spec.Pool.Name = "d", node.Name
		state.Slices, state.Missing = []*resourceapi.ResourceSlice{slice}, nil
	}
	return state
}

// upcoming is the number of nodes in flight that have not joined.
func upcoming(group *v1alpha1.GPUNodeGroup, nodes []*corev1.Node) int {
	count, free := 0, len(nodes)
	for _, e := range group.Status.InFlight {
		came := 0
		for _, node := range nodes[len(nodes)-free:] {
			if !node.CreationTimestamp.Before(&e.Since) && came < int(e.Nodes) {
				came++
			}
		}
		free -= came
		count += int(e.Nodes) - came
	}
	return count
}

// control is one pass of the controller.
func (f *fleet) control() error {
	ctx := context.Background()
	s, err := f.situation(ctx)
	if err != nil {
		return err
	}
	result := pair.Decide(s)
	for _, action := range result.Actions {
		f.acted = append(f.acted, action.String())
	}
	failed := (&pair.Executor{Client: f.api, Live: noPods{f.api}, Nodegroups: f.client}).Do(ctx, &result)
	group := f.group()
	before, status := group.Status.DeepCopy(), result.Status[group.Name]
	group.Status.InFlight, group.Status.Backoff = status.InFlight, status.Backoff
	if equality.Semantic.DeepEqual(before, &group.Status) {
		return failed
	}
	return errors.Join(failed, f.api.Status().Update(ctx, group))
}

// run runs passes. A killed controller is restarted without memory.
func (f *fleet) run(passes int) {
	for range passes {
		f.live()
		err := f.control()
		if f.doom.struck() {
			f.doom.pass()
			f.restart(f.t)
		} else if err != nil {
			f.t.Fatalf("at %s: %v", f.clock.Now(), err)
		}
		f.clock.Step(pass)
	}
}

func TestAControllerThatIsKilledRaisesTheSizeOnce(t *testing.T) {
	const needs = 2
	kills := 0
	for at := range 1000 {
		f := newFleet(t, needs, at)
		// Until the nodes are there, and claims have taken them.
		f.run(14)
		killed := f.doom.spent()
		if killed {
			kills++
		}
		if n, d := f.Updates(gpus.Nodegroup), f.desired(t); n != 1 || d != needs || len(f.nodes) != needs {
			t.Errorf("killed at moment %d: %d updates, a size of %d and %d nodes, want 1, %d and %d", at, n, d, len(f.nodes), needs, needs)
		}
		f.checkClean(at)
		if !killed {
			break
		}
	}
	// Status, call, status, and two nodes that are protected and let go, before and after each.
	if kills < 14 {
		t.Errorf("the controller was killed at %d moments, which are too few to be all", kills)
	}
}

// checkClean checks that no status or annotation is left.
func (f *fleet) checkClean(at int) {
	f.t.Helper()
	group := f.group()
	if len(group.Status.InFlight) > 0 || group.Status.Backoff != nil {
		f.t.Errorf("killed at moment %d: the status still has %+v", at, group.Status)
	}
	for _, node := range f.nodes {
		live := &corev1.Node{}
		if err := f.api.Get(context.Background(), client.ObjectKeyFromObject(node), live); err != nil {
			f.t.Fatal(err)
		}
		if len(live.Annotations) > 0 {
			f.t.Errorf("killed at moment %d: node %s still has %v", at, live.Name, live.Annotations)
		}
	}
}

func TestNoCapacityLeavesTheGroupAloneUntilThereIsSome(t *testing.T) {
	f := newFleet(t, 1, -1)
	f.Change(gpus.Nodegroup, func(g *ekssim.Group) { g.NoCapacity = noCapacity })
	f.run(8)
	group := f.group()
	if b := group.Status.Backoff; b == nil || b.Failures != 1 || len(group.Status.InFlight) > 0 {
		t.Fatalf("the status is %+v, want a backoff and nothing in flight", group.Status)
	}
	f.run(60)
	if n := f.Updates(gpus.Nodegroup); n != 1 {
		t.Errorf("%d updates, want 1: EKS wants a machine already", n)
	}
	f.Change(gpus.Nodegroup, func(g *ekssim.Group) { g.NoCapacity, g.Issues, g.Status = "", nil, "ACTIVE" })
	f.boots = append(f.boots, f.clock.Now()) // the machine that EKS has wanted all the time
	f.run(20)
	if group = f.group(); group.Status.Backoff != nil || len(group.Status.InFlight) > 0 || len(f.nodes) != 1 {
		t.Errorf("%d nodes and a status of %+v, want one, and nothing left", len(f.nodes), group.Status)
	}
}
