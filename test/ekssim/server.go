// Package ekssim is EKS as far as managed node groups change their size, and EC2 Auto Scaling
// behind it: an HTTP server that speaks their wire formats to AWS's own client, with their
// faults. It has no machines; a hook tells when the desired size of a group has changed. What it
// does not know of them it refuses.
package ekssim

import (
	"net/http"
	"slices"
	"sync"
	"time"
)

// Options of a server.
type Options struct {
	// Cluster is the one whose groups it has.
	Cluster string
	// UpdateTakes is how long an update is in progress. Updates end when somebody asks, or
	// at Settle.
	UpdateTakes time.Duration
	// Now is the clock; nil: the real one.
	Now func() time.Time
	// Resized is called when the desired size of a group has changed, one call at a time,
	// before the answer to the call that found it. It may not call the server. May be nil.
	Resized func(group string, from, to int)
}

// Server is a http.Handler.
type Server struct {
	options Options
	mux     *http.ServeMux
	// resized is held while the hook runs, so that its calls are in order.
	resized sync.Mutex

	mu     sync.Mutex
	groups map[string]*group
	faults []Fault
	calls  []Call
}

// Call is one that the server has answered, or not.
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

// Group is a group as it is now; false where there is none of that name.
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

// Change changes a group behind the back of who uses EKS: by a person, or Cluster
// Autoscaler. The hook is told of a new desired size.
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

// Inject adds a fault; faults for the same operation come one after the other.
func (s *Server) Inject(f Fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults = append(s.faults, f)
}

// ClearFaults lets calls go through again.
func (s *Server) ClearFaults() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults = nil
}

// FailNextUpdate lets the group's next update that ends fail.
func (s *Server) FailNextUpdate(name string, errors ...UpdateError) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if g := s.groups[name]; g != nil {
		g.failNext = append(g.failNext, errors)
	}
}

// Calls are all so far.
func (s *Server) Calls() []Call {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.calls)
}

// Updates is how many updates of a group were begun.
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
	for _, c := range s.due() {
		if s.options.Resized != nil {
			s.options.Resized(c.group, c.from, c.to)
		}
	}
}

func (s *Server) due() []desiredChange {
	s.mu.Lock()
	defer s.mu.Unlock()
	var changes []desiredChange
	for _, name := range s.names() {
		if c := s.groups[name].settle(s.options.Now(), s.options.UpdateTakes); c != nil {
			changes = append(changes, *c)
		}
	}
	return changes
}

// names of the groups, sorted; the lock is held.
func (s *Server) names() []string {
	names := make([]string, 0, len(s.groups))
	for name := range s.groups {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}
