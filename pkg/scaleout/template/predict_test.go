package template

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/dynamic-resource-allocation/deviceattribute"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"github.com/mica-gpu/mica/api/v1alpha1"
	"github.com/mica-gpu/mica/pkg/catalog"
	"github.com/mica-gpu/mica/pkg/gpu"
	"github.com/mica-gpu/mica/pkg/policy"
	"github.com/mica-gpu/mica/pkg/slice"
	"github.com/mica-gpu/mica/test/fixture"
	"github.com/mica-gpu/mica/test/nvmlsim/nodes"
)

// The driver's name in the chart's golden file, so that its policy's expressions match.
const driver = "gpu.example.com"

// What the simulator has and no capture of EC2 shows: the NUMA node of machines with one
// socket, whose firmware may tell none, and those of p6-b200.48xlarge.
var numaNotCaptured = []string{"g4dn.xlarge", "g5.12xlarge", "g6.xlarge", "p6-b200.48xlarge"}

// Simulated machines that a GPUNodeGroup cannot describe, with the reason.
var notPredictable = map[string]string{
	"mixed":      "its GPUs are of three kinds, and nodes of EC2 have one",
	"mig-static": "an administrator has partitioned its GPUs by hand",
}

// TestPredictedSlicesAreThoseThatArePublished is the proof of the catalogue and of this
// package: what a node's plugin publishes, by the same steps on the simulated machine, is
// what was predicted, but for UUIDs, names and the addressing mode.
func TestPredictedSlicesAreThoseThatArePublished(t *testing.T) {
	for _, machine := range nodes.Names() {
		if reason, ok := notPredictable[machine]; ok {
			t.Logf("%s cannot be predicted: %s", machine, reason)
			continue
		}
		for name, policies := range policiesOfTest(t) {
			t.Run(machine+"/"+name, func(t *testing.T) {
				predicted, err := Predict(driver, groupOf(t, machine), "", policies, StartupTaints{})
				if err != nil {
					t.Fatal(err)
				}
				if got, want := predicted.Invented(), notKnownOf(machine); !slices.Equal(got, want) {
					t.Errorf("invented are %q, want %q", got, want)
				}
				got, want := anonymous(predicted.Slices, nil), anonymous(published(t, machine, policies), notKnownOf(machine))
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("predicted slices differ from published ones (-published +predicted):\n%s", diff)
				}
			})
		}
	}
}

func notKnownOf(machine string) []resourceapi.QualifiedName {
	names := []resourceapi.QualifiedName{gpu.AttributeAddressingMode, gpu.AttributeParentUUID, gpu.AttributeUUID}
	switch {
	case slices.Contains(numaNotCaptured, machine):
		names = append(names, deviceattribute.StandardDeviceAttributeNUMANode)
	case machine == "pascal": // described by its board alone
		names = append(names, deviceattribute.StandardDeviceAttributeNUMANode, deviceattribute.StandardDeviceAttributePCIBusID, deviceattribute.StandardDeviceAttributePCIeRoot)
	}
	slices.Sort(names)
	return names
}

// groupOf describes a simulated machine as a user would.
func groupOf(t testing.TB, machine string) *v1alpha1.GPUNodeGroup {
	t.Helper()
	file := fixture.File(t, machine)
	group := &v1alpha1.GPUNodeGroup{ObjectMeta: metav1.ObjectMeta{Name: "group"}}
	group.Spec.Provider.EKS = &v1alpha1.EKSNodegroup{Nodegroup: "gpus"}
	group.Spec.InstanceType = machine
	group.Spec.Template.DriverVersion, group.Spec.Template.CUDADriverVersion = file.DriverVersion, file.CUDADriverVersion
	if _, err := catalog.InstanceByType(machine); err != nil {
		group.Spec.InstanceType = ""
		group.Spec.Template.GPUs = &v1alpha1.GPUTemplate{Count: int32(len(file.GPUs)), Board: file.GPUs[0].Board}
		group.Spec.Template.Allocatable = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("7"), corev1.ResourceMemory: resource.MustParse("30Gi")}
	}
	return group
}

