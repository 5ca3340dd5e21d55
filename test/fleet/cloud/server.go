package cloud

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	"k8s.io/klog/v2"
)

// maxBody bounds a request.
const maxBody = 1 << 20

// Handler serves:
//
//	GET    /groups                 list the groups with their states
//	PUT    /groups/NAME            add or change a group
//	DELETE /groups/NAME            remove a group with its machines
//	PUT    /groups/NAME/desired    set the desired size
//	DELETE /instances/ID           terminate a machine
func (c *Cloud) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /groups", func(w http.ResponseWriter, r *http.Request) { answer(w, r, c.States(), nil) })
	mux.HandleFunc("PUT /groups/{name}", func(w http.ResponseWriter, r *http.Request) {
		var g Group
		err := read(w, r, &g)
		if err == nil && g.Name != r.PathValue("name") {
			err = fmt.Errorf("the path names node group %q and the body %q: give one name", r.PathValue("name"), g.Name)
		}
		if err == nil {
			err = c.Put(g)
		}
		answer(w, r, struct{}{}, err)
	})
	mux.HandleFunc("DELETE /groups/{name}", func(w http.ResponseWriter, r *http.Request) {
		answer(w, r, struct{}{}, c.Remove(r.Context(), r.PathValue("name")))
	})
	mux.HandleFunc("PUT /groups/{name}/desired", func(w http.ResponseWriter, r *http.Request) {
		var size size
		err := read(w, r, &size)
		if err == nil {
			err = c.SetDesired(r.PathValue("name"), size.Desired)
		}
		answer(w, r, struct{}{}, err)
	})
	mux.HandleFunc("DELETE /instances/{id}", func(w http.ResponseWriter, r *http.Request) {
		answer(w, r, struct{}{}, c.Terminate(r.Context(), r.PathValue("id")))
	})
	return mux
}

// size is the body of a desired size.
type size struct {
	Desired int `json:"desired"`
}

// problem is the body of an error.
type problem struct {
	Error string `json:"error"`
}

func read(w http.ResponseWriter, r *http.Request, into any) error {
	decoder := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(into); err != nil {
		return fmt.Errorf("read the request: %w", err)
	}
	return nil
}

func answer(w http.ResponseWriter, r *http.Request, body any, err error) {
	w.Header().Set("Content-Type", "application/json")
	switch {
	case errors.Is(err, ErrNoGroup), errors.Is(err, ErrNoInstance):
		w.WriteHeader(http.StatusNotFound)
	case err != nil:
		w.WriteHeader(http.StatusBadRequest)
	}
	if err != nil {
		body = problem{err.Error()}
	}
	if err := json.NewEncoder(w).Encode(body); err != nil {
		klog.FromContext(r.Context()).V(2).Info("Cannot send a response", "err", err)
	}
}
