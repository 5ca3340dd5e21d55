// Package workload knows what the pods of a workload hold and wait for: their claims, the
// devices of these, and whether a pod that has its devices is still loading. It answers from
// the controller's cache, and tells of a pending claim as soon as the cache has it. It writes
// nothing and knows nothing of KEDA.
package workload

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
)

// State is a workload at one moment. What is in it is a cache's own: it is not changed.
type State struct {
	Ref Ref
	// APIVersion and UID are those of the workload's object.
	APIVersion string
	UID        types.UID
	// Replicas are those that the workload is to have; a Job has none.
	Replicas int32
	// Template is the pod that would be created next, in the workload's namespace, as far as
	// the workload says: what admission adds (a priority's value, an overhead) is not in it.
	Template *corev1.Pod
	// Gang are the pods of a replica that serves only with all of them, Template's first; nil where
	// a replica is one pod.
	Gang []Member
	// Claims is whether pods of a replica claim devices, of whichever driver, or request what a
	// DeviceClass stands for.
	Claims bool
	// Gated is whether pods of Template have the readiness gate mica.gpu/serving.
	Gated bool
	// ByCost tells that replicas go by the deletion costs of their pods, as those of ReplicaSets do.
	ByCost bool
	// Pods are those that have not ended and are not being deleted, by name.
	Pods []Pod
}

// Member is a number of a gang's pods that are alike.
type Member struct {
	// Pod is as State.Template.
	Pod   *corev1.Pod
	Count int
	// Devices counts those that a pod asks for by each DeviceClass; not those of which it takes one or
	// the other.
	Devices map[string]int
	// Gated is whether the pods have the readiness gate mica.gpu/serving.
	Gated bool
}

// Size is how many pods make up a replica.
func (s *State) Size() int {
	if len(s.Gang) == 0 {
		return 1
	}
	size := 0
	for _, member := range s.Gang {
		size += member.Count
	}
	return size
}

// Replicated are the pods of each replica. One of a gang may lack pods that are still to come.
func (s *State) Replicated() [][]Pod {
	replicas := make([][]Pod, 0, len(s.Pods))
	if len(s.Gang) == 0 {
		for i := range s.Pods {
			replicas = append(replicas, s.Pods[i:i+1])
		}
		return replicas
	}
	at := map[string]int{}
	for _, pod := range s.Pods {
		i, known := at[pod.Replica]
		if !known {
			i = len(replicas)
			at[pod.Replica] = i
			replicas = append(replicas, nil)
		}
		replicas[i] = append(replicas[i], pod)
	}
	return replicas
}

// Pod is a pod of a workload.
type Pod struct {
	UID  types.UID
	Name string
	// Replica tells the pods of one replica of a gang from those of others. Follows is of its pods
	// all but one.
	Replica string
	Follows bool
	// Node is empty until the scheduler has put the pod on one.
	Node string
	// Unstarted tells that kubelet has started nothing of the pod on its node: nothing uses its
	// devices, and no plugin may know of them yet. kubelet attaches volumes before it has claims
	// prepared.
	Unstarted bool
	// Ready is the pod's condition.
	Ready bool
	// Gate is how far the pod is behind the readiness gate mica.gpu/serving, GateReason the reason
	// of the gate's condition.
	Gate       Gate
	GateReason string
	// Revision tells pods of one template from those of others; empty where nothing does.
	Revision string
	// Pending counts the pod's claims that are not allocated, as Index.Pending does.
	Pending int
	// Devices are those of our driver that its claims hold, in the order of its claims and
	// of their requests; those of admin access are not held. Pods that share a claim have the
	// same devices.
	Devices []Device
	// LoadingSince is when the pod got all its devices and a node; zero while it is Ready or a
	// standby, and where it holds none or waits for more.
	LoadingSince time.Time
}

// Gate is how far a pod is behind the readiness gate mica.gpu/serving.
type Gate int

const (
	// Ungated is a pod without the gate.
	Ungated Gate = iota
	// Closed is one that would not be Ready if the gate were open: it starts, or loads.
	Closed
	// Standby is one that nothing but the gate keeps from being Ready.
	Standby
	// Open is one whose gate is open.
	Open
)

// Device is a device, or a share of one, that a claim holds.
type Device struct {
	// Name is the device's in the pool.
	Pool, Name string
	// Claim is the UID of the claim that holds it, Class the DeviceClass that the claim asks for.
	Claim types.UID
	Class string
	// ShareID tells shares of one device apart; nil where the device is held alone.
	ShareID *types.UID
	// ConsumedCapacity is how much of each capacity the share is; nil where the device is held
	// alone.
	ConsumedCapacity map[resourceapi.QualifiedName]resource.Quantity
}

// Pending is of what claims are counted that wait for devices. A class counts in one namespace:
// what others wait for is nobody's to see.
type Pending struct {
	Namespace string
	// Workload is nil where Class counts.
	Workload *Ref
	// Class is a DeviceClass; empty where Workload counts.
	Class string
}
