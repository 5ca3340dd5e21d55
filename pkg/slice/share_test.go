package slice

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/dynamic-resource-allocation/structured"
	"k8s.io/utils/ptr"

	"github.com/mica-gpu/mica/pkg/gpu"
	"github.com/mica-gpu/mica/test/fixture"
	"github.com/mica-gpu/mica/test/nvmlsim/nodes"
)

var (
	quarters    = gpu.TimeSlicing{Replicas: 4, Interval: gpu.DefaultInterval}
	fourClients = gpu.MPS{Clients: 4}
)

// allShapes offers every shape, and some profiles for one claim and in shares.
func allShapes() gpu.Policy {
	return gpu.Policy{
		Whole: true, TimeSlicing: &quarters, MPS: &fourClients, MIG: true,
		SharedProfiles: map[string]gpu.Sharing{
			"1g.10gb": quarters, "3g.40gb": fourClients, // of an H100
			"1g.5gb": quarters, "7g.40gb": fourClients, // of an A100
		},
	}
}

func TestPublishedSharesOfReadyMadeMachines(t *testing.T) {
	for _, name := range []string{"p5.48xlarge", "p4d.24xlarge", "g5.12xlarge", "mig-static"} {
		t.Run(name, func(t *testing.T) {
			fixture.Golden(t, name+"-shares.yaml", render(t, poolUnder(allShapes(), fixture.Node(t, name))))
		})
	}
}

// What claims of NVIDIA's driver with consumable shares name and count (applyConsumableShares in its
// cmd/gpu-kubelet-plugin/consumable_shares.go).
func TestPublishedConsumableShares(t *testing.T) {
	for name, shares := range map[string]gpu.ConsumableShares{"unlimited": byNothing, "memory": byMemory, "4": fourShares} {
		t.Run(name, func(t *testing.T) {
			published := poolUnder(gpu.Policy{Whole: true, Consumable: &shares}, fixture.Node(t, "g6.xlarge"))
			checkPool(t, published)
			fixture.Golden(t, "g6.xlarge-consumable-"+name+".yaml", render(t, published))
		})
	}
	for _, bytes := range []uint64{0, 1 << 20, 2<<20 - 1, 2 << 20} {
		for _, shares := range []gpu.ConsumableShares{byNothing, byMemory, fourShares} {
			shape := gpu.Consumable{Whole: gpu.Whole{GPU: gpu.GPU{UUID: "GPU", MemoryBytes: bytes}}, Shares: shares}
			checkDevice(t, device(common(gpu.Node{}, gpu.GPU{}), shape))
		}
	}
}

var (
	byNothing  = gpu.ConsumableShares{By: gpu.ByNothing}
	byMemory   = gpu.ConsumableShares{By: gpu.ByMemory}
	fourShares = gpu.ConsumableShares{By: gpu.ByCount, Count: 4}
)

// consumed offers every shape, the whole GPU to several claims.
func consumed(shares gpu.ConsumableShares) gpu.Policy {
	policy := allShapes()
	policy.Consumable = &shares
	return policy
}

// Under every policy, what is published of every machine is valid, and no two
// devices have the same name.
func TestPublishedSharesAreValid(t *testing.T) {
	t.Parallel()
	for _, name := range nodes.Names() {
		node := fixture.Node(t, name)
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for seed := range uint64(25) {
				policy := randomPolicy(rand.New(rand.NewPCG(seed, 6)), node)
				for _, g := range node.GPUs {
					if err := policy.Check(g); err != nil {
						t.Fatalf("seed %d: %v", seed, err)
					}
				}
				checkPool(t, poolUnder(policy, node))
				if t.Failed() {
					t.Fatalf("under the policy of seed %d: %+v", seed, policy)
				}
			}
		})
	}
}

