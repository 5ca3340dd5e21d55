package control

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"

	"github.com/mica-gpu/mica/pkg/scaleout/pair"
	"github.com/mica-gpu/mica/pkg/scaleout/view"
)

var nodesCame = prometheus.NewCounterVec(prometheus.CounterOpts{
	Name: "mica_scaleout_nodes_total",
	Help: "Nodes of a GPUNodeGroup that became complete (state come), that got their first claim (used), and that got none for 10 minutes (unused).",
}, []string{"group", "state"})

// unusedAfter is how long a complete node may wait for its first claim. Pairing protects it as long.
const unusedAfter = 10 * time.Minute

// arrivals are the complete nodes by UID. They are lost with the process: nodes that a new one finds are not counted.
type arrivals map[types.UID]arrival

// arrival reports what was counted for a node.
type arrival struct {
	complete     time.Time
	used, unused bool
}

// observe counts new nodes, and nodes that became used or unused. first is true in the process's first pass.
func (a arrivals) observe(v *view.View, now time.Time, first bool) arrivals {
	taken, next := pair.TakenBy(v.Claims), arrivals{}
	for i := range v.GroupStates {
		group := &v.GroupStates[i]
		count := func(state string) { nodesCame.WithLabelValues(group.Object.Name, state).Inc() }
		for j := range group.Nodes {
			node := &group.Nodes[j]
			n, known := a[node.Object.UID]
			if !known {
				if !node.Complete() {
					continue
				}
				n = arrival{complete: now, used: first, unused: first}
				if !first {
					count("come")
				}
			}
			switch used := taken.Any(node); {
			case used && !n.used:
				n.used = true
				count("used")
			case !used && !n.used && !n.unused && now.Sub(n.complete) >= unusedAfter:
				n.unused = true
				count("unused")
			}
			next[node.Object.UID] = n
		}
	}
	return next
}

// unusedNodes counts a group's complete nodes that have waited too long for a claim.
func unusedNodes(group view.Group, taken pair.Taken, now time.Time) int {
	unused := 0
	for i := range group.Nodes {
		node := &group.Nodes[i]
		if node.Complete() && now.Sub(node.CompleteSince()) >= unusedAfter && !taken.Any(node) {
			unused++
		}
	}
	return unused
}
