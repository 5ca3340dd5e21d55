package prepare

import (
	"fmt"
	"math/rand/v2"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"github.com/mica-gpu/mica/pkg/gpu"
	"github.com/mica-gpu/mica/pkg/slice"
	"github.com/mica-gpu/mica/test/admission"
	"github.com/mica-gpu/mica/test/fixture"
)

// TestTheChartsPolicyRefusesWhatNoNodeAccepts has the scheduler's allocator place random claims on a node without
// MPS. What the chart's policy refuses, the node must refuse; and where the policy knows all classes and there are no
// alternatives, also the reverse. What it warns of must change nothing.
func TestTheChartsPolicyRefusesWhatNoNodeAccepts(t *testing.T) {
	chart, err := os.ReadFile("../../../deployments/helm/testdata/defaults.golden.yaml")
	must(t, err)
	denies, warns := admission.Find(t, string(chart), "deviceconfigfit-"), admission.Find(t, string(chart), "deviceconfiguse-")
	c := newConfigCluster(t, string(chart))
	placed, refused, warned := 0, 0, 0
	for seed := range uint64(600) {
		c.Rand = rand.New(rand.NewPCG(seed, 17))
		claim := c.claim()
		pool, allocated := c.allocate(t, claim)
		if !allocated {
			continue
		}
		placed++
		assignments, refusal := accept(claim, pool)
		_, messages := denies.Review(t, admission.Review{Kind: "ResourceClaim", Object: claim})
		switch {
		case len(messages) > 0 && refusal == nil:
			t.Errorf("seed %d: the policy refuses what the node accepts: %q\n%s", seed, messages, asText(t, claim))
		case len(messages) == 0 && refusal != nil && c.decidable(claim):
			t.Errorf("seed %d: the policy accepts what the node refuses: %v\n%s", seed, refusal, asText(t, claim))
		case refusal != nil:
			refused++
			continue
		}
		if _, messages := warns.Review(t, admission.Review{Kind: "ResourceClaim", Object: claim}); len(messages) > 0 && len(claim.Spec.Devices.Config) == 1 {
			warned++
			claim.Status.Allocation.Devices.Config = nil
			if without, _ := accept(claim, pool); !reflect.DeepEqual(without, assignments) {
				t.Errorf("seed %d: the policy warns of a configuration that counts: %q\n%s", seed, messages, asText(t, claim))
			}
		}
	}
	t.Logf("of %d placed claims nodes refuse %d and have %d warnings", placed, refused, warned)
	if placed < 200 || refused < 40 || warned < 5 {
		t.Error("that is too few to tell")
	}
}

// accept is what a node without MPS makes of a claim, before it changes anything.
func accept(claim *resourceapi.ResourceClaim, pool Pool) ([]Assignment, error) {
	assignments, err := assign(claim, pool)
	if err == nil && slices.ContainsFunc(assignments, Assignment.served) {
		err = errNoSupervisor
	}
	return assignments, err
}

func asText(t *testing.T, claim *resourceapi.ResourceClaim) string {
	t.Helper()
	text, err := yaml.Marshal(claim)
	must(t, err)
	return string(text)
}

// configCluster has one node, and the chart's classes beside one that the chart does not know.
type configCluster struct {
	*rand.Rand
	node    gpu.Node
	classes classesByName
	names   []string
	cache   *cel.Cache
}

const classOfATeam = "team.example.com"

func newConfigCluster(t *testing.T, chart string) *configCluster {
	t.Helper()
	c := &configCluster{node: newMIGRigOf(t, 4).discover(t), classes: classesByName{}, cache: cel.NewCache(10, cel.Features{EnableConsumableCapacity: true})}
	for document := range strings.SplitSeq(chart, "\n---\n") {
		var class resourceapi.DeviceClass
		if err := yaml.Unmarshal([]byte(document), &class); err == nil && class.Kind == "DeviceClass" {
			c.classes[class.Name] = &class
		}
	}
	team := c.classes[fixture.Driver].DeepCopy()
	team.Name = classOfATeam
	c.classes[team.Name] = team
	c.names = c.classes.names()
	return c
}

func (r *migRig) discover(t *testing.T) gpu.Node {
	t.Helper()
	node, unreadable, err := r.library.Discover()
	if err != nil || len(unreadable) > 0 {
		t.Fatal(err, unreadable)
	}
	return node
}

type classesByName map[string]*resourceapi.DeviceClass

