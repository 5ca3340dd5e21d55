package control

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	testingclock "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/mica-gpu/mica/api/v1alpha1"
	"github.com/mica-gpu/mica/pkg/scaleout/autoscaler"
	"github.com/mica-gpu/mica/pkg/scaleout/pair"
	"github.com/mica-gpu/mica/pkg/scaleout/template"
	"github.com/mica-gpu/mica/pkg/scaleout/view"
)

const (
	driverName           = "gpu.nvidia.com"
	placeholderNamespace = "mica-placeholders"
)

// world is a cluster of plain objects, with a minimal Cluster Autoscaler, cloud and scheduler.
type world struct {
	t      *testing.T
	clock  *testingclock.FakeClock
	client client.WithWatch
	// dieAt is the number of the write before which, or with dieAfter after which, the controller is killed. writes counts
	// writes.
	dieAt, writes int
	dieAfter      bool
	loop          *Loop
	recorder      *events.FakeRecorder
	uids          int
	// publishes is the instance type of new nodes. Empty: that of their group.
	publishes string
	// withhold is why nodes offer no GPUs. Empty: they do.
	withhold string
	// noSlices keeps nodes from publishing.
	noSlices bool
}

func newWorld(t *testing.T, objects ...client.Object) *world {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := errors.Join(corev1.AddToScheme(scheme), appsv1.AddToScheme(scheme), resourceapi.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, clock: testingclock.NewFakeClock(time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC))}
	w.client = fake.NewClientBuilder().WithScheme(scheme).
		WithStatusSubresource(&v1alpha1.GPUNodeGroup{}, &v1alpha1.GPUHeadroom{}, &v1alpha1.GPUBudget{}, &corev1.Pod{}).
		WithIndex(&corev1.Pod{}, "spec.nodeName", func(o client.Object) []string { return []string{o.(*corev1.Pod).Spec.NodeName} }).
		WithIndex(&corev1.Pod{}, "status.nominatedNodeName", func(o client.Object) []string { return []string{o.(*corev1.Pod).Status.NominatedNodeName} }).Build()
	w.create(&resourceapi.DeviceClass{
		ObjectMeta: metav1.ObjectMeta{Name: driverName},
		Spec: resourceapi.DeviceClassSpec{Selectors: []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{
			Expression: `device.driver == "gpu.nvidia.com" && device.attributes["gpu.nvidia.com"].type == "gpu"`,
		}}}},
	})
	w.create(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: autoscaler.Namespace, Name: autoscaler.StatusName}})
	w.createAndTry(objects...)
	w.restart()
	return w
}

// createAndTry creates objects, and the claims of pods.
func (w *world) createAndTry(objects ...client.Object) {
	w.t.Helper()
	for _, object := range objects {
		w.create(object)
		if pod, is := object.(*corev1.Pod); is {
			w.try(pod)
		}
	}
}

// create creates an object with the API server's fields.
func (w *world) create(object client.Object) {
	w.t.Helper()
	w.born(object)
	if err := w.client.Create(w.t.Context(), object); err != nil {
		w.t.Fatal(err)
	}
}

// try creates the claims of a pod, and marks it as unschedulable.
func (w *world) try(pod *corev1.Pod) {
	w.t.Helper()
	for _, podClaim := range pod.Spec.ResourceClaims {
		template := get(w, &resourceapi.ResourceClaimTemplate{}, pod.Namespace, *podClaim.ResourceClaimTemplateName)
		claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name + "-" + podClaim.Name}, Spec: template.Spec.Spec}
		claim.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(pod, corev1.SchemeGroupVersion.WithKind("Pod"))}
		w.create(claim)
		pod.Status.ResourceClaimStatuses = append(pod.Status.ResourceClaimStatuses, corev1.PodResourceClaimStatus{Name: podClaim.Name, ResourceClaimName: &claim.Name})
	}
	pod.Status.Conditions = append(pod.Status.Conditions, corev1.PodCondition{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable})
	if err := w.client.Status().Update(w.t.Context(), pod); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) born(object client.Object) {
	w.uids++
	object.SetUID(types.UID(fmt.Sprintf("uid-%d", w.uids)))
	object.SetCreationTimestamp(metav1.NewTime(w.clock.Now().Truncate(time.Second)))
	object.SetGeneration(1)
}

