package kueue

import (
	"context"
	"fmt"
	"os"
	"reflect"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/controller-runtime/pkg/client"
	configapi "sigs.k8s.io/kueue/apis/config/v1beta2"
	kueueapi "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/dra"
	"sigs.k8s.io/yaml"

	"github.com/mica-gpu/mica/pkg/gpu"
	"github.com/mica-gpu/mica/pkg/slice"
	"github.com/mica-gpu/mica/test/fixture"
)

func TestKueueCharges(t *testing.T) {
	shared := gpu.Policy{Whole: true, MIG: true, TimeSlicing: &gpu.TimeSlicing{Replicas: 4}, MPS: &gpu.MPS{Clients: 4}}
	h100 := published(t, "p5.48xlarge", shared)
	a10 := published(t, "g5.12xlarge", gpu.Policy{Whole: true})
	profile := func(name string) string {
		return fmt.Sprintf("device.attributes['gpu.nvidia.com'].profile == '%s'", name)
	}
	for name, tc := range map[string]struct {
		mappings  string
		nodes     []resourceapi.ResourceSlice
		class     string
		count     int64
		selector  string
		want      corev1.ResourceList
		wantError string
	}{
		"a whole GPU":               {"memory", h100, "gpu.nvidia.com", 1, "", charge("gpu-memory", "81559Mi"), ""},
		"two":                       {"memory", h100, "gpu.nvidia.com", 2, "", charge("gpu-memory", "163118Mi"), ""},
		"of a product":              {"memory", h100, "gpu.nvidia.com", 1, "device.attributes['gpu.nvidia.com'].productName == 'NVIDIA H100 80GB HBM3'", charge("gpu-memory", "81559Mi"), ""},
		"1g.10gb":                   {"memory", h100, "mig.nvidia.com", 1, profile("1g.10gb"), charge("gpu-memory", "9984Mi"), ""},
		"1g.10gb+me":                {"memory", h100, "mig.nvidia.com", 1, profile("1g.10gb+me"), charge("gpu-memory", "9984Mi"), ""},
		"1g.20gb":                   {"memory", h100, "mig.nvidia.com", 1, profile("1g.20gb"), charge("gpu-memory", "20096Mi"), ""},
		"2g.20gb":                   {"memory", h100, "mig.nvidia.com", 1, profile("2g.20gb"), charge("gpu-memory", "20096Mi"), ""},
		"3g.40gb":                   {"memory", h100, "mig.nvidia.com", 1, profile("3g.40gb"), charge("gpu-memory", "40448Mi"), ""},
		"4g.40gb":                   {"memory", h100, "mig.nvidia.com", 1, profile("4g.40gb"), charge("gpu-memory", "40448Mi"), ""},
		"7g.80gb":                   {"memory", h100, "mig.nvidia.com", 1, profile("7g.80gb"), charge("gpu-memory", "81152Mi"), ""},
		"any partition":             {"memory", h100, "mig.nvidia.com", 1, "", charge("gpu-memory", "81152Mi"), ""},
		"GPUs without counters":     {"memory", a10, "gpu.nvidia.com", 1, "", nil, `no consumesCounters entry for counter "memory"`},
		"memory without a node":     {"memory", nil, "mig.nvidia.com", 1, profile("1g.10gb"), nil, "0 device(s) match"},
		"a class of a product":      {"count", h100, "h100.gpu.nvidia.com", 2, "", charge("h100", "2"), ""},
		"a class of a profile":      {"count", h100, "1g.10gb.mig.nvidia.com", 1, "", charge("1g.10gb", "1"), ""},
		"such classes without node": {"count", nil, "h100.gpu.nvidia.com", 2, "", charge("h100", "2"), ""},
		"a share":                   {"count", h100, "timeslice.nvidia.com", 1, "", charge("gpu-shares", "1"), ""},
		"a selector without a node": {"count", nil, "h100.gpu.nvidia.com", 1, "device.attributes['gpu.nvidia.com'].architecture == 'Hopper'", nil, "0 device(s) match"},
	} {
		t.Run(name, func(t *testing.T) {
			got, errs := charged(t, mapper(t, tc.mappings), tc.nodes, tc.class, tc.count, tc.selector)
			switch {
			case tc.wantError != "":
				if !strings.Contains(fmt.Sprint(errs), tc.wantError) {
					t.Errorf("got %v and %v, want an error with %q", got, errs, tc.wantError)
				}
			case len(errs) > 0:
				t.Errorf("Kueue refuses: %v", errs)
			case !reflect.DeepEqual(values(got), values(tc.want)):
				t.Errorf("Kueue charges %v, want %v", values(got), values(tc.want))
			}
		})
	}
}

func charge(name corev1.ResourceName, quantity string) corev1.ResourceList {
	return corev1.ResourceList{name: resource.MustParse(quantity)}
}

func values(list corev1.ResourceList) map[corev1.ResourceName]int64 {
	values := map[corev1.ResourceName]int64{}
	for name, quantity := range list {
		values[name] = quantity.Value()
	}
	return values
}