// randomPolicy is one that the node's GPUs support.
func randomPolicy(random *rand.Rand, node gpu.Node) gpu.Policy {
	slicing := func() gpu.TimeSlicing {
		return gpu.TimeSlicing{Replicas: gpu.MinShares + random.IntN(gpu.MaxReplicas-gpu.MinShares+1), Interval: gpu.DefaultInterval}
	}
	clients := func() gpu.MPS {
		return gpu.MPS{Clients: gpu.MinShares + random.IntN(gpu.MaxClients-gpu.MinShares+1)}
	}
	policy := gpu.Policy{Whole: random.IntN(2) == 0, MIG: random.IntN(2) == 0, SharedProfiles: map[string]gpu.Sharing{}}
	if all := []gpu.ConsumableShares{byNothing, byMemory, fourShares}; random.IntN(2) == 0 {
		policy.Consumable = &all[random.IntN(len(all))]
	}
	if random.IntN(2) == 0 {
		policy.TimeSlicing = ptr.To(slicing())
	}
	old := slices.ContainsFunc(node.GPUs, gpu.GPU.BeforeVolta)
	if random.IntN(2) == 0 && !old {
		policy.MPS = ptr.To(clients())
	}
	for _, g := range node.GPUs {
		for _, p := range g.Profiles {
			switch random.IntN(4) {
			case 0:
				policy.SharedProfiles[p.Name] = slicing()
			case 1:
				policy.SharedProfiles[p.Name] = clients()
			}
		}
	}
	return policy
}

// Any number of shares can be published of any amount of memory, and as many
// claims fit that ask for nothing special.
func TestDefaultSharesFillADevice(t *testing.T) {
	const mebibyte = 1 << 20
	for _, bytes := range []uint64{0, 1, mebibyte, 2*mebibyte - 1, 2 * mebibyte, 47*mebibyte + 5, 48 * mebibyte, 127 * mebibyte, 128 * mebibyte, 24<<30 + 12345, 80<<30 - 1, 1 << 40} {
		for count := gpu.MinShares; count <= gpu.MaxReplicas; count++ {
			sharings := []gpu.Sharing{gpu.TimeSlicing{Replicas: count}}
			if count <= gpu.MaxClients {
				sharings = append(sharings, gpu.MPS{Clients: count})
			}
			for _, sharing := range sharings {
				share := gpu.Share{Of: gpu.Whole{GPU: gpu.GPU{UUID: "GPU", MemoryBytes: bytes}}, Sharing: sharing}
				described := device(common(gpu.Node{}, gpu.GPU{}), share)
				checkDevice(t, described)
				for name, capacity := range described.Capacity {
					if byDefault := capacity.RequestPolicy.Default.Value(); byDefault*int64(count) > capacity.Value.Value() {
						t.Errorf("%d bytes in %d: %s of %d does not have %d times %d", bytes, count, name, capacity.Value.Value(), count, byDefault)
					}
				}
				_, counted := described.Capacity[gpu.CapacityMemory]
				if enough := bytes/mebibyte >= uint64(count); counted != enough {
					t.Errorf("%d bytes in %d: memory is published: %t", bytes, count, counted)
				}
				if memory := described.Capacity[gpu.CapacityMemory]; counted && uint64(memory.Value.Value()) > bytes {
					t.Errorf("%d bytes are published as %s", bytes, &memory.Value)
				}
			}
		}
	}
}

// A policy with one shape that meets no other costs the scheduler no counter.
func TestOneShapePublishesNoCounters(t *testing.T) {
	for name, policy := range map[string]gpu.Policy{
		"whole":      {Whole: true},
		"time-slice": {TimeSlicing: &quarters},
		"MPS":        {MPS: &fourClients},
		"one profile in shares, which fits in different places only": {SharedProfiles: map[string]gpu.Sharing{"4g.40gb": quarters}},
	} {
		t.Run(name, func(t *testing.T) {
			devices := 0
			for _, slice := range poolUnder(policy, fixture.Node(t, "p5.48xlarge")).Slices {
				devices += len(slice.Devices)
				if len(slice.SharedCounters) > 0 || slices.ContainsFunc(slice.Devices, func(d resourceapi.Device) bool { return d.ConsumesCounters != nil }) {
					t.Errorf("there are counters: %+v", slice.SharedCounters)
				}
			}
			if devices != 8 {
				t.Errorf("%d devices are published, want one for each GPU", devices)
			}
		})
	}
}