// policiesOfTest are lists of policies: none, the chart's with all of its shares, and one
// that shares MIG profiles.
func policiesOfTest(t testing.TB) map[string][]*v1alpha1.GPUPolicy {
	t.Helper()
	rendered, err := os.ReadFile("../../../deployments/helm/testdata/everything.golden.yaml")
	if err != nil {
		t.Fatal(err)
	}
	_, document, found := strings.Cut(string(rendered), "# Source: mica/templates/gpupolicy.yaml\n")
	if !found {
		t.Fatal("the chart has no policy")
	}
	document, _, _ = strings.Cut(document, "\n---\n")
	var chart v1alpha1.GPUPolicy
	if err := yaml.UnmarshalStrict([]byte(document), &chart); err != nil {
		t.Fatal(err)
	}
	if chart.Spec.Shapes.TimeSlice == nil || chart.Spec.Shapes.MPS == nil {
		t.Fatal("the chart's policy has no shares")
	}
	shared := &v1alpha1.GPUPolicy{ObjectMeta: metav1.ObjectMeta{Name: "shared", Generation: 2}}
	shared.Spec.Shapes.Whole = &v1alpha1.Whole{}
	shared.Spec.Shapes.MIG = &v1alpha1.MIG{Profiles: []v1alpha1.ProfileName{"3g.40gb", "3g.71gb", "3g.90gb"}}
	for _, profile := range []v1alpha1.ProfileName{"1g.5gb", "1g.10gb", "1g.18gb", "1g.23gb"} {
		shared.Spec.Shapes.MIG.Shared = append(shared.Spec.Shapes.MIG.Shared,
			v1alpha1.SharedProfile{Profile: profile, MPS: &v1alpha1.MPS{Clients: 2}})
	}
	return map[string][]*v1alpha1.GPUPolicy{"no policy": nil, "chart": {&chart}, "shared MIG": {shared}}
}

// published is what the plugin of a simulated machine publishes. A policy that cannot be
// done there changes nothing.
func published(t testing.TB, machine string, policies []*v1alpha1.GPUPolicy) []*resourceapi.ResourceSlice {
	t.Helper()
	node := fixture.Node(t, machine)
	offered := make(map[string]gpu.Policy, len(node.GPUs))
	for _, g := range node.GPUs {
		offered[g.UUID] = gpu.ByDefault(g)
	}
	if selected := policy.Select(policies, nil); selected != nil {
		compiled, err := policy.Compile(driver, selected)
		if err != nil {
			t.Fatal(err)
		}
		if each, err := compiled.For(t.Context(), node); err == nil {
			for i, g := range node.GPUs {
				offered[g.UUID] = each[i]
			}
		}
	}
	pool := slice.Pool(node, gpu.Shapes(node.GPUs, func(g gpu.GPU) gpu.Policy { return offered[g.UUID] }), nil)
	return slicesOf("live", pool.Slices)
}

var gpuNumber = regexp.MustCompile(`^gpu-\d+`)

// anonymous are copies without names, UUIDs, and what else is named.
func anonymous(all []*resourceapi.ResourceSlice, without []resourceapi.QualifiedName) []resourceapi.ResourceSliceSpec {
	ignored := append([]resourceapi.QualifiedName{gpu.AttributeUUID, gpu.AttributeParentUUID, gpu.AttributeMinor}, without...)
	unnumbered := func(name string) string { return gpuNumber.ReplaceAllString(name, "gpu-N") }
	specs := make([]resourceapi.ResourceSliceSpec, len(all))
	for i, s := range all {
		spec := s.Spec.DeepCopy()
		spec.NodeName, spec.Pool.Name = nil, ""
		for j := range spec.Devices {
			d := &spec.Devices[j]
			d.Name = unnumbered(d.Name)
			for _, name := range ignored {
				delete(d.Attributes, name)
			}
			for k := range d.ConsumesCounters {
				d.ConsumesCounters[k].CounterSet = unnumbered(d.ConsumesCounters[k].CounterSet)
			}
		}
		for j := range spec.SharedCounters {
			spec.SharedCounters[j].Name = unnumbered(spec.SharedCounters[j].Name)
		}
		specs[i] = *spec
	}
	return specs
}

