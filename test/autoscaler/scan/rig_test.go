package scan

import (
	"fmt"
	"maps"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

var start = time.Date(2026, 10, 1, 12, 0, 0, 0, time.UTC)

const (
	nodegroup = "eks.amazonaws.com/nodegroup"
	startupOf = StartupTaintPrefix + "test"
	driver    = "gpu.example.com"
)

// rig is a cluster with a clock.
type rig struct {
	t       *testing.T
	options Options
	state   State
	memory  Memory
}

func newRig(t *testing.T, groups ...Group) *rig {
	r := &rig{t: t, memory: NewMemory(), options: Options{
		TemplateAge: time.Minute, Backoff: 5 * time.Minute, MaxBackoff: 30 * time.Minute, ScaleDownUnneeded: 10 * time.Minute, PriorityCutoff: -10,
		MaxProvision: 15 * time.Minute, MaxStartup: 15 * time.Minute,
	}}
	r.state = State{Now: start, Groups: groups, Classes: []*resourceapi.DeviceClass{{
		ObjectMeta: metav1.ObjectMeta{Name: "gpu"},
		Spec:       resourceapi.DeviceClassSpec{ExtendedResourceName: new("example.com/gpu")},
	}}}
	return r
}

// group is one of 8-GPU machines that is empty.
func group(name string, change ...func(*Group)) Group {
	g := Group{
		Name: name, Max: 5, Selector: map[string]string{nodegroup: name}, Labels: map[string]string{nodegroup: name},
		Taints: []corev1.Taint{
			{Key: "gpu", Value: "present", Effect: corev1.TaintEffectNoSchedule},
			{Key: startupOf, Value: "starting", Effect: corev1.TaintEffectNoSchedule},
		},
		Allocatable: corev1.ResourceList{
			corev1.ResourceCPU: resource.MustParse("16"), corev1.ResourceMemory: resource.MustParse("64Gi"), corev1.ResourcePods: resource.MustParse("100"),
		},
	}
	for _, f := range change {
		f(&g)
	}
	return g
}

// scan scans once, and applies the new sizes.
func (r *rig) scan() Result {
	r.t.Helper()
	result, err := Scan(r.t.Context(), r.options, r.state, r.memory)
	if err != nil {
		r.t.Fatal(err)
	}
	r.memory = result.Memory
	for i := range r.state.Groups {
		if size, changed := result.Sizes[r.state.Groups[i].Name]; changed {
			r.state.Groups[i].Target = size
			r.state.Groups[i].Failed = 0
		}
	}
	return result
}

func (r *rig) after(d time.Duration) { r.state.Now = r.state.Now.Add(d) }

// join adds a node of the first group, with its startup taint and without slices.
func (r *rig) join(name string) *corev1.Node {
	g := &r.state.Groups[0]
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: maps.Clone(g.Labels), CreationTimestamp: metav1.NewTime(r.state.Now)}}
	node.Spec.Taints = g.Taints
	node.Status.Allocatable = g.Allocatable
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(r.state.Now)}}
	r.state.Nodes = append(r.state.Nodes, node)
	return node
}

// publish offers 8 GPUs of a node, in two slices.
func (r *rig) publish(node string, slices int) {
	for i := range slices {
		slice := &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%s-%d", node, i)}}
		slice.Spec = resourceapi.ResourceSliceSpec{Driver: driver, NodeName: &node, Pool: resourceapi.ResourcePool{Name: node, Generation: 1, ResourceSliceCount: 2}}
		for n := range 4 {
			slice.Spec.Devices = append(slice.Spec.Devices, resourceapi.Device{
				Name:       fmt.Sprintf("gpu-%d", 4*i+n),
				Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{"model": {StringValue: new("H100")}},
			})
		}
		r.state.Slices = append(r.state.Slices, slice)
	}
}

// open removes the startup taint.
func (r *rig) open(node *corev1.Node) { node.Spec.Taints = withoutStartup(node.Spec.Taints) }

// remove removes all nodes.
func (r *rig) remove() {
	r.state.Nodes, r.state.Slices = nil, nil
	for i := range r.state.Groups {
		r.state.Groups[i].Target = 0
	}
}

// pod adds a pending pod.
func (r *rig) pod(name string, change ...func(*corev1.Pod)) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name), CreationTimestamp: metav1.NewTime(r.state.Now)}}
	pod.Spec.Tolerations = []corev1.Toleration{{Key: "gpu", Operator: corev1.TolerationOpExists}}
	pod.Spec.Containers = []corev1.Container{{Name: "c", Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")}}}}
	pod.Status.Phase = corev1.PodPending
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable}}
	for _, f := range change {
		f(pod)
	}
	r.state.Pods = append(r.state.Pods, pod)
	return pod
}

// claiming gives a pod a claim of its own.
func (r *rig) claiming(model string) func(*corev1.Pod) {
	return func(pod *corev1.Pod) { r.sharing("claim-"+pod.Name, model)(pod) }
}

// sharing lets a pod use the claim of that name.
func (r *rig) sharing(claim, model string) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		pod.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimName: &claim}}
		for _, existing := range r.state.Claims {
			if existing.Name == claim {
				return
			}
		}
		expression := fmt.Sprintf(`device.attributes[%q].model == %q`, driver, model)
		r.state.Claims = append(r.state.Claims, &resourceapi.ResourceClaim{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: claim, UID: types.UID(claim)},
			Spec: resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{{
				Name: "gpu", Exactly: &resourceapi.ExactDeviceRequest{
					DeviceClassName: "gpu", AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: 1,
					Selectors: []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: expression}}},
				},
			}}}},
		})
	}
}

func pinned(group string) func(*corev1.Pod) {
	return func(pod *corev1.Pod) { pod.Spec.NodeSelector = map[string]string{nodegroup: group} }
}

// bind lets the scheduler put a pod on a node.
func bind(pod *corev1.Pod, node string) {
	pod.Spec.NodeName = node
	pod.Status.Phase = corev1.PodRunning
}

// says are the Events, one per line.
func says(result Result) []string {
	var lines []string
	for _, event := range result.Events {
		lines = append(lines, fmt.Sprintf("%s %s: %s", event.Pod.Name, event.Reason, event.Message))
	}
	return lines
}

// allocate gives a device of a node to a claim.
func (r *rig) allocate(claim, node, device string) {
	r.t.Helper()
	for _, c := range r.state.Claims {
		if c.Name == claim {
			c.Status.Allocation = &resourceapi.AllocationResult{
				Devices: resourceapi.DeviceAllocationResult{Results: []resourceapi.DeviceRequestAllocationResult{{Request: "gpu", Driver: driver, Pool: node, Device: device}}},
			}
			return
		}
	}
	r.t.Fatalf("there is no claim %s", claim)
}

var daemonSet = metav1.OwnerReference{APIVersion: "apps/v1", Kind: "DaemonSet", Name: "d", Controller: new(true)}
