package pair

import (
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/mica-gpu/mica/pkg/scaleout/autoscaler"
	"github.com/mica-gpu/mica/pkg/scaleout/template"
)

// startupTime is a minute less than the default of Cluster Autoscaler's --max-node-startup-time: a node
// that has not started by then is no longer upcoming there, and a pod that waits has another one at once.
const startupTime = 14 * time.Minute

// gaveUp is a sentence about a placeholder that still waits though Cluster Autoscaler has given up on its
// node, or is about to; empty: it may wait. One that is on its node asks for nothing, however long the
// node takes.
func (d *placing) gaveUp(a attempt) string {
	switch {
	case a.pod.Spec.NodeName != "":
		return ""
	case d.known && d.autoscaler.TimedOut():
		return fmt.Sprintf("%s; if new nodes of the group take that long, set the flag to more than they take", d.autoscaler.BackedOff())
	case a.node == nil:
		return ""
	}
	joined := a.node.Object.CreationTimestamp.Time
	if age(d.s.Now, joined) < startupTime {
		d.again = sooner(d.again, joined.Add(startupTime))
		return ""
	}
	return fmt.Sprintf("node %s has kept its placeholder off for %s by its taints (%s), and Cluster Autoscaler would soon add another node (%s): see why the agents whose taints they are do not remove them",
		a.node.Object.Name, startupTime, taintKeys(template.WithoutStartup(a.node.Object.Spec.Taints)), autoscaler.FlagStartup)
}

func taintKeys(taints []corev1.Taint) string {
	keys := make([]string, len(taints))
	for i := range taints {
		keys[i] = taints[i].Key
	}
	return strings.Join(keys, ", ")
}