// A cluster whose API server knows no counters gets nothing in shares.
func TestWithoutCountersNothingIsShared(t *testing.T) {
	for _, device := range devicesOf(WithoutCounters(poolUnder(allShapes(), fixture.Node(t, "mig-static")))) {
		if device.AllowMultipleAllocations != nil || device.ConsumesCounters != nil {
			t.Errorf("%s is published", device.Name)
		}
	}
}

func devicesOf(pool resourceslice.Pool) []resourceapi.Device {
	var devices []resourceapi.Device
	for _, slice := range pool.Slices {
		devices = append(devices, slice.Devices...)
	}
	return devices
}

func TestSchedulerSharesDevices(t *testing.T) {
	amount := func(name resourceapi.QualifiedName, quantity string) map[resourceapi.QualifiedName]resource.Quantity {
		return map[resourceapi.QualifiedName]resource.Quantity{name: resource.MustParse(quantity)}
	}
	const othersInShares = `device.allowMultipleAllocations && device.attributes["gpu.nvidia.com"].?profile.orValue("") == "7g.40gb" && device.attributes["gpu.nvidia.com"].?uuid.hasValue()`
	type claim struct {
		class    string
		cel      string
		requests map[resourceapi.QualifiedName]resource.Quantity
		count    int
		want     string // "" does not fit
	}
	slice := func(want string) claim { return claim{class: timesliceClass, want: want} }
	for name, tc := range map[string]struct {
		machine string
		policy  gpu.Policy
		claims  []claim
	}{
		"as many as replicas, then the next GPU": {"p5.48xlarge", allShapes(), []claim{
			slice("gpu-0-timeslice"), slice("gpu-0-timeslice"), slice("gpu-0-timeslice"), slice("gpu-0-timeslice"), slice("gpu-1-timeslice"),
		}},
		"and not one more": {"g6.xlarge", allShapes(), []claim{
			slice("gpu-0-timeslice"), slice("gpu-0-timeslice"), slice("gpu-0-timeslice"), slice("gpu-0-timeslice"), slice(""),
		}},
		"nor without counters": {"g6.xlarge", gpu.Policy{TimeSlicing: &gpu.TimeSlicing{Replicas: 2}}, []claim{
			slice("gpu-0-timeslice"), slice("gpu-0-timeslice"), slice(""),
		}},
		"nothing beside a GPU in shares": {"g6.xlarge", allShapes(), []claim{
			slice("gpu-0-timeslice"), {class: fixture.Driver}, {class: mpsClass},
		}},
		"nothing beside a whole GPU": {"g6.xlarge", allShapes(), []claim{
			{class: fixture.Driver, want: "gpu-0"}, slice(""), {class: mpsClass},
		}},
		"GPUs that cannot be divided, one shape each": {"g5.12xlarge", allShapes(), []claim{
			slice("gpu-0-timeslice"), {class: mpsClass, want: "gpu-1-mps"}, {class: fixture.Driver, want: "gpu-2"}, {class: mpsClass, want: "gpu-1-mps"},
		}},
		"more shares for one claim": {"g6.xlarge", allShapes(), []claim{
			{class: timesliceClass, requests: amount("shares", "3"), want: "gpu-0-timeslice"}, {class: timesliceClass, requests: amount("shares", "2")}, slice("gpu-0-timeslice"), slice(""),
		}},
		"any number of claims of a GPU, and nothing beside it": {"g6.xlarge", consumed(byNothing), slices.Concat(
			slices.Repeat([]claim{{class: fixture.Driver, want: "gpu-0"}}, 10),
			[]claim{{class: fixture.Driver, requests: amount("memory", "20Gi"), want: "gpu-0"}, {class: fixture.Driver, requests: amount("memory", "20Gi")}, slice(""), {class: mpsClass}},
		)},
		"the memory of a GPU": {"g6.xlarge", consumed(byMemory), []claim{
			{class: fixture.Driver, requests: amount("memory", "20Gi"), want: "gpu-0"}, {class: fixture.Driver, requests: amount("memory", "3Gi")},
			{class: fixture.Driver}, {class: fixture.Driver, requests: amount("memory", "2Gi"), want: "gpu-0"},
		}},
		"all memory of a GPU": {"g5.12xlarge", consumed(byMemory), []claim{
			{class: fixture.Driver, want: "gpu-0"}, {class: fixture.Driver, requests: amount("memory", "1"), want: "gpu-1"}, {class: fixture.Driver, want: "gpu-2"},
		}},
		"shares of a GPU by its own name": {"g6.xlarge", consumed(fourShares), []claim{
			{class: fixture.Driver, want: "gpu-0"}, {class: fixture.Driver, requests: amount("shares", "2"), want: "gpu-0"},
			{class: fixture.Driver, requests: amount("shares", "2")}, {class: fixture.Driver, requests: amount("memory", "20Gi"), want: "gpu-0"}, {class: fixture.Driver},
		}},
		"no GPU for several claims beside its partitions or shares": {"p5.48xlarge", consumed(fourShares), []claim{
			{class: migClass, want: "gpu-0-mig-1g10gb-19-6"}, slice("gpu-1-timeslice"), {class: fixture.Driver, want: "gpu-2"}, {class: fixture.Driver, want: "gpu-2"},
			{class: migClass, want: "gpu-0-mig-1g10gb-19-5"}, {class: fixture.Driver, count: 5, want: "gpu-2 gpu-3 gpu-4 gpu-5 gpu-6"},
		}},
		"more shares than there are": {"p5.48xlarge", allShapes(), []claim{{class: timesliceClass, requests: amount("shares", "5")}}},
		"memory that is left":        {"g6.xlarge", allShapes(), []claim{{class: timesliceClass, requests: amount("memory", "20Gi"), want: "gpu-0-timeslice"}, slice("")}},
		"a part of a mebibyte is one": {"g6.xlarge", allShapes(), []claim{
			{class: mpsClass, requests: amount("memory", "1"), want: "gpu-0-mps"}, {class: mpsClass, requests: amount("memory", "100Gi")},
		}},
		"cores that are left": {"g6.xlarge", allShapes(), []claim{
			{class: mpsClass, requests: amount("cores", "60"), want: "gpu-0-mps"}, {class: mpsClass, requests: amount("cores", "41")}, {class: mpsClass, requests: amount("cores", "40"), want: "gpu-0-mps"},
		}},
		"cores of what has none": {"g6.xlarge", allShapes(), []claim{{class: timesliceClass, requests: amount("cores", "10")}}},
		"devices of one request are different GPUs": {"p5.48xlarge", allShapes(), []claim{
			{class: timesliceClass, count: 2, want: "gpu-0-timeslice gpu-1-timeslice"}, slice("gpu-0-timeslice"),
		}},
		"a partition in shares is made once": {"p5.48xlarge", allShapes(), []claim{
			{class: migTimesliceClass, want: "gpu-0-mig-1g10gb-19-6-timeslice"}, {class: migTimesliceClass, want: "gpu-0-mig-1g10gb-19-6-timeslice"},
			{class: migClass, want: "gpu-0-mig-1g10gb-19-5"},
			{class: migTimesliceClass, want: "gpu-0-mig-1g10gb-19-6-timeslice"}, {class: migTimesliceClass, want: "gpu-0-mig-1g10gb-19-6-timeslice"},
			{class: migTimesliceClass, want: "gpu-0-mig-1g10gb-19-4-timeslice"}, slice("gpu-1-timeslice"),
		}},
		"the instance of an administrator, in shares": {"mig-static", allShapes(), []claim{
			{class: anyClass, cel: othersInShares, want: "gpu-2-mig-7g40gb-0-0-mps"}, {class: anyClass, cel: othersInShares, want: "gpu-2-mig-7g40gb-0-0-mps"},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			cluster := newClusterOf(poolUnder(tc.policy, fixture.Node(t, tc.machine)), 1)
			for i, claim := range tc.claims {
				asked := claimOf(claim.class, cmp.Or(claim.count, 1), claim.cel, nil)
				if claim.requests != nil {
					asked.Spec.Devices.Requests[0].Exactly.Capacity = &resourceapi.CapacityRequirements{Requests: claim.requests}
				}
				if got := join(cluster.give(t, asked)); got != claim.want {
					t.Fatalf("claim %d of %s got %q, want %q", i, claim.class, got, claim.want)
				}
			}
		})
	}
}