var errKilled = errors.New("killed")

// restart begins a new process without memory.
func (w *world) restart() {
	w.recorder = events.NewFakeRecorder(1000)
	write := func(do func() error) error {
		w.writes++
		switch {
		case w.dieAt == 0 || w.writes < w.dieAt:
			return do()
		case w.writes == w.dieAt && w.dieAfter:
			return errors.Join(do(), errKilled)
		default:
			return errKilled
		}
	}
	killable := interceptor.NewClient(w.client, interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, object client.Object, o ...client.CreateOption) error {
			w.born(object)
			return write(func() error { return c.Create(ctx, object, o...) })
		},
		Delete: func(ctx context.Context, c client.WithWatch, object client.Object, o ...client.DeleteOption) error {
			return write(func() error { return c.Delete(ctx, object, o...) })
		},
		Patch: func(ctx context.Context, c client.WithWatch, object client.Object, p client.Patch, o ...client.PatchOption) error {
			return write(func() error { return c.Patch(ctx, object, p, o...) })
		},
		Update: func(ctx context.Context, c client.WithWatch, object client.Object, o ...client.UpdateOption) error {
			return write(func() error { return c.Update(ctx, object, o...) })
		},
		SubResourceUpdate: func(ctx context.Context, c client.Client, sub string, object client.Object, o ...client.SubResourceUpdateOption) error {
			return write(func() error { return c.SubResource(sub).Update(ctx, object, o...) })
		},
		SubResourcePatch: func(ctx context.Context, c client.Client, sub string, object client.Object, p client.Patch, o ...client.SubResourcePatchOption) error {
			return write(func() error {
				// The API server takes annotations by pods/status, too (podStatusStrategy.PrepareForUpdate).
				if data, err := p.Data(object); err == nil && bytes.Contains(data, []byte(`"annotations"`)) {
					return c.Patch(ctx, object, p)
				}
				return c.SubResource(sub).Patch(ctx, object, p, o...)
			})
		},
	})
	w.loop = New(Options{
		Driver:        driverName,
		Client:        killable,
		Live:          w.client,
		Recorder:      w.recorder,
		Clock:         w.clock,
		Placeholder:   pair.PlaceholderOptions{Namespace: placeholderNamespace, Image: "pause", Grace: pair.DefaultGrace},
		Autoscaler:    types.NamespacedName{Namespace: autoscaler.Namespace, Name: autoscaler.StatusName},
		DiscoverNodes: true,
	})
}

// pass runs the controller once, and restarts it if it was killed.
func (w *world) pass() {
	w.t.Helper()
	_, err := w.loop.Pass(w.t.Context())
	select {
	case n := <-w.loop.writer.reports:
		w.loop.writer.write(w.t.Context(), n)
		err = errors.Join(err, w.loop.writer.failure())
	default:
	}
	if errors.Is(err, errKilled) {
		w.dieAt = 0
		w.restart()
		return
	}
	if err != nil {
		w.t.Fatal(err)
	}
}

// run runs everything every fifteen seconds for a time.
func (w *world) run(d time.Duration) {
	w.t.Helper()
	for end := w.clock.Now().Add(d); w.clock.Now().Before(end); {
		w.autoscale()
		w.startNodes()
		w.pass()
		w.schedule()
		w.clock.Step(15 * time.Second)
	}
}

func all[L client.ObjectList](w *world, list L) L {
	w.t.Helper()
	if err := w.client.List(w.t.Context(), list); err != nil {
		w.t.Fatal(err)
	}
	return list
}