// TestPartitionsOfAPredictedGPUHaveOneParent is what claims with matchAttribute parentUUID
// rely on.
func TestPartitionsOfAPredictedGPUHaveOneParent(t *testing.T) {
	predicted, err := Predict(driver, groupOf(t, "p5.48xlarge"), "", nil, StartupTaints{})
	if err != nil {
		t.Fatal(err)
	}
	parents, names := map[string]int{}, map[string]bool{}
	for _, s := range predicted.Slices {
		for _, d := range s.Spec.Devices {
			if names[d.Name] {
				t.Errorf("two devices are named %s", d.Name)
			}
			names[d.Name] = true
			if parent := d.Attributes[gpu.AttributeParentUUID].StringValue; parent != nil {
				parents[*parent]++
			} else if d.Attributes[gpu.AttributeUUID].StringValue == nil {
				t.Errorf("device %s has no UUID", d.Name)
			}
		}
	}
	if len(parents) != 8 || parents[catalog.InventedUUID(0)] != 25 {
		t.Errorf("partitions have parents %v, want 8 with 25 each", parents)
	}
}

func TestLabelsAndPolicyOfAPrediction(t *testing.T) {
	group := groupOf(t, "g5.12xlarge")
	group.Spec.CapacityType = "SPOT"
	group.Spec.Template.Labels = map[string]string{"team": "a"}
	group.Spec.Template.Taints = []corev1.Taint{
		{Key: "gpu", Value: "yes", Effect: corev1.TaintEffectNoSchedule},
		{Key: "node.cilium.io/agent-not-ready", Value: "true", Effect: corev1.TaintEffectNoExecute},
	}
	everywhere := policyFor("everywhere", nil)
	spot := policyFor("spot", map[string]string{"eks.amazonaws.com/capacityType": "SPOT", "team": "a"})
	spot.Spec.Priority = 1
	predicted, err := Predict(driver, group, "p5.48xlarge", []*v1alpha1.GPUPolicy{everywhere, spot}, StartupTaints{})
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{
		"kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64", "kubernetes.io/hostname": "group-new",
		"node.kubernetes.io/instance-type": "g5.12xlarge", "eks.amazonaws.com/nodegroup": "gpus",
		"eks.amazonaws.com/capacityType": "SPOT", "team": "a",
	}
	if diff := cmp.Diff(want, predicted.Node.Labels); diff != "" {
		t.Errorf("labels (-want +got):\n%s", diff)
	}
	if predicted.Policy != "spot/3" || predicted.Source != v1alpha1.SourceCatalogue {
		t.Errorf("policy is %q from %s, want spot/3", predicted.Policy, predicted.Source)
	}
	if len(predicted.Node.Spec.Taints) != 1 || predicted.Node.Spec.Taints[0].Key != "gpu" {
		t.Errorf("taints are %v", predicted.Node.Spec.Taints)
	}
}

func policyFor(name string, selected map[string]string) *v1alpha1.GPUPolicy {
	p := &v1alpha1.GPUPolicy{ObjectMeta: metav1.ObjectMeta{Name: name, Generation: 3}}
	p.Spec.NodeSelector.MatchLabels = selected
	p.Spec.Shapes.Whole = &v1alpha1.Whole{}
	return p
}

