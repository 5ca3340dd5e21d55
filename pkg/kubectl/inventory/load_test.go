package inventory

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/mica-gpu/mica/pkg/elastic/usage"
	"github.com/mica-gpu/mica/pkg/fleet"
	"github.com/mica-gpu/mica/pkg/kubectl/terminal"
	"github.com/mica-gpu/mica/test/fixture"
)

// held returns the holdings of a claim for a device of a node.
func held(namespace, claim, node, device string, shared bool, pods ...string) fleet.Holding {
	result := fixture.Result("gpu", device)
	result.Pool = node
	if shared {
		result.ShareID = ptr.To(types.UID(claim))
	}
	c := fixture.Claim(claim, result)
	c.Namespace = namespace
	for _, pod := range pods {
		c.Status.ReservedFor = append(c.Status.ReservedFor, resourceapi.ResourceClaimConsumerReference{Resource: "pods", Name: pod})
	}
	return fleet.HoldingsOf(c, fixture.Driver)[0]
}

func reading(utilization *float64, used, total float64) usage.Reading {
	return usage.Reading{
		Utilization: utilization, MemoryUsed: ptr.To(used * (1 << 30)), MemoryTotal: ptr.To(total * (1 << 30)),
		At: time.Date(2026, 10, 1, 12, 0, 0, 0, time.UTC),
	}
}

var (
	heldClaims = []fleet.Holding{
		held("research", "train", "n1", "gpu-0", false, "train-0"),
		held("research", "train", "n1", "gpu-1", false, "train-0"),
		held("research", "notes", "n1", "gpu-2-timeslice", true, "note-a"),
		held("research", "notes-b", "n1", "gpu-2-timeslice", true, "note-b"),
		held("research", "both", "n2", "gpu-0", false, "left", "right"),
		held("billing", "waits", "n2", "gpu-1-mig-1g10gb-19-0", false),
		held("lost", "claim", "n3", "gpu-0", false, "pod"),
	}
	measured = usage.Fleet{Nodes: map[string]usage.NodeUsage{
		"n1": {Devices: map[string]usage.Reading{
			"gpu-0": reading(ptr.To(0.9), 70, 80), "gpu-1": reading(ptr.To(0.0), 1, 80), "gpu-2-timeslice": reading(ptr.To(0.5), 30, 80),
		}},
		"n2": {Devices: map[string]usage.Reading{"gpu-0": reading(ptr.To(0.004), 0.5, 80), "gpu-1-mig-1g10gb-19-0": reading(nil, 2, 10)}},
		"n3": {Error: "pod mica/plugin-x is Pending and has no address yet: see why it does not start"},
	}}
)

func TestLoads(t *testing.T) {
	all := NewLoad(heldClaims, measured)
	var text strings.Builder
	for _, test := range []struct {
		name string
		load Load
	}{{"by name", all.Sorted(ByName)}, {"by utilization", all.Sorted(ByUtilization)}, {"by memory", all.Sorted(ByMemory)}, {"idle", all.Idle()}, {"without readings", NewLoad(heldClaims, usage.Fleet{})}} {
		for _, width := range []int{0, 80} {
			fmt.Fprintf(&text, "--- %s, %d\n", test.name, width)
			for _, table := range []terminal.Table{PodTable(test.load), NamespaceTable(test.load)} {
				if err := (terminal.Screen{Width: width}).Write(&text, table); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	fixture.Golden(t, "load.txt", text.String())
	for _, format := range []terminal.Format{terminal.JSON, terminal.YAML} {
		var out bytes.Buffer
		if err := format.Encode(&out, all); err != nil {
			t.Fatal(err)
		}
		fixture.Golden(t, "load."+string(format), out.String())
	}
}

func TestNodesWithoutReadingsAreNamed(t *testing.T) {
	many := usage.Fleet{Nodes: map[string]usage.NodeUsage{}}
	var of []fleet.Holding
	for i := range 6 {
		node := fmt.Sprint("n", i)
		many.Nodes[node] = usage.NodeUsage{Error: "it does not answer"}
		of = append(of, held("a", "c", node, "gpu-0", false, "p"))
	}
	l := NewLoad(of, many)
	if len(l.NotSeen) != 4 || !strings.Contains(l.NotSeen[0], "n0") || !strings.HasPrefix(l.NotSeen[3], "3 more") {
		t.Errorf("got %q", l.NotSeen)
	}
}
