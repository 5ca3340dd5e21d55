package ekssim

import (
	"encoding/json"
	"net/http"
)

// resize is what a client of /sim may change.
type resize struct {
	Desired *int `json:"desired"`
	Max     *int `json:"max"`
	// NoCapacity is as in Group; empty lets machines start again.
	NoCapacity *string `json:"noCapacity"`
	// Instances are lifecycle states by instance ID, and replace those that there are, except
	// that what terminates goes on.
	Instances map[string]string `json:"instances"`
	// FailNext are the errors of the next update that ends.
	FailNext []UpdateError `json:"failNext"`
}

// admin adds what a test outside the process reads and sets:
//
//	GET    /sim/groups/NAME   the group
//	POST   /sim/groups/NAME   change desired, max, noCapacity, instances, failNext
//	GET    /sim/calls         the calls so far
//	POST   /sim/faults        add a fault
//	DELETE /sim/faults        forget all faults
func (s *Server) admin() {
	s.mux.HandleFunc("GET /sim/groups/{group}", s.showGroup)
	s.mux.HandleFunc("POST /sim/groups/{group}", s.changeGroup)
	s.mux.HandleFunc("GET /sim/calls", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, http.StatusOK, s.Calls())
	})
	s.mux.HandleFunc("POST /sim/faults", func(w http.ResponseWriter, r *http.Request) {
		var f Fault
		if !read(w, r, &f) {
			return
		}
		s.Inject(f)
		w.WriteHeader(http.StatusNoContent)
	})
	s.mux.HandleFunc("DELETE /sim/faults", func(w http.ResponseWriter, _ *http.Request) {
		s.ClearFaults()
		w.WriteHeader(http.StatusNoContent)
	})
}

func (s *Server) showGroup(w http.ResponseWriter, r *http.Request) {
	name := r.PathValue("group")
	g, found := s.Group(name)
	if !found {
		http.Error(w, "no node group "+name, http.StatusNotFound)
		return
	}
	writeJSON(w, http.StatusOK, map[string]any{
		"name": g.Name, "min": g.Min, "max": g.Max, "desired": g.Desired,
		"warmPool": g.WarmPool, "instances": g.Instances, "issues": g.Issues, "updates": s.Updates(name),
	})
}

func (s *Server) changeGroup(w http.ResponseWriter, r *http.Request) {
	name := r.PathValue("group")
	var c resize
	if !read(w, r, &c) {
		return
	}
	found := s.Change(name, func(g *Group) {
		set(&g.Desired, c.Desired)
		set(&g.Max, c.Max)
		set(&g.NoCapacity, c.NoCapacity)
		g.join(c.Instances)
	})
	if !found {
		http.Error(w, "no node group "+name, http.StatusNotFound)
		return
	}
	if len(c.FailNext) > 0 {
		s.FailNextUpdate(name, c.FailNext...)
	}
	w.WriteHeader(http.StatusNoContent)
}

// join has the instances that are given, of which some may terminate already.
func (g *Group) join(instances map[string]string) {
	if instances == nil {
		return
	}
	for id := range instances {
		if g.Instances[id] == terminating {
			instances[id] = terminating
		}
	}
	g.Instances = instances
}

func read(w http.ResponseWriter, r *http.Request, into any) bool {
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 1<<20)).Decode(into); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return false
	}
	return true
}
