// Package ekssim simulates EKS's node groups and EC2 Auto Scaling for AWS's own clients: Mica's and Cluster Autoscaler's.
// It speaks their wire formats, with their faults, and refuses calls that it does not know. It has no machines; hooks
// report changed sizes.
package ekssim

import (
	"context"
	"maps"
	"net/http"
	"slices"
	"sync"
	"time"
)

// Options of a server.
type Options struct {
	// Cluster owns the groups.
	Cluster string
	// UpdateTakes is how long an update is in progress. Updates end at the next call, or at Settle.
	UpdateTakes time.Duration
	// Now is the clock. Nil: the real one.
	Now func() time.Time
	// Resized is called after a change of a group's desired size, one call at a time. It may not call the server. May be nil.
	Resized func(group string, from, to int)
	// Terminate ends an instance and makes its group smaller by one, instead of Resized. Nil: the server does it.
	Terminate func(ctx context.Context, instance string) error
}

// Server is a http.Handler.
type Server struct {
	options Options
	mux     *http.ServeMux
	// resized orders the calls of the hook.
	resized sync.Mutex

	mu     sync.Mutex
	groups map[string]*group
	faults []Fault
	calls  []Call
}

// Call is a call of the API. Status is 0 if it was not answered.
type Call struct {
	Operation string `json:"operation"`
	Group     string `json:"group,omitempty"`
	Status    int    `json:"status"`
}

// New makes a server without groups.
func New(o Options) *Server {
	if o.Now == nil {
		o.Now = time.Now
	}
	s := &Server{options: o, groups: map[string]*group{}, mux: http.NewServeMux()}
	s.route("GET /clusters/{cluster}/node-groups", "ListNodegroups", s.list)
	s.route("GET /clusters/{cluster}/node-groups/{group}", "DescribeNodegroup", s.describe)
	s.route("POST /clusters/{cluster}/node-groups/{group}/update-config", "UpdateNodegroupConfig", s.update)
	s.route("GET /clusters/{cluster}/updates/{update}", "DescribeUpdate", s.describeUpdate)
	s.scaling()
	s.admin()
	s.mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		(&fault{status: http.StatusNotFound, code: "UnknownOperationException", message: "the simulator does not know " + r.Method + " " + r.URL.Path}).write(w)
	})
	return s
}

// ServeHTTP answers.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.mux.ServeHTTP(w, r) }

// Add adds a group, or replaces the one of that name with all its updates.
func (s *Server) Add(g Group) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.groups[g.Name] = newGroup(g)
}

// Group returns a group by name.
func (s *Server) Group(name string) (Group, bool) {
	s.Settle()
	s.mu.Lock()
	defer s.mu.Unlock()
	g, found := s.groups[name]
	if !found {
		return Group{}, false
	}
	return newGroup(g.Group).Group, true
}

// Change changes a group as a person or Cluster Autoscaler does.
func (s *Server) Change(name string, change func(*Group)) bool {
	s.resized.Lock()
	defer s.resized.Unlock()
	s.mu.Lock()
	g, found := s.groups[name]
	if !found {
		s.mu.Unlock()
		return false
	}
	before := g.Desired
	change(&g.Group)
	after := g.Desired
	s.mu.Unlock()
	if before != after && s.options.Resized != nil {
		s.options.Resized(name, before, after)
	}
	return true
}

// Inject adds a fault. Faults for the same operation apply one after another.
func (s *Server) Inject(f Fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults = append(s.faults, f)
}

// FailNextUpdate makes the group's next update fail when it ends.
func (s *Server) FailNextUpdate(name string, errors ...UpdateError) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if g := s.groups[name]; g != nil {
		g.failNext = append(g.failNext, errors)
	}
}

// Calls are all calls so far.
func (s *Server) Calls() []Call {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.calls)
}

// Updates counts a group's updates.
func (s *Server) Updates(name string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if g := s.groups[name]; g != nil {
		return len(g.updates)
	}
	return 0
}

// Settle ends updates that are due, and calls the hook.
func (s *Server) Settle() {
	s.resized.Lock()
	defer s.resized.Unlock()
	s.mu.Lock()
	var calls []func()
	for _, name := range s.names() {
		g := s.groups[name]
		from := g.Desired
		if g.settle(s.options.Now(), s.options.UpdateTakes) && s.options.Resized != nil {
			to := g.Desired
			calls = append(calls, func() { s.options.Resized(name, from, to) })
		}
	}
	s.mu.Unlock()
	for _, call := range calls {
		call()
	}
}

// names of the groups, sorted. The caller holds the lock.
func (s *Server) names() []string {
	return slices.Sorted(maps.Keys(s.groups))
}
