package handover

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/dynamic-resource-allocation/deviceattribute"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/mica-gpu/mica/api/v1alpha1"
	"github.com/mica-gpu/mica/pkg/devices"
	"github.com/mica-gpu/mica/pkg/gpu"
	"github.com/mica-gpu/mica/pkg/slice"
)

const driver = "gpu.example.com"

var noon = time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)

// cluster is one with the node "a".
type cluster struct {
	*testing.T
	Reporter
	now    time.Time
	writes int
}

func newCluster(t *testing.T) *cluster {
	c := &cluster{T: t, now: noon}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a", Annotations: map[string]string{"other": "kept"}}}
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	c.Reporter = Reporter{Driver: driver, Client: fake.NewClientBuilder().WithScheme(scheme.Scheme).WithObjects(node).WithInterceptorFuncs(interceptor.Funcs{
		SubResourcePatch: func(ctx context.Context, inner client.Client, sub string, object client.Object, patch client.Patch, options ...client.SubResourcePatchOption) error {
			c.writes++
			// The stand-in takes only the status from a patch of it; the API server takes annotations, too.
			if err := inner.Patch(ctx, object.DeepCopyObject().(client.Object), patch); err != nil {
				return err
			}
			return inner.SubResource(sub).Patch(ctx, object, patch, options...)
		},
	}).Build()}
	return c
}

// publish replaces what the node publishes: an entire GPU and a partition of it, with the same taints.
func (c *cluster) publish(slicesOfPool int64, taints ...resourceapi.DeviceTaint) {
	c.Helper()
	published := &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: "a-1"}, Spec: resourceapi.ResourceSliceSpec{
		Driver: driver, NodeName: ptr.To("a"), Pool: resourceapi.ResourcePool{Name: "a", ResourceSliceCount: slicesOfPool},
		Devices: []resourceapi.Device{
			{Name: "gpu-0-mig-1g", Taints: taints, Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{gpu.AttributeParentUUID: {StringValue: ptr.To("GPU-0")}, gpu.AttributeUUID: {StringValue: ptr.To("MIG-1")}, deviceattribute.StandardDeviceAttributePCIBusID: {StringValue: ptr.To("0000:53:00.0")}}},
			{Name: "gpu-0", Taints: taints, Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{gpu.AttributeUUID: {StringValue: ptr.To("GPU-0")}, deviceattribute.StandardDeviceAttributePCIBusID: {StringValue: ptr.To("0000:53:00.0")}}},
		},
	}}
	if err := c.Client.Delete(c.Context(), published.DeepCopy()); client.IgnoreNotFound(err) != nil {
		c.Fatal(err)
	}
	if slicesOfPool == 0 {
		return
	}
	devices.NewCompactor().Compact(published) // as the controller's cache does
	if err := c.Client.Create(c.Context(), published); err != nil {
		c.Fatal(err)
	}
}

func taint(key, value string, effect resourceapi.DeviceTaintEffect) resourceapi.DeviceTaint {
	return resourceapi.DeviceTaint{Key: key, Value: value, Effect: effect, TimeAdded: ptr.To(metav1.NewTime(noon))}
}

// expect reports twice, and compares the number of writes, the condition and the annotation.
func (c *cluster) expect(writes int, status corev1.ConditionStatus, message string, faults ...Fault) *corev1.NodeCondition {
	c.Helper()
	c.writes, c.now = 0, c.now.Add(time.Minute)
	for range 2 {
		if err := c.Act(c.Context(), c.now); err != nil {
			c.Fatal(err)
		}
	}
	var node corev1.Node
	if err := c.Client.Get(c.Context(), client.ObjectKey{Name: "a"}, &node); err != nil {
		c.Fatal(err)
	}
	var got []Fault
	if text, there := node.Annotations[v1alpha1.AnnotationGPUFaults]; there {
		if err := json.Unmarshal([]byte(text), &got); err != nil {
			c.Fatal(err)
		}
	}
	if !slices.EqualFunc(got, faults, Fault.same) || len(got) > 0 && (got[0].Device != "gpu-0" || !got[0].Since.Time.Equal(noon)) {
		c.Errorf("the annotation says %+v, want %+v", got, faults)
	}
	if c.writes != writes || node.Annotations["other"] != "kept" || len(node.Status.Conditions) == 0 || node.Status.Conditions[0].Type == v1alpha1.ConditionGPUsHealthy && len(node.Status.Conditions) == 1 {
		c.Errorf("%d writes, want %d; the node is %+v", c.writes, writes, node)
	}
	condition := conditionOf(&node)
	if condition == nil {
		if status != "" {
			c.Errorf("there is no condition, want %s", status)
		}
		return nil
	}
	if condition.Status != status || !strings.Contains(condition.Message, message) {
		c.Errorf("the condition is %+v, want %s with %q", condition, status, message)
	}
	return condition
}

func TestANodeWithASickGPU(t *testing.T) {
	c := newCluster(t)
	c.expect(0, "", "")
	c.publish(1)
	c.expect(0, "", "")
	c.publish(1, taint("mica.gpu/withdrawn", "", "NoSchedule"), taint(slice.TaintFabric, "InProgress", "NoSchedule"))
	c.expect(0, "", "") // these taints are no faults

	c.publish(1, taint("gpu.nvidia.com/xid", "79", "NoSchedule"))
	xid := Fault{UUID: "GPU-0", Taint: "gpu.nvidia.com/xid=79", Effect: "NoSchedule"}
	first := c.expect(1, corev1.ConditionFalse, "gpu-0 (GPU-0): gpu.nvidia.com/xid=79", xid)
	lost := Fault{UUID: "GPU-0", Taint: "gpu.nvidia.com/gpu-lost", Effect: "NoSchedule"}
	c.publish(1, taint("gpu.nvidia.com/xid", "79", "NoSchedule"), taint("gpu.nvidia.com/gpu-lost", "", "NoSchedule"))
	if second := c.expect(1, corev1.ConditionFalse, "gpu-lost", lost, xid); !second.LastTransitionTime.Equal(&first.LastTransitionTime) || second.LastHeartbeatTime.Equal(&first.LastHeartbeatTime) {
		t.Errorf("the condition is since %v, and was since %v", second.LastTransitionTime, first.LastTransitionTime)
	}
	c.publish(2) // of two slices, one is there
	c.expect(0, corev1.ConditionFalse, "gpu-lost", lost, xid)
	c.publish(1)
	c.expect(1, corev1.ConditionTrue, "No GPU has a fault")
	c.publish(0)
	c.expect(1, corev1.ConditionUnknown, "publishes no GPUs")
}

// A fault with the effect None makes no node sick.
func TestAFaultWithWhichWorkGoesOn(t *testing.T) {
	c := newCluster(t)
	c.publish(1, taint("mica.gpu/memory", "row-remap-pending", "None"))
	c.expect(1, "", "", Fault{UUID: "GPU-0", Taint: "mica.gpu/memory=row-remap-pending", Effect: "None"})
	c.publish(1)
	c.expect(1, "", "")
}