func get[O client.Object](w *world, object O, namespace, name string) O {
	w.t.Helper()
	if err := w.client.Get(w.t.Context(), types.NamespacedName{Namespace: namespace, Name: name}, object); err != nil {
		w.t.Fatal(err)
	}
	return object
}

// events returns the Events since the last call.
func (w *world) events() []string {
	var all []string
	for len(w.recorder.Events) > 0 {
		all = append(all, <-w.recorder.Events)
	}
	return all
}

// expectEvents checks how many Events begin with the type and reason, and contain the text.
func (w *world) expectEvents(all []string, want int, prefix, text string) {
	w.t.Helper()
	matching := slices.DeleteFunc(slices.Clone(all), func(event string) bool {
		return !strings.HasPrefix(event, prefix+" ") || !strings.Contains(event, text)
	})
	if len(matching) != want {
		w.t.Errorf("there are %d Events %s with %q, want %d; all: %q", len(matching), prefix, text, want, all)
	}
}

func (w *world) update(object client.Object) {
	w.t.Helper()
	if err := w.client.Update(w.t.Context(), object); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) updateStatus(object client.Object) {
	w.t.Helper()
	if err := w.client.Status().Update(w.t.Context(), object); err != nil {
		w.t.Fatal(err)
	}
}

// autoscale is a scan of Cluster Autoscaler: it refuses pods with claims, and adds a node for each placeholder without one.
func (w *world) autoscale() {
	w.t.Helper()
	status := get(w, &corev1.ConfigMap{}, autoscaler.Namespace, autoscaler.StatusName)
	status.Data = map[string]string{"status": fmt.Sprintf("time: %q\n", w.clock.Now().UTC().Format("2006-01-02 15:04:05.999999999 -0700 MST"))}
	w.update(status)
	pods := all(w, &corev1.PodList{}).Items
	for i := range pods {
		pod := &pods[i]
		switch {
		case pod.Spec.NodeName != "":
		case !view.IsPlaceholder(pod, placeholderNamespace):
			w.say(pod, "NotTriggerScaleUp", "pod didn't trigger scale-up: 1 cannot allocate all claims")
		case w.node("for-"+string(pod.UID)) == nil:
			w.say(pod, "TriggeredScaleUp", "pod triggered scale-up: [{g 0->1 (max: 5)}]")
			w.addNode("for-"+string(pod.UID), pod.Spec.NodeSelector)
		}
	}
}

// say writes or replaces an Event, as Cluster Autoscaler's recorder does.
func (w *world) say(pod *corev1.Pod, reason, message string) {
	event := &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Namespace: pod.Namespace, Name: fmt.Sprintf("%s-%s", pod.UID, strings.ToLower(reason))},
		InvolvedObject: corev1.ObjectReference{Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID},
		Reason:         reason, Message: message,
		Source:        corev1.EventSource{Component: "cluster-autoscaler"},
		LastTimestamp: metav1.NewTime(w.clock.Now()),
	}
	if err := client.IgnoreNotFound(w.client.Delete(w.t.Context(), event.DeepCopy())); err != nil {
		w.t.Fatal(err)
	}
	w.create(event)
}

func (w *world) node(name string) *corev1.Node {
	for _, node := range all(w, &corev1.NodeList{}).Items {
		if node.Name == name {
			return &node
		}
	}
	return nil
}

// addNode adds a node that has just joined, with the startup taint.
func (w *world) addNode(name string, labels map[string]string) {
	w.create(&corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels},
		Spec:       corev1.NodeSpec{Taints: []corev1.Taint{{Key: v1alpha1.TaintStartup, Value: "true", Effect: corev1.TaintEffectNoSchedule}}},
	})
}

