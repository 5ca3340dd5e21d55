// Package workload reports what the pods of a workload hold and wait for: claims, their devices, and
// whether a pod with all its devices still loads. It reads the controller's cache. It writes nothing
// and does not depend on KEDA.
package workload

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/mica-gpu/mica/pkg/devices"
)

// State is a snapshot of a workload. It refers to objects of the cache: do not modify it.
type State struct {
	Ref Ref
	// APIVersion and UID are those of the workload's object.
	APIVersion string
	UID        types.UID
	// Replicas is the desired number; a Job has none.
	Replicas int32
	// Template is the next pod, in the workload's namespace, without what admission adds, such as the
	// priority's value and overhead.
	Template *corev1.Pod
	// Gang has the pods of a replica that serves only when complete, Template's first; nil if a replica is
	// one pod.
	Gang []Member
	// Claims reports whether pods claim devices of any driver, or request extended resources of a
	// DeviceClass.
	Claims bool
	Gated  bool
	// ByCost reports whether the controller of the pods honors deletion costs, as ReplicaSets do.
	ByCost bool
	// Pods are those that have neither ended nor are being deleted, by name.
	Pods []Pod
}

// Member is a number of equal pods of a gang.
type Member struct {
	// Pod is as State.Template.
	Pod   *corev1.Pod
	Count int
	// Gated is whether the pods have the readiness gate mica.gpu/serving.
	Gated bool
}

// Size is the number of pods per replica.
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

// Replicated groups the pods by replica. A gang may be incomplete.
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
	// Replica identifies the pod's replica of a gang. Follows is true for all its pods but the leader.
	Replica string
	Follows bool
	// Node is empty until the pod is scheduled.
	Node string
	// Unstarted: kubelet has not created the pod's sandbox. Nothing uses its devices, and the plugin may
	// not know of them yet.
	Unstarted bool
	Ready     bool
	// Gate is the state of the readiness gate mica.gpu/serving, GateReason its condition's reason.
	Gate       Gate
	GateReason string
	// Revision distinguishes pod templates of a workload; empty if unknown.
	Revision string
	// Pending counts the pod's claims that are not allocated, as Index.Pending does.
	Pending int
	// Devices are this driver's in the pod's claims, in the order of claims and requests, without admin
	// access. Pods that share a claim have the same devices.
	Devices []Device
	// LoadingSince is when the pod got its node and all its devices; zero while it is Ready, a standby,
	// has no devices, or waits for more.
	LoadingSince time.Time
}

// Gate is the state of the readiness gate mica.gpu/serving.
type Gate int

const (
	// Ungated: the pod has no such gate.
	Ungated Gate = iota
	// Closed: the pod would not be Ready with an open gate; it starts or loads.
	Closed
	// Standby: only the gate keeps the pod from being Ready.
	Standby
	// Open: the gate is open.
	Open
)

// Device is a device, or a share of one, that a claim holds.
type Device struct {
	devices.Holding
	// Claim is the UID of the claim, Class the requested DeviceClass.
	Claim types.UID
	Class string
}

// Pending selects claims to count. A class counts in one namespace only: other namespaces are not the
// caller's to see.
type Pending struct {
	Namespace string
	// Workload is nil if Class is set.
	Workload *Ref
	// Class is a DeviceClass; empty if Workload is set.
	Class string
}
