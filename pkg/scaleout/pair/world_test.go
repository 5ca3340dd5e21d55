package pair

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	corehelpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/mica-gpu/mica/api/v1alpha1"
	"github.com/mica-gpu/mica/pkg/scaleout"
	"github.com/mica-gpu/mica/pkg/scaleout/autoscaler"
	"github.com/mica-gpu/mica/pkg/scaleout/template"
	"github.com/mica-gpu/mica/pkg/scaleout/view"
)

// epoch is when every world begins.
var epoch = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

var errKilled = errors.New("the controller was killed")

// world is a cluster with users, a scheduler, a Cluster Autoscaler and a cloud, all as simple
// as can be. Placeholders and the status of groups are behind a real client, so that a
// controller can be killed at each of its writes; the rest is plain values.
type world struct {
	t   *testing.T
	now time.Time
	log strings.Builder

	api    client.WithWatch
	groups []*simGroup
	pods   []*simPod
	events []corev1.Event

	// budget is how many devices there may be; 0: as many as are asked for. With admission, pods are
	// annotated when they are made.
	budget    int
	admission bool
	// autoscalerDown stops scans.
	autoscalerDown bool
	autoscaler     autoscaler.Status
	nextScan       time.Time

	// killBefore and killAfter count down writes of the controller to the one at which it dies:
	// before the API server has heard of it, or before the controller has heard the answer.
	killBefore, killAfter int
	writes                int
	serial                int
	// everPods counts users' pods, those that are gone, too.
	everPods int
	// seen and objects are what the API server has, until something is written.
	seen    []*corev1.Pod
	objects map[string]*v1alpha1.GPUNodeGroup
}

// simGroup is a node group at the cloud.
type simGroup struct {
	name string
	// devices that its template promises, and that its nodes really have.
	promised, real int
	// boot is from the request to the node, slices from there to its devices; negative: never.
	boot, slices time.Duration
	max, caMax   int
	price        int
	startupTaint bool
	// agentTaint is one of an agent's own, until the node is complete.
	agentTaint string
	timeout    time.Duration
	// provision and startup are Cluster Autoscaler's clocks, --max-node-provision-time and
	// --max-node-startup-time.
	provision, startup time.Duration
	// broken: the cloud has no such machines.
	broken bool
	// frozen: Cluster Autoscaler adds no node, for a reason of its own.
	frozen bool
	// stagger is how much later each further node of a scan comes.
	stagger time.Duration
	backoff simBackoff
	// request is the scale-up that Cluster Autoscaler waits for, zero: none.
	request time.Time

	nodes []*simNode
	asked []simMachine
	made  int
}

// simMachine is one that was asked for, and is to come at a time.
type simMachine struct{ since, comes time.Time }

// simBackoff is Cluster Autoscaler's from a group.
type simBackoff struct {
	until         time.Time
	lasts         time.Duration
	code, message string
}

type simNode struct {
	name    string
	created time.Time
	group   *simGroup
}

type simPod struct {
	object  *corev1.Pod
	needs   int
	node    *simNode
	pending time.Time
}

func newScheme(t *testing.T) *runtime.Scheme {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		t.Fatal(err)
	}
	return scheme
}

func newWorld(t *testing.T, groups ...*simGroup) *world {
	w := &world{t: t, now: epoch, groups: groups, nextScan: epoch, killBefore: -1, killAfter: -1}
	builder := fake.NewClientBuilder().WithScheme(newScheme(t)).WithStatusSubresource(&v1alpha1.GPUNodeGroup{})
	for _, g := range groups {
		builder.WithObjects(g.object())
	}
	w.api = builder.WithInterceptorFuncs(interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
			return w.write(func() error {
				w.serial++
				o.SetUID(types.UID(fmt.Sprintf("uid-%d", w.serial)))
				o.SetCreationTimestamp(metav1.NewTime(w.now))
				return c.Create(ctx, o, opts...)
			})
		},
		Delete: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.DeleteOption) error {
			return w.write(func() error { return c.Delete(ctx, o, opts...) })
		},
		SubResourceUpdate: func(ctx context.Context, c client.Client, sub string, o client.Object, opts ...client.SubResourceUpdateOption) error {
			return w.write(func() error { return c.SubResource(sub).Update(ctx, o, opts...) })
		},
	}).Build()
	return w
}

// write is one of the controller's.
func (w *world) write(do func() error) error {
	w.writes++
	w.seen, w.objects = nil, nil
	if w.killBefore--; w.killBefore == 0 {
		return errKilled
	}
	err := do()
	if w.killAfter--; w.killAfter == 0 {
		return errKilled
	}
	return err
}

