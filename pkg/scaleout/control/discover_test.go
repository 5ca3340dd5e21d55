package control

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/mica-gpu/mica/api/v1alpha1"
	"github.com/mica-gpu/mica/pkg/scaleout"
	"github.com/mica-gpu/mica/pkg/scaleout/template"
	"github.com/mica-gpu/mica/pkg/scaleout/view"
)

func TestLiveNodegroupsWithOurDevicesAreDiscovered(t *testing.T) {
	node := func(name, nodegroup, group string) scaleout.Node {
		object := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
		if nodegroup != "" {
			object.Labels = map[string]string{v1alpha1.LabelEKSNodegroup: nodegroup}
		}
		object.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
		return scaleout.Node{Object: object, Group: group}
	}
	slice := func(driver, node string) *resourceapi.ResourceSlice {
		return &resourceapi.ResourceSlice{Spec: resourceapi.ResourceSliceSpec{Driver: driver, NodeName: &node, Pool: resourceapi.ResourcePool{Name: node, ResourceSliceCount: 1}}}
	}
	half := slice("gpu.nvidia.com", "h1")
	half.Spec.Pool.ResourceSliceCount = 2
	starting := node("s1", "starting", "")
	starting.Object.Status.Conditions = nil
	pooled := node("t1", "twice", "")
	pooled.Object.Labels["pool"] = "gpus"
	both := &v1alpha1.GPUNodeGroup{Spec: v1alpha1.GPUNodeGroupSpec{
		Provider: v1alpha1.NodeGroupProvider{NodeSelector: map[string]string{"pool": "gpus"}},
	}}
	refused := &v1alpha1.GPUNodeGroup{Spec: v1alpha1.GPUNodeGroupSpec{
		Provider: v1alpha1.NodeGroupProvider{EKS: &v1alpha1.EKSNodegroup{Nodegroup: "refused"}},
	}}
	v := &view.View{
		Snapshot: scaleout.Snapshot{
			Nodes: []scaleout.Node{
				node("z1", "zeta", ""), node("z2", "zeta", ""), node("a1", "alpha", ""),
				node("d1", "declared", "d"), node("r1", "refused", ""), node("c1", "cpus", ""), node("bare", "", ""),
				node("h1", "half", ""), starting, pooled,
			},
			Slices: []*resourceapi.ResourceSlice{
				slice("gpu.nvidia.com", "z1"), slice("gpu.nvidia.com", "z2"), slice("gpu.nvidia.com", "a1"),
				slice("gpu.nvidia.com", "d1"), slice("gpu.nvidia.com", "r1"), slice("net", "c1"), slice("gpu.nvidia.com", "bare"),
				half, slice("gpu.nvidia.com", "s1"), slice("gpu.nvidia.com", "t1"),
			},
		},
		GroupStates: []view.Group{{Object: refused, Refused: "twice"}, {Object: both, Refused: "twice"}},
	}
	if got := strings.Join(undeclared("gpu.nvidia.com", v), " "); got != "alpha zeta" {
		t.Errorf("discovered are %q, want alpha and zeta", got)
	}
}

// A discovered group has a template at once, or is deleted with its nodes.
func TestADiscoveredGroupIsKnownOrGone(t *testing.T) {
	w := newWorld(t)
	machine := group("found")
	promised, err := template.Predict(driverName, machine, "", nil, template.StartupTaints{})
	if err != nil {
		t.Fatal(err)
	}
	found := func(name string) bool {
		return w.client.Get(t.Context(), types.NamespacedName{Name: name}, &v1alpha1.GPUNodeGroup{}) == nil
	}
	appear := func(name, nodegroup string) *corev1.Node {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{v1alpha1.LabelEKSNodegroup: nodegroup}}}
		node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
		w.create(node)
		w.pass()
		if found(nodegroup) {
			t.Fatalf("%s is found before its node has published anything", nodegroup)
		}
		w.publish(promised, name)
		w.pass()
		if !found(nodegroup) {
			t.Fatalf("%s is not found", nodegroup)
		}
		return node
	}
	leave := func(node *corev1.Node) {
		if err := w.client.Delete(t.Context(), node); err != nil {
			t.Fatal(err)
		}
		w.pass()
		w.pass()
	}
	kept := appear("a", "kept")
	w.pass()
	leave(kept)
	if status := w.status("kept"); status.Template == nil || len(status.Template.Data) == 0 {
		t.Errorf("what was learned of kept is gone with its node: %+v", status)
	}
	leave(appear("b", "brief"))
	if found("brief") {
		t.Errorf("brief is left without a template: %+v", w.status("brief"))
	}
}

func TestTheSameGroupFoundTwiceIsNoFailure(t *testing.T) {
	w := newWorld(t)
	for _, nodegroup := range []string{"GPU_a", "GPU_a"} {
		if err := createGroup(t.Context(), w.client, discoveredGroup(nodegroup, v1alpha1.PairingObserve)); err != nil {
			t.Error(err)
		}
	}
	w.create(group("other", func(g *v1alpha1.GPUNodeGroup) { g.Spec.Provider.EKS.Nodegroup = "something" }))
	if err := createGroup(t.Context(), w.client, discoveredGroup("other", v1alpha1.PairingObserve)); err == nil || !strings.Contains(err.Error(), "under another name") {
		t.Errorf("a name that another group has: %v", err)
	}
}
