package fit

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/mica-gpu/mica/pkg/devices"
)

// BenchmarkMachines makes the machines of live nodes with eight GPUs each, in all shapes. The
// devices are copies: nothing is shared by pointer.
func BenchmarkMachines(b *testing.B) {
	for _, nodes := range []int{100, 1000} {
		b.Run(fmt.Sprintf("nodes=%d", nodes), func(b *testing.B) {
			var live []Node
			var all []*resourceapi.ResourceSlice
			first := published(b, "p5.48xlarge", "first")
			for i := range nodes {
				name := fmt.Sprintf("node-%04d", i)
				slices := renamed(first, name)
				live = append(live, Node{Object: large(name), Slices: slices, Pods: []*corev1.Pod{requesting("daemon", map[string]string{"cpu": "1"})}})
				all = append(all, slices...)
			}
			facts := Facts{Classes: deviceClasses(), Slices: all, Selectors: devices.NewSelectors()}
			for b.Loop() {
				c := New(facts)
				if _, err := c.Pod(requesting("pod", map[string]string{"cpu": "1"}), []PodClaim{claiming(migClass, 1, `device.attributes["gpu.nvidia.com"].profile == "1g.10gb"`)}); err != nil {
					b.Fatal(err)
				}
				for _, n := range live {
					c.Machine(n)
				}
				if len(c.machines) != 1 {
					b.Fatalf("%d machines of nodes that are alike", len(c.machines))
				}
			}
		})
	}
}

// BenchmarkFill places pods until the node is full.
func BenchmarkFill(b *testing.B) {
	for name, claim := range map[string]PodClaim{
		"whole": claiming("gpu.nvidia.com", 1),
		"mig":   claiming(migClass, 1, `device.attributes["gpu.nvidia.com"].profile == "1g.10gb"`),
	} {
		b.Run(name, func(b *testing.B) {
			node := Node{Object: large("node"), Slices: published(b, "p5.48xlarge", "node")}
			selectors := devices.NewSelectors()
			placed := 0
			for b.Loop() {
				placed = 0
				c := New(Facts{Classes: deviceClasses(), Slices: node.Slices, Selectors: selectors})
				p, err := c.Pod(requesting("pod", map[string]string{"cpu": "1"}), []PodClaim{claim})
				if err != nil {
					b.Fatal(err)
				}
				m, shared := c.Machine(node), c.Shared()
				for ; ; placed++ {
					next, miss, err := shared.Place(b.Context(), m, p)
					if err != nil {
						b.Fatal(err)
					}
					if miss != nil {
						break
					}
					m = next
				}
			}
			b.ReportMetric(float64(placed), "pods")
		})
	}
}