func (g *simGroup) object() *v1alpha1.GPUNodeGroup {
	o := &v1alpha1.GPUNodeGroup{ObjectMeta: metav1.ObjectMeta{Name: g.name, UID: types.UID("group-" + g.name)}}
	o.Spec.Provider.EKS = &v1alpha1.EKSNodegroup{Nodegroup: g.name}
	o.Spec.Pairing = v1alpha1.PairingPlaceholder
	o.Spec.ProvisionTimeout.Duration = g.timeout
	if g.max > 0 {
		limit := int32(g.max)
		o.Spec.Max = &limit
	}
	return o
}

// autoscalerName is the Auto Scaling group that EKS makes.
func (g *simGroup) autoscalerName() string {
	return "eks-" + g.name + "-7ec0a1b2-11aa-22bb-33cc-0123456789ab"
}

func (w *world) logf(format string, args ...any) {
	at := w.now.Sub(epoch)
	fmt.Fprintf(&w.log, "%02d:%02d  %s\n", int(at.Minutes()), int(at.Seconds())%60, fmt.Sprintf(format, args...))
}

// addPods adds users' pods that each need so many devices of one node.
func (w *world) addPods(name string, count, needs int) {
	w.everPods += count
	for range count {
		w.serial++
		var annotations map[string]string
		if w.budget > 0 && w.admission {
			annotations = map[string]string{v1alpha1.AnnotationScaleUpDelay: "10m", v1alpha1.AnnotationDelayBefore: ""}
		}
		w.pods = append(w.pods, &simPod{needs: needs, pending: w.now, object: &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
			Namespace: "users", Name: fmt.Sprintf("%s-%d", name, w.serial), UID: types.UID(fmt.Sprintf("pod-%d", w.serial)),
			CreationTimestamp: metav1.NewTime(w.now), Annotations: annotations,
		}}})
	}
}

// dies ends the oldest node of a group, with its pods, for which others come. The scaling group brings
// no other: Cluster Autoscaler has lowered its size.
func (w *world) dies(g *simGroup) {
	if len(g.nodes) == 0 {
		return
	}
	dead := g.nodes[0]
	g.nodes = slices.Clone(g.nodes[1:])
	w.logf("node %s ends", dead.name)
	killBefore, killAfter := w.killBefore, w.killAfter
	w.killBefore, w.killAfter = -1, -1 // this is not the controller's write
	defer func() { w.killBefore, w.killAfter = killBefore, killAfter }()
	for _, p := range w.placeholders() {
		if p.Spec.NodeName == dead.name {
			w.seen = nil
			if err := w.api.Delete(context.Background(), p); err != nil {
				w.t.Fatal(err)
			}
		}
	}
	var again []int
	w.pods = slices.DeleteFunc(w.pods, func(p *simPod) bool {
		if p.node == dead {
			again = append(again, p.needs)
		}
		return p.node == dead
	})
	for _, needs := range again {
		w.addPods("again", 1, needs)
	}
}

func (w *world) deletePods(prefix string) {
	w.pods = slices.DeleteFunc(w.pods, func(p *simPod) bool { return strings.HasPrefix(p.object.Name, prefix+"-") })
}

func (w *world) placeholders() []*corev1.Pod {
	if w.seen != nil {
		return w.seen
	}
	var list corev1.PodList
	if err := w.api.List(context.Background(), &list, client.InNamespace("mica")); err != nil {
		w.t.Fatal(err)
	}
	w.seen = []*corev1.Pod{}
	for i := range list.Items {
		w.seen = append(w.seen, &list.Items[i])
	}
	return w.seen
}

func (w *world) groupObject(name string) *v1alpha1.GPUNodeGroup {
	if w.objects[name] == nil {
		var object v1alpha1.GPUNodeGroup
		if err := w.api.Get(context.Background(), types.NamespacedName{Name: name}, &object); err != nil {
			w.t.Fatal(err)
		}
		if w.objects == nil {
			w.objects = map[string]*v1alpha1.GPUNodeGroup{}
		}
		w.objects[name] = &object
	}
	return w.objects[name].DeepCopy()
}

func (w *world) pending() []*simPod {
	return slices.DeleteFunc(slices.Clone(w.pods), func(p *simPod) bool { return p.node != nil })
}

func (n *simNode) ready(now time.Time) bool { return now.Sub(n.created) >= 10*time.Second }

func (n *simNode) complete(now time.Time) bool {
	return n.ready(now) && n.group.slices >= 0 && now.Sub(n.created) >= n.group.slices
}

func (w *world) free(n *simNode) int {
	free := n.group.real
	for _, p := range w.pods {
		if p.node == n {
			free -= p.needs
		}
	}
	return free
}

// step lets everybody act once, and time pass.
func (w *world) step(d time.Duration) {
	w.cloud()
	w.schedule()
	if !w.autoscalerDown && !w.now.Before(w.nextScan) {
		w.scan()
		w.nextScan = w.now.Add(10 * time.Second)
	}
	w.controller()
	w.schedule()
	w.check()
	w.now = w.now.Add(d)
}