// end deletes a node and its slices.
func (w *world) end(node *corev1.Node) {
	w.t.Helper()
	for _, slice := range all(w, &resourceapi.ResourceSliceList{}).Items {
		if ptr.Deref(slice.Spec.NodeName, "") == node.Name {
			if err := w.client.Delete(w.t.Context(), &slice); err != nil {
				w.t.Fatal(err)
			}
		}
	}
	if err := w.client.Delete(w.t.Context(), node); err != nil {
		w.t.Fatal(err)
	}
}

// startNodes makes nodes Ready after twenty seconds, and publishes their devices after a minute.
func (w *world) startNodes() {
	w.t.Helper()
	published := map[string]bool{}
	for _, slice := range all(w, &resourceapi.ResourceSliceList{}).Items {
		published[ptr.Deref(slice.Spec.NodeName, "")] = true
	}
	nodes := all(w, &corev1.NodeList{}).Items
	for i := range nodes {
		node := &nodes[i]
		group := w.groupOf(node)
		if group == nil {
			continue
		}
		if w.publishes != "" {
			group.Spec.InstanceType = w.publishes
		}
		age := w.clock.Since(node.CreationTimestamp.Time)
		t, err := template.Predict(driverName, group, "", nil, template.StartupTaints{})
		if err != nil {
			w.t.Fatal(err)
		}
		if age >= 20*time.Second && len(node.Status.Conditions) == 0 {
			node.Labels[corev1.LabelInstanceTypeStable] = group.Spec.InstanceType
			w.update(node)
			node.Status.Allocatable = t.Node.Status.Allocatable
			node.Status.Conditions = []corev1.NodeCondition{{
				Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(w.clock.Now()),
			}}
			w.updateStatus(node)
		}
		switch {
		case age < time.Minute || published[node.Name], w.noSlices:
		case w.withhold == "":
			w.publish(t, node.Name)
		case len(all(w, &v1alpha1.GPUNodeList{}).Items) == 0:
			w.create(&v1alpha1.GPUNode{ObjectMeta: metav1.ObjectMeta{Name: node.Name}, Withheld: w.withhold})
		}
	}
}

func (w *world) publish(t *template.Template, node string) {
	for i, slice := range t.Slices {
		own := slice.DeepCopy()
		own.ObjectMeta = metav1.ObjectMeta{Name: fmt.Sprintf("%s-%d", node, i)}
		own.Spec.NodeName, own.Spec.Pool.Name = &node, node
		w.create(own)
	}
}

func (w *world) groupOf(node *corev1.Node) *v1alpha1.GPUNodeGroup {
	for _, group := range all(w, &v1alpha1.GPUNodeGroupList{}).Items {
		if key := v1alpha1.LabelEKSNodegroup; node.Labels[key] != "" && node.Labels[key] == group.Spec.Provider.Selector()[key] {
			return &group
		}
	}
	return nil
}

// schedule puts users' pods on nodes with a free GPU and without the startup taint. Placeholders have a node selector.
func (w *world) schedule() {
	w.t.Helper()
	var pods []corev1.Pod
	for _, pod := range all(w, &corev1.PodList{}).Items {
		if pod.Spec.NodeName == "" && len(pod.Spec.NodeSelector) == 0 {
			pods = append(pods, pod)
		}
	}
	for i, free := range w.free(len(pods)) {
		pod := &pods[i]
		claim := get(w, &resourceapi.ResourceClaim{}, pod.Namespace, pod.Name+"-gpu")
		claim.Status.Allocation = &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{
			Results: []resourceapi.DeviceRequestAllocationResult{{Request: "gpu", Driver: driverName, Pool: free[0], Device: free[1]}},
		}}
		w.update(claim)
		pod.Spec.NodeName = free[0] // pools are named for their nodes
		w.update(pod)
	}
}