// A node refuses what its GPUs cannot do, and offers what it does without a policy.
func TestARefusedPolicyLeavesTheDefault(t *testing.T) {
	refused := policyFor("refused", nil)
	refused.Spec.Shapes = v1alpha1.Shapes{MPS: &v1alpha1.MPS{Clients: 4}}
	broken := policyFor("broken", nil)
	broken.Spec.Overrides = []v1alpha1.Override{{When: "device.", Shapes: refused.Spec.Shapes}}
	without, err := Predict(driver, groupOf(t, "pascal"), "", nil, StartupTaints{})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range []*v1alpha1.GPUPolicy{refused, broken} {
		predicted, err := Predict(driver, groupOf(t, "pascal"), "", []*v1alpha1.GPUPolicy{p}, StartupTaints{})
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(without.Slices, predicted.Slices); diff != "" || predicted.Policy != p.Name+"/3" {
			t.Errorf("under policy %s (-none +got), named %s:\n%s", p.Name, predicted.Policy, diff)
		}
	}
}

func TestAllocatableOfAPrediction(t *testing.T) {
	for _, test := range []struct {
		name, instanceType string
		given              corev1.ResourceList
		cpu, memory, pods  string
	}{
		// 16384 - 1228 - 255 - 11*29 - 100 MiB; Karpenter's pages say 3920m for the CPU.
		{name: "small", instanceType: "g4dn.xlarge", cpu: "3920m", memory: "14482Mi", pods: "29"},
		// 2097152 - 157286 - 255 - 11*100 - 100 MiB.
		{name: "large", instanceType: "p5.48xlarge", cpu: "191450m", memory: "1938411Mi", pods: "100"},
		{name: "pods unknown", instanceType: "g7e.2xlarge", cpu: "7910m", memory: "59056Mi", pods: "110"},
		{
			name: "given", instanceType: "g4dn.xlarge", cpu: "2", memory: "13723Mi", pods: "98",
			given: corev1.ResourceList{"cpu": resource.MustParse("2"), "pods": resource.MustParse("98"), "ephemeral-storage": resource.MustParse("90Gi")},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			group := &v1alpha1.GPUNodeGroup{ObjectMeta: metav1.ObjectMeta{Name: "group"}}
			group.Spec.Template.Allocatable = test.given
			predicted, err := Predict(driver, group, test.instanceType, nil, StartupTaints{})
			if err != nil {
				t.Fatal(err)
			}
			for name, want := range map[corev1.ResourceName]string{"cpu": test.cpu, "memory": test.memory, "pods": test.pods} {
				if got := predicted.Node.Status.Allocatable[name]; got.Cmp(resource.MustParse(want)) != 0 {
					t.Errorf("%s is %s, want %s", name, got.String(), want)
				}
			}
			if got, want := len(predicted.Node.Status.Allocatable), max(3, len(test.given)+1); got != want {
				t.Errorf("it has %d resources, want %d: %v", got, want, predicted.Node.Status.Allocatable)
			}
		})
	}
}

func TestWhatIsNotKnownIsNotPredicted(t *testing.T) {
	memory := resource.MustParse("32Gi")
	enough := corev1.ResourceList{"cpu": resource.MustParse("7"), "memory": memory}
	for name, test := range map[string]struct {
		instanceType string
		template     v1alpha1.NodeTemplate
		says         []string
	}{
		"nothing":             {says: []string{"group group", "spec.instanceType", "spec.template.gpus"}},
		"memory not captured": {instanceType: "g7.2xlarge", says: []string{"g7.2xlarge", "RTX PRO 4500", "never captured", "spec.template.gpus"}},
		"AMD":                 {instanceType: "g4ad.xlarge", says: []string{"no NVIDIA GPU", "Radeon", "another instance type"}},
		"AMD, whatever is said": {
			instanceType: "g4ad.xlarge", template: v1alpha1.NodeTemplate{GPUs: &v1alpha1.GPUTemplate{Count: 1, Board: "t4-16gb"}, Allocatable: enough},
			says: []string{"no NVIDIA GPU"},
		},
		"no such size": {instanceType: "p5.2xlarge", says: []string{"unknown instance type p5.2xlarge", "p5.48xlarge", "spec.instanceType"}},
		"no such type": {instanceType: "x9.large", says: []string{"unknown instance type x9.large", "spec.template.gpus"}},
		"no such board": {
			instanceType: "x9.large", template: v1alpha1.NodeTemplate{GPUs: &v1alpha1.GPUTemplate{Count: 1, Board: "b9"}, Allocatable: enough},
			says: []string{`no board "b9"`, "productName"},
		},
		"no memory of the node": {
			instanceType: "g7.2xlarge", template: v1alpha1.NodeTemplate{GPUs: &v1alpha1.GPUTemplate{Count: 1, ProductName: "X", Memory: &memory}},
			says: []string{"cpu", "spec.template.allocatable"},
		},
		"no memory of the GPU": {
			instanceType: "x9.large", template: v1alpha1.NodeTemplate{GPUs: &v1alpha1.GPUTemplate{Count: 1, ProductName: "X"}, Allocatable: enough},
			says: []string{"spec.template.gpus", "memory"},
		},
		"no GPU": {
			instanceType: "x9.large", template: v1alpha1.NodeTemplate{GPUs: &v1alpha1.GPUTemplate{Board: "t4-16gb"}, Allocatable: enough},
			says: []string{"count is 0"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			group := &v1alpha1.GPUNodeGroup{ObjectMeta: metav1.ObjectMeta{Name: "group"}}
			group.Spec.InstanceType, group.Spec.Template = test.instanceType, test.template
			_, err := Predict(driver, group, "", nil, StartupTaints{})
			fixture.Sentence(t, err, test.says...)
		})
	}
}

