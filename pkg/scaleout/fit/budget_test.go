package fit

import (
	"fmt"
	"testing"

	"github.com/mica-gpu/mica/test/fixture"
)

// Sixteen requests for one of eight GPUs each have more combinations than can be tried, on
// every machine.
func TestEndlessSearchesGetSmallerAndSmallerBudgets(t *testing.T) {
	many := claiming(fixture.Driver, 1)
	for i := range 15 {
		another := many.Claim.Spec.Devices.Requests[0]
		another.Name = fmt.Sprintf("another-%d", i)
		many.Claim.Spec.Devices.Requests = append(many.Claim.Spec.Devices.Requests, another)
	}
	c := New(Facts{Classes: deviceClasses()})
	c.separate = true
	hard, err := c.Pod(requesting("hard", nil), []PodClaim{many})
	if err != nil {
		t.Fatal(err)
	}
	other, err := c.Pod(requesting("other", nil), []PodClaim{claiming(fixture.Driver, 1)})
	if err != nil {
		t.Fatal(err)
	}
	c.budget.search = 1 << 12
	for i := range 3 {
		name := fmt.Sprintf("node-%d", i)
		m := c.Machine(Node{Object: large(name), Slices: published(t, "p5.48xlarge", name)})
		_, miss, err := c.Shared().Place(t.Context(), m, hard)
		if err != nil {
			t.Fatal(err)
		}
		if miss == nil || !miss.Aborts {
			t.Fatalf("got %v, want that it cannot be found out", miss)
		}
		if got, want := c.limit(hard, m), 1<<12>>(i+1); got != want {
			t.Errorf("after %d endless searches the next has %d steps, want %d", i+1, got, want)
		}
		if got := c.limit(other, m); got != 1<<12 {
			t.Errorf("other pods have %d, want what they had before", got)
		}
	}
}

func (c *Cluster) limit(p *Pod, m *Machine) int { return c.budget.of(c.demand(p, m.traits)) }
