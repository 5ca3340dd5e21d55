package bench

import (
	"fmt"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/mica-gpu/mica/pkg/gpu"
	"github.com/mica-gpu/mica/pkg/slice"
	"github.com/mica-gpu/mica/test/fixture"
)

const (
	// replicas and clients are those of the chart's policy.
	replicas = 4
	// used is of how many GPUs of a node something is used, where it is not empty.
	used = 5
)

// BenchmarkShares tells what it costs the scheduler that GPUs are offered in
// shares, too: what each claim takes under policies that offer more and more, on
// nodes that are unused, nodes with five whole GPUs, and nodes with four
// are full of shares and one has two. Nothing is taken between two allocations, so
// that all meet the same cluster.
func BenchmarkShares(b *testing.B) {
	timeSlicing := &gpu.TimeSlicing{Replicas: replicas, Interval: gpu.DefaultInterval}
	mps := &gpu.MPS{Clients: replicas}
	for _, policy := range []struct {
		name   string
		policy gpu.Policy
		nodes  []int
		claims []string
	}{
		{"whole", gpu.Policy{Whole: true}, []int{20}, []string{"gpu"}},
		{"timeslice", gpu.Policy{TimeSlicing: timeSlicing}, []int{20}, []string{"timeslice"}},
		{"whole+mig", gpu.Policy{Whole: true, MIG: true}, []int{20}, []string{"gpu", "mig"}},
		{"whole+timeslice+mig", gpu.Policy{Whole: true, TimeSlicing: timeSlicing, MIG: true}, []int{20}, []string{"gpu", "timeslice", "mig"}},
		{"whole+timeslice+mps", gpu.Policy{Whole: true, TimeSlicing: timeSlicing, MPS: mps}, []int{20, 200}, []string{"gpu", "timeslice", "mps"}},
		{"all", gpu.Policy{Whole: true, TimeSlicing: timeSlicing, MPS: mps, MIG: true}, []int{20, 200}, []string{"gpu", "timeslice", "mps", "mig"}},
		{"all+shared-1g", gpu.Policy{Whole: true, TimeSlicing: timeSlicing, MPS: mps, MIG: true,
			SharedProfiles: map[string]gpu.Sharing{"1g.10gb": *timeSlicing}}, []int{20}, []string{"gpu", "timeslice", "mig", "mig-timeslice"}},
	} {
		node := fixture.Node(b, machine)
		pool := slice.Pool(node, gpu.Shapes(node.GPUs, func(gpu.GPU) gpu.Policy { return policy.policy }), nil)
		for _, nodes := range policy.nodes {
			for _, claimed := range policy.claims {
				for _, others := range []string{"none", "gpu", "timeslice"} {
					if others == "gpu" && !policy.policy.Whole || others == "timeslice" && policy.policy.TimeSlicing == nil {
						continue
					}
					b.Run(fmt.Sprintf("nodes=%d/policy=%s/claim=%s/used=%s", nodes, policy.name, claimed, others), func(b *testing.B) {
						c := newCluster(pool, nodes)
						switch others {
						case "gpu":
							c.use(b, used, claimOfType(others))
						case "timeslice":
							c.use(b, (used-1)*replicas+replicas/2, claimOfType(others))
						}
						measure(b, c, claimOfType(claimed))
					})
				}
			}
		}
	}
}

// claimOfType has the selector that the claims of the other benchmarks have, for
// their type.
func claimOfType(deviceType string) *resourceapi.ResourceClaim {
	for class, selects := range classTypes {
		if selects != deviceType {
			continue
		}
		if deviceType == "mig" || deviceType == "mig-timeslice" {
			return claim(class, profile("1g.10gb"))
		}
		return claim(class, `device.attributes["gpu.nvidia.com"].productName == "NVIDIA H100 80GB HBM3"`)
	}
	panic("no class selects " + deviceType)
}

// use allocates a claim as often on each node.
func (c *cluster) use(b *testing.B, times int, claim *resourceapi.ResourceClaim) {
	b.Helper()
	for _, node := range c.nodes {
		for range times {
			results, err := c.allocator(b).Allocate(b.Context(), node, []*resourceapi.ResourceClaim{claim})
			if err != nil || len(results) != 1 {
				b.Fatalf("%s has no room for the claim %d times: %v, %v", node.Name, times, results, err)
			}
			c.take(results[0])
		}
	}
}

// measure allocates the claim on one node after the other.
func measure(b *testing.B, c *cluster, claim *resourceapi.ResourceClaim) {
	b.Helper()
	claims := []*resourceapi.ResourceClaim{claim}
	var took []time.Duration
	for b.Loop() {
		start := time.Now()
		results, err := c.allocator(b).Allocate(b.Context(), c.nodes[len(took)%len(c.nodes)], claims)
		took = append(took, time.Since(start))
		if err != nil || len(results) != 1 {
			b.Fatalf("the claim was not allocated: %v, %v", results, err)
		}
	}
	report(b, took)
}
