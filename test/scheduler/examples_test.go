package scheduler

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/mica-gpu/mica/pkg/gpu"
	"github.com/mica-gpu/mica/pkg/slice"
	"github.com/mica-gpu/mica/test/fixture"
	"github.com/mica-gpu/mica/test/manifest"
)

const examplesDirectory = "../../examples"

// Each example has two GPU nodes for itself, tainted as they usually are, and one without GPUs: the
// stock scheduler finds a node for each of its pods.
func TestExamplesArePlacedOnTaintedNodes(t *testing.T) {
	files, err := manifest.Files(examplesDirectory)
	if err != nil {
		t.Fatal(err)
	}
	placed := 0
	for _, file := range files {
		name, err := filepath.Rel(examplesDirectory, file)
		if err != nil {
			t.Fatal(err)
		}
		t.Run(name, func(t *testing.T) { placed += place(t, file) })
	}
	if placed < 30 {
		t.Errorf("only %d pods were placed", placed)
	}
}

// place puts the pods of a file on nodes one after the other, and gives their number.
func place(t *testing.T, file string) int {
	t.Helper()
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	objects, err := manifest.Read(content)
	if err != nil {
		t.Fatal(err)
	}
	w := &world{classes: append(classes(), efaClass())}
	for i := range 2 {
		w.nodes = append(w.nodes, taintedNode(t, fmt.Sprintf("node-%d", i)))
	}
	w.nodes = append(w.nodes, &node{object: bareNode("without-gpus")})
	w.pods = examplePods(t, objects)
	for _, p := range w.pods {
		scheduler := newStock(t.Context(), t, w)
		verdicts, state := scheduler.try(t.Context(), p.object)
		i := slices.IndexFunc(w.nodes, func(n *node) bool { return verdicts[n.object.Name].fits })
		if i < 0 {
			t.Errorf("no node fits pod %s: %v", p.object.Name, verdicts)
			continue
		}
		w.put(p, w.nodes[i], scheduler.reserve(t.Context(), t, state, p.object, w.nodes[i].object.Name))
	}
	return len(w.pods)
}

// taintedNode is a p5.48xlarge with every shape that an example asks for.
func taintedNode(t *testing.T, name string) *node {
	t.Helper()
	hardware := fixture.Node(t, "p5.48xlarge")
	n := &node{object: bareNode(name)}
	n.object.Labels["eks.amazonaws.com/capacityType"] = "SPOT"
	n.object.Spec.Taints = []corev1.Taint{{Key: "nvidia.com/gpu", Value: "present", Effect: corev1.TaintEffectNoSchedule}}
	policy := gpu.Policy{Whole: true, MIG: true, TimeSlicing: &gpu.TimeSlicing{Replicas: 4}, MPS: &gpu.MPS{Clients: 4}}
	pool := slice.Pool(hardware, gpu.Shapes(hardware.GPUs, func(gpu.GPU) gpu.Policy { return policy }), nil)
	for i, s := range pool.Slices {
		n.slices = append(n.slices, &resourceapi.ResourceSlice{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%05x-%s", i, name)},
			Spec: resourceapi.ResourceSliceSpec{
				Driver: fixture.Driver, NodeName: &name,
				Pool:    resourceapi.ResourcePool{Name: name, ResourceSliceCount: int64(len(pool.Slices))},
				Devices: s.Devices, SharedCounters: s.SharedCounters,
			},
		})
	}
	n.slices = append(n.slices, efaSlice(name, hardware))
	return n
}

func bareNode(name string) *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name}},
		Status: corev1.NodeStatus{Allocatable: corev1.ResourceList{
			corev1.ResourceCPU: resource.MustParse("190"), corev1.ResourceMemory: resource.MustParse("1900Gi"), corev1.ResourcePods: resource.MustParse("100"),
			corev1.ResourceEphemeralStorage: resource.MustParse("3Ti"), "hugepages-2Mi": resource.MustParse("10Gi"),
		}},
	}
}

// efaClass is that of AWS's chart aws-dranet.
func efaClass() *resourceapi.DeviceClass {
	return &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "efa.networking.k8s.aws"}, Spec: resourceapi.DeviceClassSpec{
		Selectors: selectors(`device.driver == "dra.net" && device.attributes["dra.net"].pciDevice == "Elastic Fabric Adapter (EFA)"`),
	}}
}