func (w *world) run(total, step time.Duration) {
	for end := w.now.Add(total); w.now.Before(end); {
		w.step(step)
	}
}

// cloud brings nodes that were asked for.
func (w *world) cloud() {
	for _, g := range w.groups {
		g.asked = slices.DeleteFunc(g.asked, func(m simMachine) bool {
			if w.now.Before(m.comes) {
				return false
			}
			g.made++
			g.nodes = append(g.nodes, &simNode{name: fmt.Sprintf("%s-node-%d", g.name, g.made), created: w.now, group: g})
			w.logf("node %s-node-%d comes", g.name, g.made)
			return true
		})
	}
}

// schedule binds users' pods to complete nodes, and placeholders to those whose taints they tolerate.
func (w *world) schedule() {
	for _, n := range w.nodes() {
		bound := 0
		for _, p := range w.pending() {
			if n.complete(w.now) && w.free(n) >= p.needs {
				p.node = n
				bound++
			}
		}
		if bound > 0 {
			w.logf("%d pods run on %s", bound, n.name)
		}
	}
	for _, p := range w.placeholders() {
		if p.Spec.NodeName != "" {
			continue
		}
		for _, n := range w.nodes() {
			if n.group.name == p.Labels[v1alpha1.LabelNodeGroup] && tolerates(p, n.taints(w.now)) && w.admits(p, n) {
				p.Spec.NodeName = n.name
				if err := w.apiUpdate(p); err != nil {
					w.t.Fatal(err)
				}
				break
			}
		}
	}
}

// taints are what the node lifecycle controller, the group and the gate make of a node's state.
func (n *simNode) taints(now time.Time) []corev1.Taint {
	var taints []corev1.Taint
	add := func(key string, has bool) {
		if has {
			taints = append(taints, corev1.Taint{Key: key, Effect: corev1.TaintEffectNoSchedule})
		}
	}
	add(corev1.TaintNodeNotReady, !n.ready(now))
	add(v1alpha1.TaintStartup, n.group.startupTaint && !n.complete(now))
	add(n.group.agentTaint, n.group.agentTaint != "" && !n.complete(now))
	return taints
}

func tolerates(p *corev1.Pod, taints []corev1.Taint) bool {
	_, untolerated := corehelpers.FindMatchingUntoleratedTaint(klog.Background(), taints, p.Spec.Tolerations, nil, true)
	return !untolerated
}

func (w *world) apiUpdate(o client.Object) error {
	w.seen = nil
	return w.api.Update(context.Background(), o)
}

// admits reports whether a placeholder's affinity allows a node.
func (w *world) admits(p *corev1.Pod, n *simNode) bool {
	for _, other := range w.placeholders() {
		if other.Spec.NodeName == n.name {
			return false
		}
	}
	if p.Spec.Affinity.NodeAffinity == nil {
		return true
	}
	term := p.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms[0]
	return !slices.Contains(term.MatchExpressions[0].Values, n.name)
}

func (w *world) nodes() []*simNode {
	var all []*simNode
	for _, g := range w.groups {
		all = append(all, g.nodes...)
	}
	return all
}

// controller is one pass of the loop around Decide.
func (w *world) controller() {
	s := w.situation()
	result := Decide(s)
	executor := &Executor{Client: w.api}
	for _, action := range result.Actions {
		w.logf("%s", action)
		w.annotate(action)
	}
	err := executor.Do(context.Background(), &result)
	if errors.Is(err, errKilled) {
		w.logf("the controller is killed")
		return
	}
	if err != nil {
		w.t.Fatalf("%s: %v", w.now.Sub(epoch), err)
	}
	w.report(result)
}

// annotate is what the API server does with users' pods, which the client does not know here.
func (w *world) annotate(action Action) {
	wanted, is := action.(delay)
	if !is {
		return
	}
	for _, p := range w.pods {
		if p.object.UID == wanted.UID {
			p.object = p.object.DeepCopy()
			p.object.Annotations = map[string]string{}
			for key, value := range wanted.annotations() {
				if value != nil {
					p.object.Annotations[key] = value.(string)
				}
			}
		}
	}
}

