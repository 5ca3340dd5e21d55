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
	// halfFull is how many shares a node with eight GPUs has been asked for: four
	// GPUs are full of shares, and the fifth has room for more.
	halfFull = 4*replicas + 2
)

// BenchmarkShares tells what it costs the scheduler that GPUs are offered in
// shares, too: what each claim takes under policies that offer more and more, on
// nodes without claims, and on nodes half full of shares. Nothing is taken between
// two allocations, so that all meet the same cluster.
func BenchmarkShares(b *testing.B) {
	timeSlicing := &gpu.TimeSlicing{Replicas: replicas, Interval: gpu.DefaultInterval}
	mps := &gpu.MPS{Clients: replicas}
	for _, policy := range []struct {
		name   string
		policy gpu.Policy
		claims []string
	}{
		{"whole", gpu.Policy{Whole: true}, []string{"gpu"}},
		{"timeslice", gpu.Policy{TimeSlicing: timeSlicing}, []string{"timeslice"}},
		{"whole+mig", gpu.Policy{Whole: true, MIG: true}, []string{"gpu", "mig"}},
		{"whole+timeslice+mig", gpu.Policy{Whole: true, TimeSlicing: timeSlicing, MIG: true}, []string{"gpu", "timeslice", "mig"}},
		{"all", gpu.Policy{Whole: true, TimeSlicing: timeSlicing, MPS: mps, MIG: true}, []string{"gpu", "timeslice", "mps", "mig"}},
		{"all+shared-1g", gpu.Policy{Whole: true, TimeSlicing: timeSlicing, MPS: mps, MIG: true,
			SharedProfiles: map[string]gpu.Sharing{"1g.10gb": *timeSlicing}}, []string{"gpu", "timeslice", "mps", "mig", "mig-timeslice"}},
	} {
		node := fixture.Node(b, machine)
		pool := slice.Pool(node, gpu.Shapes(node.GPUs, func(gpu.GPU) gpu.Policy { return policy.policy }), nil)
		for _, claimed := range policy.claims {
			for _, shares := range []int{0, halfFull} {
				if shares > 0 && policy.policy.TimeSlicing == nil {
					continue
				}
				b.Run(fmt.Sprintf("nodes=20/policy=%s/claim=%s/shares=%d", policy.name, claimed, shares), func(b *testing.B) {
					c := newCluster(pool, 20)
					c.share(b, shares)
					measure(b, c, claimOfType(claimed))
				})
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

// share gives time-slice shares of each node to claims.
func (c *cluster) share(b *testing.B, each int) {
	b.Helper()
	claims := []*resourceapi.ResourceClaim{claimOfType("timeslice")}
	for _, node := range c.nodes {
		for range each {
			results, err := c.allocator(b).Allocate(b.Context(), node, claims)
			if err != nil || len(results) != 1 {
				b.Fatalf("%s has no room for %d shares: %v, %v", node.Name, each, results, err)
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