// efaSlice has four EFA devices at the PCIe root of each GPU, as p5.48xlarge does.
func efaSlice(name string, hardware gpu.Node) *resourceapi.ResourceSlice {
	s := &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: "efa-" + name}, Spec: resourceapi.ResourceSliceSpec{
		Driver: "dra.net", NodeName: &name, Pool: resourceapi.ResourcePool{Name: name, ResourceSliceCount: 1},
	}}
	for i, g := range hardware.GPUs {
		for j := range 4 {
			s.Spec.Devices = append(s.Spec.Devices, resourceapi.Device{
				Name: fmt.Sprintf("efa-%d-%d", i, j),
				Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
					"dra.net/pciDevice":               {StringValue: ptr.To("Elastic Fabric Adapter (EFA)")},
					"resource.kubernetes.io/pcieRoot": {StringValue: ptr.To(g.PCIeRoot)},
				},
			})
		}
	}
	return s
}

// examplePods are the pods of the objects, with claims as the claim controller makes them of templates.
func examplePods(t *testing.T, objects []runtime.Object) []*pod {
	t.Helper()
	claims, templates := map[string]*resourceapi.ResourceClaim{}, map[string]resourceapi.ResourceClaimSpec{}
	for _, object := range objects {
		switch object := object.(type) {
		case *resourceapi.ResourceClaim:
			claims[object.Name] = newClaim(object.Name, object.Spec)
		case *resourceapi.ResourceClaimTemplate:
			templates[object.Name] = object.Spec.Spec
		}
	}
	var all []*pod
	for _, object := range objects {
		sets, err := manifest.PodsOf(object)
		if err != nil {
			t.Fatal(err)
		}
		for _, set := range sets {
			for i := range set.Count {
				p := examplePod(set, i)
				for _, wanted := range p.object.Spec.ResourceClaims {
					claim := claims[ptr.Deref(wanted.ResourceClaimName, "")]
					if claim == nil {
						claim = newClaim(p.object.Name+"-"+wanted.Name, templates[ptr.Deref(wanted.ResourceClaimTemplateName, "")])
						claim.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(p.object, corev1.SchemeGroupVersion.WithKind("Pod"))}
					}
					p.claims = append(p.claims, claim)
					p.object.Status.ResourceClaimStatuses = append(p.object.Status.ResourceClaimStatuses, corev1.PodResourceClaimStatus{Name: wanted.Name, ResourceClaimName: &claim.Name})
				}
				all = append(all, p)
			}
		}
	}
	return all
}

func examplePod(set manifest.Pods, i int) *pod {
	object := &corev1.Pod{ObjectMeta: *set.Template.ObjectMeta.DeepCopy(), Spec: *set.Template.Spec.DeepCopy()}
	object.Namespace, object.Name = fixture.Namespace, fmt.Sprintf("%s-%d", set.Name, i)
	object.UID = types.UID("uid-" + object.Name)
	object.Spec.SchedulerName = corev1.DefaultSchedulerName
	return &pod{object: object}
}

// newClaim has what the API server sets by default.
func newClaim(name string, spec resourceapi.ResourceClaimSpec) *resourceapi.ResourceClaim {
	claim := &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: fixture.Namespace, Name: name, UID: types.UID("uid-" + name)}, Spec: *spec.DeepCopy(),
	}
	for i := range claim.Spec.Devices.Requests {
		request := &claim.Spec.Devices.Requests[i]
		if exactly := request.Exactly; exactly != nil {
			setCount(&exactly.AllocationMode, &exactly.Count)
		}
		for j := range request.FirstAvailable {
			setCount(&request.FirstAvailable[j].AllocationMode, &request.FirstAvailable[j].Count)
		}
	}
	return claim
}

func setCount(mode *resourceapi.DeviceAllocationMode, count *int64) {
	if *mode == "" {
		*mode = resourceapi.DeviceAllocationModeExactCount
	}
	if *mode == resourceapi.DeviceAllocationModeExactCount && *count == 0 {
		*count = 1
	}
}