// report writes the status of groups, which is not ours and cannot be killed here.
func (w *world) report(result Result) {
	for _, g := range w.groups {
		object := w.groupObject(g.name)
		before := object.Status.DeepCopy()
		status := result.Status[g.name]
		object.Status.Backoff, object.Status.InFlight = status.Backoff, status.InFlight
		object.Status.Autoscaler = view.Report(object, &w.autoscaler, w.now)
		if status.NotReady != "" && (len(before.Conditions) == 0 || before.Conditions[0].Message != status.NotReady) {
			w.logf("group %s is not ready: %s", g.name, status.NotReady)
		}
		object.Status.Conditions = []metav1.Condition{{Message: status.NotReady}}
		if b, was := status.Backoff, before.Backoff; b != nil && (was == nil || *was != *b) {
			w.logf("group %s backs off for %s: %s: %s", g.name, b.Until.Sub(w.now).Round(time.Second), b.Reason, b.Message)
		} else if b == nil && was != nil {
			w.logf("group %s backs off no more", g.name)
		}
		if equality.Semantic.DeepEqual(*before, object.Status) {
			continue
		}
		killBefore, killAfter := w.killBefore, w.killAfter
		w.killBefore, w.killAfter = -1, -1
		if err := w.api.Status().Update(context.Background(), object); err != nil {
			w.t.Fatal(err)
		}
		w.writes--
		w.killBefore, w.killAfter = killBefore, killAfter
	}
}

// situation looks at the world, and plans.
func (w *world) situation() Situation {
	v := &view.View{Placeholders: w.placeholders()}
	for _, p := range w.pending() {
		v.Pending = append(v.Pending, p.object)
	}
	if w.budget > 0 {
		v.Budgets = []scaleout.Budget{{Name: "all", GPUs: &w.budget}}
	}
	for _, g := range w.groups {
		object := w.groupObject(g.name)
		state := view.Group{Object: object, Template: g.template(), Max: w.most(object), Autoscaler: view.Report(object, &w.autoscaler, w.now)}
		for _, n := range g.nodes {
			state.Nodes = append(state.Nodes, w.nodeState(n))
		}
		v.GroupStates = append(v.GroupStates, state)
		v.Groups = append(v.Groups, scaleout.Group{
			Name: g.name, Closed: view.Closed(object, &w.autoscaler, w.now), Max: state.Max,
			Upcoming: w.upcoming(g), Foreign: max(state.Target(w.now)-len(g.nodes)-w.upcoming(g), 0),
		})
	}
	return Situation{
		Now: w.now, View: v, Decision: w.plan(v), Triggers: Triggers(w.events), Autoscaler: w.autoscaler,
		Placeholder: PlaceholderOptions{Namespace: "mica", Image: "pause", Grace: DefaultGrace},
	}
}

// most is the most nodes that the group may have.
func (w *world) most(group *v1alpha1.GPUNodeGroup) *int {
	most := math.MaxInt
	if limit := group.Spec.Max; limit != nil {
		most = int(*limit)
	}
	if g, known := w.autoscaler.Of(group, w.now); known && g.Max > 0 {
		most = min(most, g.Max)
	}
	return &most
}

func (g *simGroup) template() *template.Template {
	return &template.Template{Node: &corev1.Node{Status: corev1.NodeStatus{Allocatable: corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("8"),
	}}}}
}

func (w *world) nodeState(n *simNode) view.NodeState {
	state := view.NodeState{
		Object: &corev1.Node{ObjectMeta: metav1.ObjectMeta{
			Name: n.name, CreationTimestamp: metav1.NewTime(n.created), Labels: map[string]string{corev1.LabelHostname: n.name},
		}, Spec: corev1.NodeSpec{Taints: n.taints(w.now)}},
		Ready: n.ready(w.now), ReadySince: n.created.Add(10 * time.Second),
	}
	if !n.complete(w.now) {
		state.Missing = []string{"pool " + n.name}
	} else if since := n.created.Add(n.group.slices); since.After(state.ReadySince) {
		state.ReadySince = since
	}
	return state
}

// upcoming counts placeholders without a node, as pkg/scaleout/view does.
func (w *world) upcoming(g *simGroup) int {
	created, nodes := []time.Time{}, slices.Clone(g.nodes)
	for _, p := range w.placeholders() {
		if p.Labels[v1alpha1.LabelNodeGroup] != g.name {
			continue
		}
		if p.Spec.NodeName != "" {
			nodes = slices.DeleteFunc(nodes, func(n *simNode) bool { return n.name == p.Spec.NodeName })
			continue
		}
		created = append(created, p.CreationTimestamp.Time)
	}
	slices.SortFunc(created, time.Time.Compare)
	coming := 0
	for _, at := range created {
		i := slices.IndexFunc(nodes, func(n *simNode) bool { return !n.created.Before(at) })
		if i < 0 {
			coming++
			continue
		}
		nodes = slices.Delete(nodes, i, i+1)
	}
	return coming
}

// check holds the world to what must be true at any time.
func (w *world) check() {
	for _, g := range w.groups {
		limit := g.caMax
		if g.max > 0 {
			limit = min(limit, g.max)
		}
		if size := len(g.nodes) + w.upcoming(g); size > limit {
			w.t.Fatalf("%s: group %s has %d nodes and placeholders, over its maximum of %d\n%s", w.now.Sub(epoch), g.name, size, limit, w.log.String())
		}
	}
}
