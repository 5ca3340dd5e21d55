package fleet

import (
	"fmt"
	"os"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"github.com/mica-gpu/mica/pkg/devices"
	"github.com/mica-gpu/mica/pkg/gpu"
	"github.com/mica-gpu/mica/pkg/slice"
	"github.com/mica-gpu/mica/test/fixture"
)

// published returns the slices of a p5.48xlarge with this number of GPUs, in every shape.
func published(t *testing.T, node string, gpus int, taints slice.Taints) []*resourceapi.ResourceSlice {
	t.Helper()
	facts := fixture.Node(t, "p5.48xlarge")
	policy := gpu.Policy{Whole: true, MIG: true, TimeSlicing: &gpu.TimeSlicing{Replicas: 4}, MPS: &gpu.MPS{Clients: 4}}
	return publishedAs(facts, node, gpus, taints, func(gpu.GPU) gpu.Policy { return policy })
}

func publishedAs(facts gpu.Node, node string, gpus int, taints slice.Taints, policy func(gpu.GPU) gpu.Policy) []*resourceapi.ResourceSlice {
	pool := slice.Pool(facts, gpu.Shapes(facts.GPUs[:gpus], policy), taints)
	var all []*resourceapi.ResourceSlice
	for i, s := range pool.Slices {
		all = append(all, &resourceapi.ResourceSlice{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%s-%02d", node, i)},
			Spec: resourceapi.ResourceSliceSpec{
				Driver: fixture.Driver, NodeName: &node, Devices: s.Devices, SharedCounters: s.SharedCounters,
				Pool: resourceapi.ResourcePool{Name: node, Generation: 1, ResourceSliceCount: int64(len(pool.Slices))},
			},
		})
	}
	return all
}

// claim returns the holdings of a claim in namespace research. If pods is set, a pod of its name uses it.
func claim(name, node string, pods bool, results ...resourceapi.DeviceRequestAllocationResult) []Holding {
	c := fixture.Claim(name, results...)
	c.Namespace = "research"
	for i := range results {
		results[i].Pool = node
	}
	if pods {
		c.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: name, UID: types.UID(name)}}
	}
	return HoldingsOf(c, fixture.Driver)
}

func share(device, id string, has map[resourceapi.QualifiedName]string) resourceapi.DeviceRequestAllocationResult {
	result := fixture.Result("gpu", device)
	result.ShareID = ptr.To(types.UID(id))
	result.ConsumedCapacity = map[resourceapi.QualifiedName]resource.Quantity{}
	for name, quantity := range has {
		result.ConsumedCapacity[name] = resource.MustParse(quantity)
	}
	return result
}

// An allocation may name a capacity with the driver's domain or without it.
func TestHoldingsOfEitherName(t *testing.T) {
	for _, name := range []resourceapi.QualifiedName{gpu.CapacityMemory, fixture.Driver + "/" + gpu.CapacityMemory} {
		held := claim("either", "n1", false, share("gpu-0-mps", "a", map[resourceapi.QualifiedName]string{name: "2Gi"}))
		if len(held) != 1 || held[0].MemoryBytes != 2<<30 {
			t.Errorf("%s: got %+v", name, held)
		}
	}
}

// everything is a node with a GPU in each kind of use, one that is sick, and one that is cordoned.
func everything(t *testing.T) Fleet {
	taints := slice.Taints{}
	sick := resourceapi.DeviceTaint{Key: "gpu.nvidia.com/xid", Value: "79", Effect: resourceapi.DeviceTaintEffectNoSchedule, TimeAdded: &metav1.Time{Time: metav1.Date(2026, 10, 1, 12, 0, 0, 0, metav1.Now().UTC().Location()).Time}}
	for _, s := range published(t, "n1", 7, nil) {
		for _, d := range s.Spec.Devices {
			if boardName(d.Name) == "gpu-5" {
				taints.Add(d.Name, sick)
			}
		}
	}
	taints.Add("gpu-1-mig-1g10gb-19-0", slice.Withdrawn())
	s := Fleet{Slices: published(t, "n1", 7, taints)}
	for _, of := range [][]Holding{
		claim("train", "n1", true, fixture.Result("gpu", "gpu-0")),
		claim("watcher", "n1", true, fixture.AdminResult("look", "gpu-0")),
		claim("small", "n1", true, fixture.Result("part", "gpu-1-mig-1g10gb-19-0")),
		claim("pair", "n1", true, fixture.Result("a", "gpu-1-mig-1g10gb-19-1"), fixture.Result("b", "gpu-1-mig-3g40gb-9-4")),
		claim("note-a", "n1", true, share("gpu-2-timeslice", "1", map[resourceapi.QualifiedName]string{"shares": "2", "memory": "39Gi"})),
		claim("note-b", "n1", false, share("gpu-2-timeslice", "2", map[resourceapi.QualifiedName]string{"shares": "1", "memory": "19.5Gi"})),
		claim("infer", "n1", true, share("gpu-3-mps", "3", map[resourceapi.QualifiedName]string{"cores": "40", "memory": "32Gi"})),
		claim("old", "n1", true, fixture.Result("gpu", "gpu-9")),
	} {
		s.Holdings = append(s.Holdings, of...)
	}
	s.Rules = []resourceapi.DeviceTaintRule{{
		ObjectMeta: metav1.ObjectMeta{Name: "cordon-n1-gpu-6"},
		Spec: resourceapi.DeviceTaintRuleSpec{
			DeviceSelector: &resourceapi.DeviceTaintSelector{Driver: ptr.To(fixture.Driver), Pool: ptr.To("n1"), Device: ptr.To("gpu-6")},
			Taint:          resourceapi.DeviceTaint{Key: "example.com/repair", Effect: resourceapi.DeviceTaintEffectNoExecute},
		},
	}}
	return s
}

