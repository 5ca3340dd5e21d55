package ekssim

import (
	"encoding/json"
	"net/http"
)

// admin serves tests outside the process: GET /sim/groups/NAME, and POST with new instances.
func (s *Server) admin() {
	s.mux.HandleFunc("GET /sim/groups/{group}", func(w http.ResponseWriter, r *http.Request) {
		g, found := s.Group(r.PathValue("group"))
		if !found {
			http.NotFound(w, r)
			return
		}
		writeJSON(w, http.StatusOK, map[string]any{"desired": g.Desired, "instances": g.Instances})
	})
	s.mux.HandleFunc("POST /sim/groups/{group}", func(w http.ResponseWriter, r *http.Request) {
		var body struct {
			Instances map[string]string `json:"instances"`
		}
		if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 1<<20)).Decode(&body); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		if !s.Change(r.PathValue("group"), func(g *Group) { g.join(body.Instances) }) {
			http.NotFound(w, r)
			return
		}
		w.WriteHeader(http.StatusNoContent)
	})
}

// join replaces the instances. Those that terminate go on terminating.
func (g *Group) join(instances map[string]string) {
	for id := range instances {
		if g.Instances[id] == terminating {
			instances[id] = terminating
		}
	}
	g.Instances = instances
}
