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

// Ref names a workload.
type Ref struct {
	// Kind is one of Kinds.
	Kind, Namespace, Name string
}

// String is Kind/name, without the namespace.
func (r Ref) String() string { return r.Kind + "/" + r.Name }

// State is a workload at one moment. What is in it is a cache's own: it is not changed.
type State struct {
	Ref Ref
	// UID of the workload's object.
	UID types.UID
	// Template is what its next pod is made of, in its namespace.
	Template *corev1.Pod
	// Pods are those that have not ended and are not being deleted, by name.
	Pods []Pod
}

// Pod is a pod of a workload.
type Pod struct {
	UID  types.UID
	Name string
	// Node is empty until the scheduler has put the pod on one.
	Node string
	// Ready is the pod's condition.
	Ready bool
	// Pending counts the pod's claims that are not allocated.
	Pending int
	// Devices are those of our driver that its claims hold.
	Devices []Device
	// LoadingSince is when the pod got all its devices and a node; zero once it is Ready, or
	// where it holds none.
	LoadingSince time.Time
}

// Device is a device, or a share of one, that a claim holds.
type Device struct {
	// Node is the one whose pool the device is of, Name the device's in the pool.
	Node, Pool, Name string
	// Claim is the UID of the claim that holds it.
	Claim types.UID
	// ShareID tells shares of one device apart; nil where the device is held alone.
	ShareID *types.UID
	// ConsumedCapacity is how much of each capacity the share is; nil where the device is held
	// alone.
	ConsumedCapacity map[resourceapi.QualifiedName]resource.Quantity
}

// Pending is of what claims are counted that wait for devices.
type Pending struct {
	Namespace string
	// Workload is nil where Class counts.
	Workload *Ref
	// Class is a DeviceClass; empty where Workload counts.
	Class string
}