func (c classesByName) names() (names []string) {
	for name := range c {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

func (c classesByName) List() (all []*resourceapi.DeviceClass, err error) {
	for _, name := range c.names() {
		all = append(all, c[name])
	}
	return all, nil
}

func (c classesByName) Get(name string) (*resourceapi.DeviceClass, error) {
	if class, found := c[name]; found {
		return class, nil
	}
	return nil, fmt.Errorf("there is no class %q", name)
}

func (c *configCluster) odds(n, of int) bool { return c.IntN(of) < n }

func (c *configCluster) class() string { return c.names[c.IntN(len(c.names))] }

func (c *configCluster) claim() *resourceapi.ResourceClaim {
	claim := fixture.Claim("c")
	claim.Status.Allocation = nil
	var references []string
	for i := range 1 + c.IntN(3) {
		request := resourceapi.DeviceRequest{Name: fmt.Sprint("r", i)}
		references = append(references, request.Name)
		if c.odds(2, 3) {
			request.Exactly = &resourceapi.ExactDeviceRequest{DeviceClassName: c.class(), AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: 1}
			if c.odds(1, 8) {
				request.Exactly.AdminAccess = ptr.To(true)
			}
		} else {
			for j := range 1 + c.IntN(2) {
				alternative := resourceapi.DeviceSubRequest{Name: fmt.Sprint("a", j), DeviceClassName: c.class(), AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: 1}
				request.FirstAvailable = append(request.FirstAvailable, alternative)
				references = append(references, request.Name+"/"+alternative.Name)
			}
		}
		claim.Spec.Devices.Requests = append(claim.Spec.Devices.Requests, request)
	}
	for range 1 + c.IntN(3) {
		claim.Spec.Devices.Config = append(claim.Spec.Devices.Config, c.config(references))
	}
	return claim
}

func (c *configCluster) config(references []string) resourceapi.DeviceClaimConfiguration {
	kind := []string{"GpuConfig", "GpuConfig", "MigDeviceConfig", "VfioDeviceConfig"}[c.IntN(4)]
	sharing := []string{"", "", `,"sharing":null`, `,"sharing":{"strategy":"TimeSlicing"}`, `,"sharing":{"strategy":"MPS"}`}[c.IntN(5)]
	if kind == "VfioDeviceConfig" {
		sharing = ""
	}
	config := resourceapi.DeviceClaimConfiguration{DeviceConfiguration: configured(object(kind, sharing)).DeviceConfiguration}
	if c.odds(1, 2) {
		for _, reference := range references {
			if c.odds(1, 2) {
				config.Requests = append(config.Requests, reference)
			}
		}
	}
	return config
}

// decidable reports whether a policy can know the devices of each request.
func (c *configCluster) decidable(claim *resourceapi.ResourceClaim) bool {
	return !slices.ContainsFunc(claim.Spec.Devices.Requests, func(r resourceapi.DeviceRequest) bool {
		return r.Exactly == nil || r.Exactly.DeviceClassName == classOfATeam
	})
}

// allocate places the claim on the node, which offers some shapes of its GPUs and no MPS.
func (c *configCluster) allocate(t *testing.T, claim *resourceapi.ResourceClaim) (Pool, bool) {
	t.Helper()
	policy := gpu.Policy{Whole: c.odds(3, 4), MIG: c.odds(3, 4), Profiles: []string{"1g.10gb"}, SharedProfiles: map[string]gpu.Sharing{}}
	if c.odds(3, 4) {
		policy.TimeSlicing = &gpu.TimeSlicing{Replicas: 4, Interval: gpu.DefaultInterval}
		policy.SharedProfiles["1g.10gb"] = *policy.TimeSlicing
	}
	shapes := gpu.Shapes(c.node.GPUs, func(gpu.GPU) gpu.Policy { return policy })
	published := slice.Pool(c.node, shapes, nil)
	var resourceSlices []*resourceapi.ResourceSlice
	for i, s := range published.Slices {
		resourceSlices = append(resourceSlices, &resourceapi.ResourceSlice{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%03d", i)},
			Spec: resourceapi.ResourceSliceSpec{
				Driver: fixture.Driver, NodeName: ptr.To(fixture.NodeName), Devices: s.Devices, SharedCounters: s.SharedCounters,
				Pool: resourceapi.ResourcePool{Name: fixture.NodeName, Generation: 1, ResourceSliceCount: int64(len(published.Slices))},
			},
		})
	}
	features := structured.Features{AdminAccess: true, ConsumableCapacity: true, DeviceTaints: true, PartitionableDevices: true, PrioritizedList: true}
	state := structured.AllocatedState{
		AllocatedDevices: sets.New[structured.DeviceID](), AllocatedSharedDeviceIDs: sets.New[structured.SharedDeviceID](),
		AggregatedCapacity: structured.NewConsumedCapacityCollection(),
	}
	allocator, err := structured.NewAllocator(t.Context(), features, state, c.classes, resourceSlices, c.cache)
	must(t, err)
	results, err := allocator.Allocate(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fixture.NodeName}}, []*resourceapi.ResourceClaim{claim})
	must(t, err)
	if len(results) == 0 {
		return Pool{}, false
	}
	claim.Status.Allocation = &results[0]
	return NewPool(fixture.Driver, fixture.NodeName, shapes), true
}
