package scaleout

import (
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
)

// Replica is a pod that somebody might add. The plan counts for how many of them there is room
// once all pending pods are placed; it never grows a group for one.
//
// One thing a replica shares with a pod that waits: labels of pods that its required affinity to
// others names tell kinds of pods apart.
type Replica struct {
	// ID names the replica's Supply. Two may have the same.
	ID string
	// Pod as it would be created, with a namespace and without a node. Its claims are made of
	// the snapshot's templates; a claim that it names itself is shared by all pods like it.
	// Its priority and its scheduling gates do not count. Nil where Claim or Gang is not.
	Pod *corev1.Pod
	// Gang are the pods of a replica that serves only with all of them: there is room for all, or
	// for none. Each is as Pod.
	Gang []Member
	// Claim is that of a pod that wants nothing but the claim's devices, and tolerates what
	// such a pod may: every taint of a node but those of Kubernetes itself.
	Claim *resourceapi.ResourceClaimSpec
}

// Member is a number of pods of a gang that are alike.
type Member struct {
	Pod   *corev1.Pod
	Count int
}

// Supply is for how many more replicas there is room. Each replica is counted as if it
// were the only one: two of them may count the same devices.
type Supply struct {
	ID string
	// Free are on live nodes. Kept is how many of them headroom keeps, which is part of Free: a
	// pod gets those, too.
	Free, Kept int
	// Coming are on nodes that are starting, that were asked for, or that this plan asks for.
	Coming int
	// Provisionable are on nodes by which groups may grow beyond that, up to MostRoom. Groups
	// that nobody makes grow have none.
	Provisionable int
	// Why is a sentence that says what ends the growth. It tells of the first few groups only.
	Why string
	// Problem is why the replica cannot be planned with at all, or was too much work to count: a
	// sentence for its owner. All numbers are 0 then, and mean nothing.
	Problem string
}

// MaxSupply is where counting ends: a group without a maximum has room without an end.
const MaxSupply = 10000

// Total is for how many more pods there is, or can be, room.
func (r Supply) Total() int { return min(r.Free+r.Coming+r.Provisionable, MaxSupply) }