// give allocates a claim, as the scheduler does before it looks at the next.
func (c *cluster) give(t *testing.T, claim *resourceapi.ResourceClaim) []string {
	t.Helper()
	var got []string
	for _, device := range c.results(t, claim) {
		got = append(got, device.Device)
		id := structured.MakeDeviceID(device.Driver, device.Pool, device.Device)
		if device.ShareID == nil {
			c.state.AllocatedDevices.Insert(id)
			continue
		}
		c.state.AllocatedSharedDeviceIDs.Insert(structured.MakeSharedDeviceID(id, device.ShareID))
		c.state.AggregatedCapacity.Insert(structured.NewDeviceConsumedCapacity(id, device.ConsumedCapacity))
	}
	slices.Sort(got)
	return got
}

func join(names []string) string { return strings.Join(names, " ") }

// A claim with admin access looks at a share where there is one left, and waits
// where the GPU is used in another shape.
func TestSchedulerLetsAdminsLookAtShares(t *testing.T) {
	for name, tc := range map[string]struct {
		taken int
		class string
		want  string
	}{
		"of a free GPU":                    {0, timesliceClass, "gpu-0-timeslice"},
		"of one in shares":                 {3, timesliceClass, "gpu-0-timeslice"},
		"of one without a share left":      {4, timesliceClass, ""},
		"as a whole GPU, of one in shares": {1, fixture.Driver, ""},
		"as a whole GPU, of a free one":    {0, fixture.Driver, "gpu-0"},
	} {
		t.Run(name, func(t *testing.T) {
			cluster := newClusterOf(poolUnder(allShapes(), fixture.Node(t, "g6.xlarge")), 1)
			for range tc.taken {
				cluster.give(t, claimOf(timesliceClass, 1, "", nil))
			}
			admin := claimOf(tc.class, 1, "", nil)
			admin.Spec.Devices.Requests[0].Exactly.AdminAccess = ptr.To(true)
			if got := join(cluster.allocate(t, admin)); got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}

// What is withdrawn keeps its claims and gets no further one.
func TestSchedulerGivesNothingThatIsWithdrawn(t *testing.T) {
	node := fixture.Node(t, "g5.12xlarge")
	shapes := gpu.Shapes(node.GPUs, func(gpu.GPU) gpu.Policy { return allShapes() })
	cluster := newClusterOf(Pool(node, shapes, nil), 1)
	if got := join(cluster.give(t, claimOf(timesliceClass, 1, "", nil))); got != "gpu-0-timeslice" {
		t.Fatalf("got %q", got)
	}
	withdrawn := newClusterOf(Pool(node, shapes, Taints{"gpu-0-timeslice": {Withdrawn()}, "gpu-2-mps": {Withdrawn()}}), 1)
	withdrawn.state = cluster.state
	for class, want := range map[string]string{timesliceClass: "gpu-1-timeslice", mpsClass: "gpu-1-mps", fixture.Driver: "gpu-1"} {
		if got := join(withdrawn.allocate(t, claimOf(class, 1, "", nil))); got != want {
			t.Errorf("of class %s: got %q, want %q", class, got, want)
		}
	}
}

// A taint makes the API server's limit of devices in a slice smaller.
func TestWithdrawnDevicesAreSplitAtTheirLimit(t *testing.T) {
	node := gpu.Node{}
	for minor := range 100 {
		node.GPUs = append(node.GPUs, gpu.GPU{Minor: minor, UUID: fmt.Sprint(minor)})
	}
	shapes := gpu.Shapes(node.GPUs, func(gpu.GPU) gpu.Policy { return gpu.Policy{TimeSlicing: &quarters} })
	for withdrawn, want := range map[string][]int{"gpu-7-timeslice": {64, 36}, "gpu-7": {100}} {
		published := Pool(node, shapes, Taints{withdrawn: {Withdrawn()}})
		checkPool(t, published)
		var got []int
		for _, slice := range published.Slices {
			got = append(got, len(slice.Devices))
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s is withdrawn: slices have %v devices, want %v", withdrawn, got, want)
		}
	}
}