// free are at most so many free GPUs, as pool and device.
func (w *world) free(most int) [][2]string {
	if most == 0 {
		return nil
	}
	taken := map[[2]string]bool{}
	for _, claim := range all(w, &resourceapi.ResourceClaimList{}).Items {
		if claim.Status.Allocation != nil {
			result := claim.Status.Allocation.Devices.Results[0]
			taken[[2]string{result.Pool, result.Device}] = true
		}
	}
	open := map[string]bool{}
	for _, node := range all(w, &corev1.NodeList{}).Items {
		open[node.Name] = !node.Spec.Unschedulable && !slices.ContainsFunc(node.Spec.Taints, func(taint corev1.Taint) bool { return taint.Key == v1alpha1.TaintStartup })
	}
	var free [][2]string
	for _, slice := range all(w, &resourceapi.ResourceSliceList{}).Items {
		for _, device := range slice.Spec.Devices {
			id := [2]string{slice.Spec.Pool.Name, device.Name}
			kind := device.Attributes["type"].StringValue
			if kind != nil && *kind == "gpu" && open[slice.Spec.Pool.Name] && !taken[id] && len(free) < most {
				free = append(free, id)
			}
		}
	}
	return free
}

// group is an EKS node group of g6.12xlarge machines with 4 GPUs each.
func group(name string, change ...func(*v1alpha1.GPUNodeGroup)) *v1alpha1.GPUNodeGroup {
	g := &v1alpha1.GPUNodeGroup{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: v1alpha1.GPUNodeGroupSpec{
			Provider:     v1alpha1.NodeGroupProvider{EKS: &v1alpha1.EKSNodegroup{Nodegroup: name}},
			InstanceType: "g6.12xlarge",
			Pairing:      v1alpha1.PairingPlaceholder,
		},
	}
	for _, c := range change {
		c(g)
	}
	return g
}

// oneGPU are a claim template and pods with a claim for one GPU each.
func oneGPU(n int) []client.Object {
	objects := []client.Object{&resourceapi.ResourceClaimTemplate{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "gpu"},
		Spec: resourceapi.ResourceClaimTemplateSpec{Spec: resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{
			Requests: []resourceapi.DeviceRequest{{Name: "gpu", Exactly: &resourceapi.ExactDeviceRequest{
				DeviceClassName: driverName, AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: 1,
			}}},
		}}},
	}}
	for i := range n {
		objects = append(objects, &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprintf("pod-%d", i)},
			Spec: corev1.PodSpec{
				Containers: []corev1.Container{{
					Name:      "c",
					Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")}},
				}},
				ResourceClaims: []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimTemplateName: ptr.To("gpu")}},
			},
			Status: corev1.PodStatus{Phase: corev1.PodPending},
		})
	}
	return objects
}

func (w *world) placeholders() int {
	return len(slices.DeleteFunc(all(w, &corev1.PodList{}).Items, func(pod corev1.Pod) bool { return !view.IsPlaceholder(&pod, placeholderNamespace) }))
}

func (w *world) nodes() int { return len(all(w, &corev1.NodeList{}).Items) }

// placed counts pods of users with a node.
func (w *world) placed() int {
	return len(slices.DeleteFunc(all(w, &corev1.PodList{}).Items, func(pod corev1.Pod) bool {
		return view.IsPlaceholder(&pod, placeholderNamespace) || pod.Spec.NodeName == ""
	}))
}

func (w *world) status(name string) v1alpha1.GPUNodeGroupStatus {
	w.t.Helper()
	return get(w, &v1alpha1.GPUNodeGroup{}, "", name).Status
}

func (w *world) expectCondition(group, kind string, status metav1.ConditionStatus, reason string) {
	w.t.Helper()
	got := meta.FindStatusCondition(w.status(group).Conditions, kind)
	if got == nil || got.Status != status || got.Reason != reason {
		w.t.Errorf("condition %s of %s is %+v, want %s for %s", kind, group, got, status, reason)
	}
}

func (w *world) expectMessage(group, kind, text string) {
	w.t.Helper()
	if got := meta.FindStatusCondition(w.status(group).Conditions, kind); got == nil || !strings.Contains(got.Message, text) {
		w.t.Errorf("condition %s of %s is %+v, want %q", kind, group, got, text)
	}
}
