package scaleout

import (
	"slices"

	"github.com/mica-gpu/mica/pkg/scaleout/fit"
)

// planner is a plan in the making.
type planner struct {
	cluster *fit.Cluster
	claims  claims
	// groups are by name, whatever their order in the snapshot.
	groups []*group
	// live hosts are by name. used are those coming that pods were put on, and those opened, in
	// that order, without those opened in groups that nobody makes grow, which are advised. idle
	// are the others coming, by group, nil for none.
	live, used, advised []*host
	idle                map[*group][]*host
	reserved            []reserve
	// budgets are by name.
	budgets []*budget
	// replicas are those that room is counted for, distinct the same without those alike.
	replicas []Replica
	distinct []*replica
	// order has the pods that were put on hosts, as they were.
	order []placed
	// waiting are the kinds of pods that wait.
	waiting  map[string]bool
	fillings map[emptied]*filling
	// rests are what is free of machines.
	rests map[*fit.Machine]int
}

// newPlanner reads the snapshot: first all that is to be placed, and then what it is placed on,
// which fit tells apart by what is asked of it.
func newPlanner(s Snapshot) (*planner, []*kind) {
	pods := slices.Clone(s.Pending)
	for _, node := range s.Nodes {
		pods = append(pods, node.Pods...)
	}
	for _, group := range s.Groups {
		pods = append(pods, group.Pods...)
	}
	for i := range s.Replicas {
		if pod := s.Replicas[i].Pod; pod != nil {
			pods = append(pods, pod)
		}
		for _, member := range s.Replicas[i].Gang {
			pods = append(pods, member.Pod)
		}
	}
	p := &planner{
		cluster:  fit.New(fit.Facts{Classes: s.Classes, Claims: s.Claims, Slices: s.Slices, Pods: pods, Selectors: s.Selectors}),
		claims:   newClaims(s),
		fillings: map[emptied]*filling{},
		rests:    map[*fit.Machine]int{},
		idle:     map[*group][]*host{},
		budgets:  readBudgets(s.Budgets),
	}
	kinds := p.kinds(s)
	p.waiting = map[string]bool{}
	for _, k := range kinds {
		p.waiting[k.id] = true
	}
	p.reserved = p.reserves(s.Headroom)
	p.replicas, p.distinct = s.Replicas, p.readReplicas(s.Replicas)
	p.groups = p.readGroups(s.Groups)
	p.readHosts(s)
	p.chargeHosts(s)
	return p, kinds
}