// consumable is a node whose whole GPUs are for several claims: two for any number of claims, two by memory, one
// of four shares.
func consumable(t *testing.T) Fleet {
	f := Fleet{Slices: publishedAs(fixture.Node(t, "p5.48xlarge"), "n1", 5, nil, func(g gpu.GPU) gpu.Policy {
		by := []string{gpu.ByNothing, gpu.ByNothing, gpu.ByMemory, gpu.ByMemory, gpu.ByCount}[g.Minor]
		shares := gpu.ConsumableShares{By: by}
		if by == gpu.ByCount {
			shares.Count = 4
		}
		return gpu.Policy{Whole: true, Consumable: &shares, MPS: &gpu.MPS{Clients: 4}}
	})}
	for _, of := range [][]Holding{
		claim("any-a", "n1", true, share("gpu-0", "1", map[resourceapi.QualifiedName]string{"memory": "0"})),
		claim("any-b", "n1", true, share("gpu-0", "2", map[resourceapi.QualifiedName]string{"memory": "4Gi"})),
		claim("part", "n1", true, share("gpu-2", "3", map[resourceapi.QualifiedName]string{"memory": "4Gi"})),
		claim("all", "n1", true, share("gpu-3", "4", map[resourceapi.QualifiedName]string{"memory": "81559Mi"})),
		claim("one", "n1", true, share("gpu-4", "5", map[resourceapi.QualifiedName]string{"shares": "1", "memory": "0"})),
	} {
		f.Holdings = append(f.Holdings, of...)
	}
	return f
}

// TestGPUs has a file per view of the cluster. pkg/kubectl/inventory prints them as tables.
func TestGPUs(t *testing.T) {
	ofTenant := everything(t)
	ofTenant.OfNamespace = "research"
	for name, f := range map[string]Fleet{
		"everything":              everything(t),
		"nvidia":                  nvidia(t),
		"consumable":              consumable(t),
		"claims-of-one-namespace": ofTenant,
		"no-slices":               {SlicesHidden: true, OfNamespace: "research", Holdings: ofTenant.Holdings},
		"no-claims":               {OfNamespace: "research", Slices: ofTenant.Slices},
	} {
		t.Run(name, func(t *testing.T) {
			gpus := f.GPUs()
			if len(gpus) == 0 {
				t.Fatal("no GPU is found")
			}
			for _, g := range gpus {
				if f.OfNamespace != "" && g.Room != nil {
					t.Errorf("GPU %s has room for %v, which depends on claims that were not seen", g.Name, g.Room)
				}
				if f.SlicesHidden && (g.Product != "" || g.Problem != "") {
					t.Errorf("GPU %s is a %q with the problem %q, and no slice was seen", g.Name, g.Product, g.Problem)
				}
			}
			fixture.Golden(t, name+".gpus.yaml", text(t, gpus))
		})
	}
}

func TestCompactSlicesGiveTheSameGPUs(t *testing.T) {
	plain, compact := everything(t), everything(t)
	c := devices.NewCompactor()
	for _, s := range compact.Slices {
		c.Compact(s)
	}
	if want, got := text(t, plain.GPUs()), text(t, compact.GPUs()); want != got {
		t.Errorf("compact:\n%s\nas published:\n%s", got, want)
	}
	if want, got := text(t, plain.Devices()), text(t, compact.Devices()); want != got {
		t.Errorf("compact:\n%s\nas published:\n%s", got, want)
	}
}

func text(t *testing.T, value any) string {
	t.Helper()
	out, err := yaml.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

// nvidia has slices of NVIDIA's driver, which publishes the same names, with counters of its own.
func nvidia(t *testing.T) Fleet {
	t.Helper()
	content, err := os.ReadFile("testdata/nvidia.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var f Fleet
	for _, document := range strings.Split(string(content), "\n---\n") {
		var slice resourceapi.ResourceSlice
		if err := yaml.UnmarshalStrict([]byte(document), &slice); err != nil {
			t.Fatal(err)
		}
		f.Slices = append(f.Slices, &slice)
	}
	f.Holdings = append(claim("part", "n2", true, fixture.Result("gpu", "gpu-0-mig-3g40gb-9-0")), claim("cut", "n2", true, fixture.Result("gpu", "gpu-1-mig-1g10gb-19-0"))...)
	return f
}

func TestAPoolWithMissingSlicesHasNoRoom(t *testing.T) {
	f := Fleet{Slices: published(t, "n1", 1, nil)[1:]}
	for _, g := range f.GPUs() {
		fixture.Sentence(t, fmt.Errorf("%s", g.Problem), "of pool n1 are there", "plugin")
		if len(g.Room) > 0 {
			t.Errorf("GPU %s has room for %v", g.Name, g.Room)
		}
	}
}

func TestAWithdrawnDeviceIsAProblemOfItsGPU(t *testing.T) {
	const gone = "gpu-0-mig-1g10gb-99-0"
	gpus := Fleet{Slices: published(t, "n1", 1, nil), Holdings: claim("old", "n1", true, fixture.Result("gpu", gone))}.GPUs()
	if len(gpus) != 1 || !strings.Contains(gpus[0].Problem, gone) {
		t.Errorf("there are %d GPUs, the first with the problem %q", len(gpus), gpus[0].Problem)
	}
}
