package control

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"

	"github.com/mica-gpu/mica/pkg/devices"
	"github.com/mica-gpu/mica/pkg/scaleout/view"
)

var nodesCame = prometheus.NewCounterVec(prometheus.CounterOpts{
	Name: "mica_scaleout_nodes_total",
	Help: "Nodes of a GPUNodeGroup that became complete (state come), of which a claim has got a device (used), and of which none has for 10 minutes (unused).",
}, []string{"group", "state"})

// unusedAfter is how long a complete node may wait for its first claim: as long as it is kept for one.
const unusedAfter = 10 * time.Minute

// arrivals has the nodes that have come, by UID. It is lost with the process: nodes that a new one
// finds are counted by none.
type arrivals map[types.UID]*arrival

// arrival is what was counted of a node.
type arrival struct {
	complete     time.Time
	used, unused bool
	seen         bool
}

// observe counts what has become of nodes. first tells that it has not looked before.
func (a arrivals) observe(v *view.View, now time.Time, first bool) {
	taken := takenPools(v)
	for _, known := range a {
		known.seen = false
	}
	for i := range v.GroupStates {
		group := &v.GroupStates[i]
		for j := range group.Nodes {
			node := &group.Nodes[j]
			known := a[node.Object.UID]
			if known == nil {
				if !node.Complete() {
					continue
				}
				known = &arrival{complete: now, used: first, unused: first}
				a[node.Object.UID] = known
				if !first {
					nodesCame.WithLabelValues(group.Object.Name, "come").Inc()
				}
			}
			known.seen = true
			known.count(group.Object.Name, usedBy(node, taken), now)
		}
	}
	for uid, known := range a {
		if !known.seen {
			delete(a, uid)
		}
	}
}

// count counts a node once as used, and once as unused, which it may have been before.
func (n *arrival) count(group string, used bool, now time.Time) {
	switch {
	case used && !n.used:
		n.used = true
		nodesCame.WithLabelValues(group, "used").Inc()
	case !used && !n.used && !n.unused && now.Sub(n.complete) >= unusedAfter:
		n.unused = true
		nodesCame.WithLabelValues(group, "unused").Inc()
	}
}

// takenPools are those of which claims have devices.
func takenPools(v *view.View) map[devices.PoolID]bool {
	taken := map[devices.PoolID]bool{}
	for _, claim := range v.Claims {
		for result := range devices.Results(claim.Status.Allocation) {
			taken[devices.PoolID{Driver: result.Driver, Name: result.Pool}] = true
		}
	}
	return taken
}

// unusedNodes counts those of a group that nobody has taken a device of, complete though they are.
func unusedNodes(group view.Group, taken map[devices.PoolID]bool, now time.Time) int {
	unused := 0
	for i := range group.Nodes {
		node := &group.Nodes[i]
		if node.Complete() && now.Sub(node.CompleteSince()) >= unusedAfter && !usedBy(node, taken) {
			unused++
		}
	}
	return unused
}

func usedBy(node *view.NodeState, taken map[devices.PoolID]bool) bool {
	for _, slice := range node.Slices {
		if taken[devices.PoolOf(slice)] {
			return true
		}
	}
	return false
}
