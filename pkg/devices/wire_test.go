package devices

import (
	"bytes"
	"encoding/json"
	"fmt"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/utils/ptr"

	"github.com/mica-gpu/mica/pkg/gpu"
	"github.com/mica-gpu/mica/test/fixture"
)

// sent is a page as an API server sends it.
func sent(t testing.TB, slices ...resourceapi.ResourceSlice) []byte {
	t.Helper()
	var out bytes.Buffer
	list := &resourceapi.ResourceSliceList{
		TypeMeta: metav1.TypeMeta{APIVersion: "resource.k8s.io/v1", Kind: "ResourceSliceList"},
		ListMeta: metav1.ListMeta{ResourceVersion: "7", Continue: "next"}, Items: slices,
	}
	if err := protobuf.NewSerializer(nil, nil).Encode(list, &out); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// ofNode is what a node publishes, with GPUs of its own.
func ofNode(node string, change func(*resourceapi.ResourceSlice)) resourceapi.ResourceSlice {
	s := resourceapi.ResourceSlice{
		ObjectMeta: metav1.ObjectMeta{Name: node + "-abc", Labels: map[string]string{"a": "b"}},
		Spec: resourceapi.ResourceSliceSpec{
			Driver: fixture.Driver, NodeName: &node, Pool: resourceapi.ResourcePool{Name: node, Generation: 3, ResourceSliceCount: 1},
			SharedCounters: []resourceapi.CounterSet{{Name: "gpu-0-counter-set", Counters: map[string]resourceapi.Counter{"memory-slice-0": {}}}},
		},
	}
	text := func(value string) resourceapi.DeviceAttribute {
		return resourceapi.DeviceAttribute{StringValue: &value}
	}
	for i := range 3 {
		s.Spec.Devices = append(s.Spec.Devices,
			resourceapi.Device{Name: fmt.Sprint("gpu-", i), Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
				gpu.AttributeUUID: text(fmt.Sprintf("GPU-%s-%d", node, i)), gpu.AttributeType: text("gpu"), "resource.kubernetes.io/pciBusID": text(fmt.Sprint("0000:0", i)),
				gpu.AttributeIndex: {IntValue: ptr.To(int64(i))},
			}, AllowMultipleAllocations: ptr.To(true)},
			resourceapi.Device{Name: fmt.Sprint("gpu-", i, "-mig-1g10gb-19-0"), Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
				gpu.AttributeParentUUID: text(fmt.Sprintf("GPU-%s-%d", node, i)), gpu.AttributeProfile: text("1g.10gb"), "resource.kubernetes.io/pciBusID": text(fmt.Sprint("0000:0", i)),
			}},
		)
	}
	if change != nil {
		change(&s)
	}
	return s
}

// same holds what a Decoder reads to what the generated code reads.
func same(t *testing.T, got *resourceapi.ResourceSliceList, want []resourceapi.ResourceSlice) {
	t.Helper()
	if got.Continue != "next" || got.ResourceVersion != "7" || len(got.Items) != len(want) {
		t.Fatalf("got %d slices, %+v", len(got.Items), got.ListMeta)
	}
	for i := range want {
		published := got.Items[i].DeepCopy()
		own := OwnOf(published)
		for d := range published.Spec.Devices {
			published.Spec.Devices[d].Attributes = own.Attributes(published.Spec.Devices[d].Attributes)
		}
		delete(published.Annotations, annotationOwn)
		if len(published.Annotations) == 0 {
			published.Annotations = nil
		}
		a, _ := json.Marshal(published)
		b, _ := json.Marshal(want[i])
		if !bytes.Equal(a, b) {
			t.Errorf("slice %d is read as\n%s\nand is\n%s", i, a, b)
		}
	}
}

func TestSlicesAreReadAsTheyWereSent(t *testing.T) {
	text := func(s *resourceapi.ResourceSlice, name resourceapi.QualifiedName, value string) {
		s.Spec.Devices[0].Attributes[name] = resourceapi.DeviceAttribute{StringValue: &value}
	}
	all := []resourceapi.ResourceSlice{
		ofNode("n1", nil), ofNode("a-longer-name", nil), ofNode("n1", nil),
		ofNode("n2", func(s *resourceapi.ResourceSlice) { text(s, gpu.AttributeProductName, "another") }),
		// Two GPUs of one name, and one without an address: nothing stands for them.
		ofNode("n3", func(s *resourceapi.ResourceSlice) { text(s, gpu.AttributeUUID, "GPU-n3-1") }),
		ofNode("n4", func(s *resourceapi.ResourceSlice) {
			delete(s.Spec.Devices[0].Attributes, "resource.kubernetes.io/pciBusID")
		}),
		ofNode("n5", func(s *resourceapi.ResourceSlice) {
			delete(s.Spec.Devices[0].Attributes, "resource.kubernetes.io/pciBusID")
		}),
		ofNode("n6", func(s *resourceapi.ResourceSlice) { s.Spec.NodeName, s.Spec.AllNodes = nil, ptr.To(true) }),
		ofNode("n7", func(s *resourceapi.ResourceSlice) {
			s.Spec.Devices[1].Taints = []resourceapi.DeviceTaint{{Key: "k", Effect: resourceapi.DeviceTaintEffectNone}}
			s.Annotations = map[string]string{"c": "d"}
		}),
		ofNode("n8", func(s *resourceapi.ResourceSlice) { s.Spec.Devices, s.Spec.SharedCounters = nil, nil }),
	}
	d := NewDecoder()
	for range 2 {
		got, err := d.List(sent(t, all...))
		if err != nil {
			t.Fatal(err)
		}
		same(t, got, all)
		if &got.Items[0].Spec.Devices[0] != &got.Items[1].Spec.Devices[0] {
			t.Error("what two nodes publish alike is in memory twice")
		}
	}
}

func TestDamagedPagesAreRefused(t *testing.T) {
	whole := sent(t, ofNode("n1", nil))
	d := NewDecoder()
	for length := range whole {
		// What ends between two fields of the envelope lacks the list, or has all of it.
		if got, err := d.List(whole[:length]); err == nil && len(got.Items) != 0 && length < len(whole)-4 {
			t.Fatalf("the first %d of %d bytes are read", length, len(whole))
		}
	}
	if _, err := d.List([]byte(`{"kind": "ResourceSliceList"}`)); err == nil {
		t.Error("JSON is read as protobuf")
	}
}

func FuzzDecoder(f *testing.F) {
	f.Add(sent(f, ofNode("n1", nil), ofNode("n2", nil)))
	f.Fuzz(func(t *testing.T, wire []byte) {
		list, err := NewDecoder().List(wire)
		if err != nil {
			return
		}
		var unknown runtime.Unknown
		if unknown.Unmarshal(bytes.TrimPrefix(wire, magic)) != nil {
			return
		}
		var want resourceapi.ResourceSliceList
		if want.Unmarshal(unknown.Raw) != nil {
			return
		}
		if len(list.Items) != len(want.Items) {
			t.Errorf("%d slices are read, %d were sent", len(list.Items), len(want.Items))
		}
	})
}
