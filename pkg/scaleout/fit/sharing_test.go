package fit

import (
	"fmt"
	"math/rand/v2"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

	"github.com/mica-gpu/mica/test/fixture"
)

// TestSharingChangesNothing places pods at random on machines that are shared between alike
// nodes, and on machines that share nothing: each gets the same answers.
func TestSharingChangesNothing(t *testing.T) {
	hardware := map[string][]*resourceapi.ResourceSlice{}
	for _, machine := range []string{"g5.12xlarge", "mig-static", "mixed"} {
		hardware[machine] = published(t, machine, "first")
	}
	shared := 0
	for seed := range uint64(40) {
		random := rand.New(rand.NewPCG(seed, 3))
		facts, nodes, pods := randomCluster(random, hardware)
		together, apart := New(facts), New(facts)
		apart.separate = true
		a, b := view(t, together, nodes, pods), view(t, apart, nodes, pods)
		shared += len(apart.machines) - len(together.machines)
		sharedTogether, sharedApart := together.Shared(), apart.Shared()
		for range 60 {
			p, n := random.IntN(len(pods)), random.IntN(len(nodes))
			first, firstMiss, err := sharedTogether.Place(t.Context(), a.machines[n], a.pods[p])
			if err != nil {
				t.Fatal(err)
			}
			second, secondMiss, err := sharedApart.Place(t.Context(), b.machines[n], b.pods[p])
			if err != nil {
				t.Fatal(err)
			}
			if (firstMiss == nil) != (secondMiss == nil) || firstMiss != nil && firstMiss.Reason != secondMiss.Reason {
				t.Fatalf("seed %d: %s on %s: %+v where machines are shared, %+v where not", seed, pods[p].Name, nodes[n].Object.Name, firstMiss, secondMiss)
			}
			if firstMiss == nil {
				a.machines[n], b.machines[n] = first, second
				sharedTogether = sharedTogether.Commit(first)
				sharedApart = sharedApart.Commit(second)
			}
		}
	}
	if shared == 0 {
		t.Error("no machine was shared")
	}
}

// views is a cluster's view of nodes and pods.
type views struct {
	machines []*Machine
	pods     []*Pod
}

func view(t *testing.T, c *Cluster, nodes []Node, pods []randomPod) views {
	t.Helper()
	var r views
	for _, p := range pods {
		made, err := c.Pod(p.Pod, p.claims)
		if err != nil {
			t.Fatal(err)
		}
		r.pods = append(r.pods, made)
	}
	for _, n := range nodes {
		r.machines = append(r.machines, c.Machine(n))
	}
	return r
}

type randomPod struct {
	*corev1.Pod
	claims []PodClaim
}

func randomCluster(random *rand.Rand, hardware map[string][]*resourceapi.ResourceSlice) (Facts, []Node, []randomPod) {
	facts := Facts{Classes: deviceClasses()}
	var nodes []Node
	for i := range 8 {
		name := fmt.Sprintf("node-%d", i)
		n := Node{Object: large(name), Slices: renamed(hardware[[]string{"g5.12xlarge", "mig-static", "mixed"}[random.IntN(3)]], name)}
		n.Object.Labels["zone"] = []string{"a", "b", "c"}[random.IntN(3)]
		n.Object.Status.Allocatable[corev1.ResourceCPU] = resource.MustParse([]string{"4", "8"}[random.IntN(2)])
		if random.IntN(4) == 0 {
			d := &n.Slices[0].Spec.Devices[0]
			d.Taints = []resourceapi.DeviceTaint{{Key: "xid", Effect: resourceapi.DeviceTaintEffectNoSchedule}}
		}
		if random.IntN(4) == 0 {
			d := &n.Slices[0].Spec.Devices[random.IntN(len(n.Slices[0].Spec.Devices))]
			facts.Claims = append(facts.Claims, fixture.Claim("taken", resourceapi.DeviceRequestAllocationResult{Driver: fixture.Driver, Pool: name, Device: d.Name}))
		}
		nodes = append(nodes, n)
		facts.Slices = append(facts.Slices, n.Slices...)
	}
	var pods []randomPod
	for i := range 8 {
		p := randomPod{Pod: requesting(fmt.Sprintf("pod-%d", i), map[string]string{"cpu": []string{"1", "3"}[random.IntN(2)]})}
		if random.IntN(4) == 0 {
			p.Spec.NodeSelector = map[string]string{"zone": "a"}
		}
		claim := claiming([]string{fixture.Driver, migClass}[random.IntN(2)], 1+random.Int64N(2))
		if random.IntN(3) == 0 {
			claim.Claim.Spec.Devices.Constraints = []resourceapi.DeviceConstraint{{MatchAttribute: ptr.To(resourceapi.FullyQualifiedName("gpu.nvidia.com/parentUUID"))}}
		}
		p.claims = append(p.claims, claim)
		pods = append(pods, p)
		facts.Pods = append(facts.Pods, p.Pod)
	}
	return facts, nodes, pods
}
