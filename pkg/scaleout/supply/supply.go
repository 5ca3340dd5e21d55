// Package supply counts for how many more replicas there is room. It is values in and values out: it never
// sees a plan. Package scaleout answers what nodes and groups take, and puts pods on a plan of its own.
package supply

import "context"

// Supply is for how many more replicas there is room. Each replica is counted as if it were the only one: two
// of them may count the same devices.
type Supply struct {
	ID string
	// Free are on live nodes, including those that headroom keeps: pods get those, too.
	Free int
	// Coming are on nodes that are starting, were asked for, or that the plan asks for.
	Coming int
	// Provisionable are on nodes by which groups may grow beyond that, up to Max. Groups that only their operator
	// scales have none.
	Provisionable int
	// Why is a sentence that says what ends the growth. It names the first few groups only.
	Why string
	// Problem is why the replica cannot be planned, or was too much work to count: a sentence for its owner. All
	// numbers are 0 then.
	Problem string
}

// Max is where counting ends: a group without a maximum has room without end.
const Max = 10000

// Total is for how many more replicas there is, or can be, room.
func (s Supply) Total() int { return min(s.Free+s.Coming+s.Provisionable, Max) }

// of makes replicas of so many pods each, of room for pods, from live nodes first.
func (s Supply) of(pods int) Supply {
	free, here, all := s.Free/pods, (s.Free+s.Coming)/pods, s.Total()/pods
	s.Free, s.Coming, s.Provisionable = free, here-free, all-here
	return s
}

// Add adds room on a kind of nodes.
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
	// Coming nodes are starting, or were asked for, or the plan asks for them.
	Coming
	// New nodes are beyond the plan.
	New
)

// Sample is a replica for which room is counted.
type Sample struct {
	// Problem is why it cannot be counted; empty: it can.
	Problem string
	// Members are its pods: several only for a replica that needs all of them.
	Members []Member
	// Trial begins a trial of pods.
	Trial func() Trial
}

// Member is a number of pods of a replica that are alike.
type Member struct {
	Pods  Pods
	Count int
}

// Trial puts pods on nodes as the plan would, each after those before it. The plan does not change.
type Trial interface {
	// Put puts up to n pods somewhere, and counts where. With less than n, Why may say what ends it.
	Put(ctx context.Context, pods Pods, n int) (Supply, error)
}

// Pods are any number of pods that are alike.
type Pods interface {
	// Sharers are how many more pods may share the claim that they name; with no name, they share none.
	Sharers() (claim string, most int)
	// Together is the room on the one node where pods that share a claim have to be; false: they may be on several.
	Together(context.Context) (Supply, bool, error)
	// Room is what hosts and groups take.
	Room(context.Context) (Room, error)
	// Groups is what the pods find in each group.
	Groups(context.Context) []Group
}

// Room is what hosts take of pods, each as if it alone took any.
type Room struct {
	Hosts []Hosts
	// Entangled reports that a pod on one host leaves other hosts less room.
	Entangled bool
	// Aborts is why the scheduler gives up on the pods, whatever nodes there are; usually empty.
	Aborts string
}

// Hosts are hosts that are alike.
type Hosts struct {
	At Place
	// Number of the hosts, and Pods on each.
	Number, Pods int
}

// Group is what pods find in a node group.
type Group struct {
	// Growth is by how many nodes it may grow.
	Growth int
	// Fits reports whether a pod fits on an empty node, as far as that is known.
	Fits bool
	// Why says what ends the growth, with the group's name; Err is why that is not known.
	Why string
	Err error
}