// charged is what Kueue charges a job of one pod with one claim.
func charged(t *testing.T, m *dra.ResourceMapper, slices []resourceapi.ResourceSlice, class string, count int64, selector string) (corev1.ResourceList, field.ErrorList) {
	t.Helper()
	request := &resourceapi.ExactDeviceRequest{DeviceClassName: class, AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: count}
	if selector != "" {
		request.Selectors = []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: selector}}}
	}
	cluster := &cluster{classes: classes(t), slices: slices}
	cluster.template.Spec.Spec.Devices.Requests = []resourceapi.DeviceRequest{{Name: "gpu", Exactly: request}}
	workload := &kueueapi.Workload{}
	name := "template"
	workload.Spec.PodSets = []kueueapi.PodSet{{Name: "main", Count: 1}}
	workload.Spec.PodSets[0].Template.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimTemplateName: &name}}

	cache := dra.NewResourceSliceCache(cluster)
	all := corev1.ResourceList{}
	byCount, errs := dra.GetResourceRequestsForResourceClaimTemplates(t.Context(), cluster, cache, m, workload)
	if len(errs) > 0 {
		return nil, errs
	}
	byCounter, errs := dra.GetCounterResourcesForWorkload(t.Context(), cluster, cache, m, workload)
	for _, charges := range []map[kueueapi.PodSetReference]corev1.ResourceList{byCount, byCounter} {
		for name, quantity := range charges["main"] {
			all[name] = quantity
		}
	}
	return all, errs
}

// cluster is all that Kueue reads. Other calls of the client are not implemented, and panic.
type cluster struct {
	client.Client
	classes  map[string]resourceapi.DeviceClass
	template resourceapi.ResourceClaimTemplate
	slices   []resourceapi.ResourceSlice
}

// Get has DeviceClasses and the one template.
func (c *cluster) Get(_ context.Context, key client.ObjectKey, into client.Object, _ ...client.GetOption) error {
	switch into := into.(type) {
	case *resourceapi.ResourceClaimTemplate:
		*into = c.template
	case *resourceapi.DeviceClass:
		class, known := c.classes[key.Name]
		if !known {
			return fmt.Errorf("there is no DeviceClass %q", key.Name)
		}
		*into = class
	default:
		return fmt.Errorf("unexpected get of a %T", into)
	}
	return nil
}

// List has the slices, all of one driver.
func (c *cluster) List(_ context.Context, into client.ObjectList, _ ...client.ListOption) error {
	list, is := into.(*resourceapi.ResourceSliceList)
	if !is {
		return fmt.Errorf("unexpected list of %T", into)
	}
	list.Items = c.slices
	return nil
}

// published are the slices of one node.
func published(t *testing.T, machine string, policy gpu.Policy) []resourceapi.ResourceSlice {
	t.Helper()
	node := fixture.Node(t, machine)
	pool := slice.Pool(node, gpu.Shapes(node.GPUs, func(gpu.GPU) gpu.Policy { return policy }), nil)
	var slices []resourceapi.ResourceSlice
	for i, s := range pool.Slices {
		slices = append(slices, resourceapi.ResourceSlice{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint(machine, "-", i)},
			Spec: resourceapi.ResourceSliceSpec{
				Driver: fixture.Driver, NodeName: &machine,
				Pool:    resourceapi.ResourcePool{Name: machine, Generation: 1, ResourceSliceCount: int64(len(pool.Slices))},
				Devices: s.Devices, SharedCounters: s.SharedCounters,
			},
		})
	}
	return slices
}

// mapper reads the mappings from the document: the example that has the word in it.
func mapper(t *testing.T, example string) *dra.ResourceMapper {
	t.Helper()
	for _, block := range strings.Split(read(t, "../../docs/operate/kueue.md"), "```")[1:] {
		text, is := strings.CutPrefix(block, "yaml\n")
		if !is || !strings.Contains(text, "kind: Configuration") || !strings.Contains(text, "# by "+example) {
			continue
		}
		var configuration configapi.Configuration
		if err := yaml.UnmarshalStrict([]byte(text), &configuration); err != nil {
			t.Fatalf("docs/operate/kueue.md: Kueue cannot read the mappings by %s: %v", example, err)
		}
		m := dra.NewResourceMapper()
		if err := m.PopulateFromConfiguration(configuration.Resources.DeviceClassMappings); err != nil {
			t.Fatal(err)
		}
		return m
	}
	t.Fatalf("docs/operate/kueue.md has no mappings by %s", example)
	return nil
}

// classes are the chart's, as its golden file with another driver's name has them.
func classes(t *testing.T) map[string]resourceapi.DeviceClass {
	t.Helper()
	classes := map[string]resourceapi.DeviceClass{}
	rendered := strings.ReplaceAll(read(t, "../../deployments/helm/testdata/everything.golden.yaml"), "example.com", "nvidia.com")
	for _, document := range strings.Split(rendered, "\n---\n") {
		if !strings.Contains(document, "\nkind: DeviceClass\n") {
			continue
		}
		var class resourceapi.DeviceClass
		if err := yaml.UnmarshalStrict([]byte(document), &class); err != nil {
			t.Fatal(err)
		}
		classes[class.Name] = class
	}
	return classes
}

func read(t *testing.T, file string) string {
	t.Helper()
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}
