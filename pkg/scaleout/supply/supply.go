// Package supply counts the replicas for which there is room. It never sees a plan: package scaleout says how many pods
// fit on hosts and in groups, and places pods on a plan of its own.
package supply

import "context"

// Supply is the number of replicas for which there is room. Each kind of replica is counted as if it were the only one:
// two of them may count the same devices.
type Supply struct {
	ID string
	// Free are on live nodes. Devices that headroom keeps free count, because pods get them.
	Free int
	// Coming are on nodes that are starting, were requested, or that the plan requests.
	Coming int
	// Provisionable are on nodes by which groups may grow beyond that, up to Max. Groups that only an administrator
	// scales have none.
	Provisionable int
	// Why says in a sentence what ends the room. It names the first few groups only.
	Why string
	// Problem says in a sentence for the replica's owner why it cannot be planned, or that counting took too long. All
	// numbers are 0 then.
	Problem string
}

// Max limits counting: a group without a maximum has room without end.
const Max = 10000

// Total is the number of replicas for which there is or can be room.
func (s Supply) Total() int { return min(s.Free+s.Coming+s.Provisionable, Max) }

// of turns room for pods into room for replicas of several pods. Replicas take live nodes first.
func (s Supply) of(pods int) Supply {
	free, here, all := s.Free/pods, (s.Free+s.Coming)/pods, s.Total()/pods
	s.Free, s.Coming, s.Provisionable = free, here-free, all-here
	return s
}

// Add adds room for pods on a kind of nodes.
func (s *Supply) Add(at Place, pods int) {
	n := s.number(at)
	*n = min(*n+pods, Max)
}

func (s *Supply) number(at Place) *int {
	return [...]*int{Live: &s.Free, Coming: &s.Coming, New: &s.Provisionable}[at]
}

// Place is a kind of nodes.
type Place int

// Places, the nearest first.
const (
	Live Place = iota
	// Coming nodes are starting, were requested, or the plan requests them.
	Coming
	// New nodes are beyond the plan.
	New
)

// Sample is a replica to count room for.
type Sample struct {
	// Problem is why it cannot be counted; empty: it can.
	Problem string
	// Members are its pods. A replica with several needs all of them.
	Members []Member
	// Trial begins a trial.
	Trial func() Trial
}

// Member is a set of pods of a replica that are alike.
type Member struct {
	Pods  Pods
	Count int
}

// Trial places pods as the plan would, one after the other. The plan does not change.
type Trial interface {
	// Put places up to n pods, and counts them. If there are fewer than n, Why may say what ends the room.
	Put(ctx context.Context, pods Pods, n int) (Supply, error)
}

// Pods are any number of pods that are alike.
type Pods interface {
	// Sharers is the number of further pods that may share the claim that they name. Without a name, they share no
	// claim.
	Sharers() (claim string, most int)
	// Together is the room on the one node on which pods that share a claim have to be; false: they may be on several.
	Together(context.Context) (Supply, bool, error)
	// Room is the room on hosts and in groups.
	Room(context.Context) (Room, error)
	// Groups reports on each node group.
	Groups(context.Context) []Group
}

// Room is the number of pods that fit on hosts, on each as if it were the only one with pods.
type Room struct {
	Hosts []Hosts
	// Entangled reports whether a pod on one host leaves less room on others.
	Entangled bool
	// Aborts says why the scheduler gives up on the pods on all nodes; usually empty.
	Aborts string
}

// Hosts are hosts that are alike.
type Hosts struct {
	At Place
	// Number is that of the hosts, and Pods that of the pods on each.
	Number, Pods int
}

// Group is the room for pods in a node group.
type Group struct {
	// Growth is the number of nodes by which it may grow.
	Growth int
	// Fits reports whether a pod fits on an empty node, as far as that is known.
	Fits bool
	// Why says what ends the growth, with the group's name. Err is why that is unknown.
	Why string
	Err error
}
