package view

import (
	"context"
	"fmt"
	"testing"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"
)

// BenchmarkRead is a look at a cluster of 10,000 pending pods, 50 groups and 1,000 nodes of 8
// GPUs with all their MIG partitions, from a cache: the first, which works everything out,
// and one of those after it.
func BenchmarkRead(b *testing.B) {
	var o objects
	for g := range 50 {
		name := fmt.Sprintf("g%d", g)
		group := testGroup(name, pool(name), typed("p5.48xlarge"))
		o.groups.Items = append(o.groups.Items, *group)
	}
	var one objects
	t := &testing.T{}
	one.machine(t, &o.groups.Items[0], "p5.48xlarge", "n", time.Hour)
	for n := range 1000 {
		node := one.nodes.Items[0].DeepCopy()
		node.Name = fmt.Sprintf("n%d", n)
		node.Labels["pool"] = fmt.Sprintf("g%d", n%50)
		o.nodes.Items = append(o.nodes.Items, *node)
		for i := range one.slices.Items {
			slice := one.slices.Items[i].DeepCopy()
			slice.Name = fmt.Sprintf("%s-%d", node.Name, i)
			slice.Spec.NodeName, slice.Spec.Pool.Name = &node.Name, node.Name
			o.slices.Items = append(o.slices.Items, *slice)
		}
	}
	for p := range 10000 {
		o.pods.Items = append(o.pods.Items, testPod(fmt.Sprintf("p%d", p), withClaim))
	}
	reader := listed{objects: &o}
	for name, warm := range map[string]bool{"first": false, "next": true} {
		b.Run(name, func(b *testing.B) {
			memo := NewMemo()
			read := func() {
				if !warm {
					memo = NewMemo()
				}
				if _, err := Read(context.Background(), reader, Options{Driver: testDriver, Now: t0, Memo: memo}); err != nil {
					b.Fatal(err)
				}
			}
			read()
			for b.Loop() {
				read()
			}
		})
	}
}

// listed gives lists as a cache does: a copy of each object, but not of what it points to.
type listed struct {
	client.Reader
	*objects
}

func (l listed) List(_ context.Context, list client.ObjectList, _ ...client.ListOption) error {
	return copyLists(list, l.objects)
}
