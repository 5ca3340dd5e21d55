package control

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/mica-gpu/mica/api/v1alpha1"
	"github.com/mica-gpu/mica/pkg/scaleout/view"
)

// A new node is counted once per state. Nodes from before the process are not counted.
func TestNodesThatComeAreCounted(t *testing.T) {
	v := &view.View{GroupStates: []view.Group{{Object: &v1alpha1.GPUNodeGroup{ObjectMeta: metav1.ObjectMeta{Name: "arrivals"}}}}}
	add := func(name string) {
		slice := &resourceapi.ResourceSlice{}
		slice.Spec.Driver, slice.Spec.Pool.Name = "gpu.mica.gpu", name
		v.GroupStates[0].Nodes = append(v.GroupStates[0].Nodes, view.NodeState{
			Object: &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)}}, Ready: true, Slices: []*resourceapi.ResourceSlice{slice}})
	}
	use := func(name string) {
		v.Claims = append(v.Claims, &resourceapi.ResourceClaim{Status: resourceapi.ResourceClaimStatus{Allocation: &resourceapi.AllocationResult{
			Devices: resourceapi.DeviceAllocationResult{Results: []resourceapi.DeviceRequestAllocationResult{{Driver: "gpu.mica.gpu", Pool: name, Device: "gpu-0"}}}}}})
	}
	now, first, a := time.Unix(1e9, 0), true, arrivals{}
	look := func(after time.Duration, come, used, unused float64) {
		t.Helper()
		now = now.Add(after)
		a = a.observe(v, now, first)
		first = false
		for state, want := range map[string]float64{"come": come, "used": used, "unused": unused} {
			if got := testutil.ToFloat64(nodesCame.WithLabelValues("arrivals", state)); got != want {
				t.Errorf("after %s: %v nodes %s, want %v", now.Sub(time.Unix(1e9, 0)), got, state, want)
			}
		}
	}
	add("found")
	look(0, 0, 0, 0)
	add("busy")
	add("vain")
	v.GroupStates[0].Nodes[2].Missing = []string{"pool gpus has 0 of 8 devices"}
	look(time.Hour, 1, 0, 0)
	v.GroupStates[0].Nodes[2].Missing = nil
	use("busy")
	use("found")
	look(time.Minute, 2, 1, 0)
	look(9*time.Minute, 2, 1, 0)
	look(time.Minute, 2, 1, 1)
	use("vain")
	look(time.Minute, 2, 2, 1)
	v.GroupStates[0].Nodes = nil
	look(time.Minute, 2, 2, 1)
	if len(a) > 0 {
		t.Errorf("nodes that are gone are remembered: %v", a)
	}
}