func TestDescribedGPUs(t *testing.T) {
	memory := resource.MustParse("32623Mi")
	group := &v1alpha1.GPUNodeGroup{ObjectMeta: metav1.ObjectMeta{Name: "group"}}
	group.Spec.InstanceType = "p3.8xlarge" // its vCPUs and memory are known
	group.Spec.Template.GPUs = &v1alpha1.GPUTemplate{Count: 4, ProductName: "Tesla V100-SXM2-16GB", Brand: "Tesla", Memory: &memory}
	predicted, err := Predict(driver, group, "", nil, StartupTaints{})
	if err != nil {
		t.Fatal(err)
	}
	want := []v1alpha1.DeviceSummary{{Type: "gpu", ProductName: "Tesla V100-SXM2-16GB", Memory: &memory, Count: 4}}
	if diff := cmp.Diff(want, predicted.Summary()); diff != "" {
		t.Errorf("devices (-want +got):\n%s", diff)
	}
	invented := []resourceapi.QualifiedName{
		gpu.AttributeAddressingMode, gpu.AttributeArchitecture, gpu.AttributeComputeCapability, gpu.AttributeCUDAVersion, gpu.AttributeDriverVersion, gpu.AttributeECCEnabled, gpu.AttributeNVLinkGroup,
		gpu.AttributeParentUUID, deviceattribute.StandardDeviceAttributeNUMANode, deviceattribute.StandardDeviceAttributePCIBusID, deviceattribute.StandardDeviceAttributePCIeRoot, gpu.AttributeUUID,
	}
	slices.Sort(invented)
	if diff := cmp.Diff(invented, predicted.Invented()); diff != "" {
		t.Errorf("invented (-want +got):\n%s", diff)
	}
	if got := predicted.Node.Status.Allocatable[corev1.ResourceCPU]; got.Cmp(resource.MustParse("31850m")) != 0 {
		t.Errorf("CPU is %s", got.String())
	}
}

// slicesOf are a pool of a node as it is published.
func slicesOf(node string, pool []resourceslice.Slice) []*resourceapi.ResourceSlice {
	var all []*resourceapi.ResourceSlice
	for i, s := range pool {
		all = append(all, &resourceapi.ResourceSlice{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%05x-%s-%s-abcde", i, driver, node)},
			Spec: resourceapi.ResourceSliceSpec{
				Driver: driver, NodeName: ptr.To(node),
				Pool:    resourceapi.ResourcePool{Name: node, Generation: 1, ResourceSliceCount: int64(len(pool))},
				Devices: s.Devices, SharedCounters: s.SharedCounters,
			},
		})
	}
	return all
}
