package view

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/mica-gpu/mica/pkg/scaleout/fit"
)

// nominationHolds is how long a nomination counts. A scheduler may wait ten minutes until a volume is bound or a device
// is attached (VolumeBindingArgs.bindTimeoutSeconds, and DynamicResourcesArgs.bindingTimeout). Then it gives up on the
// node, but Kubernetes 1.34 does not clear the field (kubernetes/kubernetes#133276).
const nominationHolds = 15 * time.Minute

// Nominations are the nodes for which a scheduler has nominated pending pods: it makes room there, binds volumes, or
// waits for the rest of a gang.
type Nominations struct {
	// Nodes has the names of the nodes, for existing nodes and nominations that count.
	Nodes map[types.UID]string
	// Outdated has the pods that have been nominated for one node for too long.
	Outdated map[types.UID]bool
	// again is when the first of Nodes will be outdated; zero: never.
	again time.Time
}

// nomination is that of a pod for a node.
type nomination struct {
	pod  types.UID
	node string
}

// nominations reads the nominations of all pods, with devices or without. A pod does not have the time of its
// nomination: the time counts at which a Read with this Memo first saw it. A new leader therefore waits once more.
func (r *reading) nominations() Nominations {
	n := Nominations{Nodes: map[types.UID]string{}, Outdated: map[types.UID]bool{}}
	exists := make(map[string]bool, len(r.nodes.Items))
	for i := range r.nodes.Items {
		exists[r.nodes.Items[i].Name] = planned(&r.nodes.Items[i]) != nil
	}
	for i := range r.objects.pods.Items {
		pod := &r.objects.pods.Items[i]
		node := NominatedFor(pod)
		if !exists[node] {
			continue
		}
		since := r.Memo.nominations.get(nomination{pod: pod.UID, node: node}, func() time.Time { return r.Now })
		end := since.Add(nominationHolds)
		if !r.Now.Before(end) {
			n.Outdated[pod.UID] = true
			continue
		}
		n.Nodes[pod.UID] = node
		n.again = sooner(n.again, end)
	}
	return n
}

// NominatedFor is the name of the node for which a pending pod is nominated; empty: none.
func NominatedFor(pod *corev1.Pod) string {
	if pod.Spec.NodeName != "" || pod.DeletionTimestamp != nil || fit.Ended(pod) {
		return ""
	}
	return pod.Status.NominatedNodeName
}
