package ekssim

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"regexp"
	"strconv"
	"time"
)

// handler answers a call: a body, or a fault.
type handler func(*http.Request) (any, *fault)

// signature is AWS's Signature Version 4 for a service. It is not verified.
var signature = regexp.MustCompile(`^AWS4-HMAC-SHA256 Credential=[^/]+/\d{8}/[a-z0-9-]+/([a-z0-9]+)/aws4_request, SignedHeaders=[^,]*\bhost\b[^,]*, Signature=[0-9a-f]{64}$`)

// signed reports whether a request is signed for a service.
func signed(service string, r *http.Request) bool {
	match := signature.FindStringSubmatch(r.Header.Get("Authorization"))
	return match != nil && match[1] == service && r.Header.Get("X-Amz-Date") != ""
}

// route checks faults, signature and cluster before the handler.
func (s *Server) route(pattern, operation string, h handler) {
	s.mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
		injected := s.take(operation)
		if !wait(r.Context(), injected.Latency) {
			return
		}
		if injected.Status != 0 {
			s.answer(w, r, operation, nil, &fault{status: injected.Status, code: injected.Code, message: injected.Message})
			return
		}
		s.Settle()
		body, f := s.call(r, h)
		if injected.Hangup {
			s.note(operation, nodegroupOf(r), 0)
			panic(http.ErrAbortHandler) // net/http's way to close the connection without an answer
		}
		s.answer(w, r, operation, body, f)
	})
}

// wait reports whether the client waited as well.
func wait(ctx context.Context, latency time.Duration) bool {
	if latency == 0 {
		return true
	}
	timer := time.NewTimer(latency)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

func (s *Server) call(r *http.Request, h handler) (any, *fault) {
	if !signed("eks", r) {
		return nil, &fault{status: http.StatusForbidden, code: "MissingAuthenticationTokenException", message: "Missing Authentication Token"}
	}
	if cluster := r.PathValue("cluster"); cluster != s.options.Cluster {
		return nil, notFound("No cluster found for name: %s.", cluster)
	}
	return h(r)
}

func (s *Server) answer(w http.ResponseWriter, r *http.Request, operation string, body any, f *fault) {
	if f != nil {
		s.note(operation, nodegroupOf(r), f.status)
		f.write(w)
		return
	}
	s.note(operation, nodegroupOf(r), http.StatusOK)
	writeJSON(w, http.StatusOK, body)
}

// nodegroupOf is the node group that a request to EKS names.
func nodegroupOf(r *http.Request) string {
	if name := r.PathValue("group"); name != "" {
		return name
	}
	return r.URL.Query().Get("nodegroupName")
}

func (s *Server) note(operation, group string, status int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls = append(s.calls, Call{Operation: operation, Group: group, Status: status})
}

// list pages by the name of the last listed group.
func (s *Server) list(r *http.Request) (any, *fault) {
	size := 100
	if text := r.URL.Query().Get("maxResults"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 || n > 100 {
			return nil, invalidParameter("maxResults has to be from 1 to 100 and is %q", text)
		}
		size = n
	}
	after := r.URL.Query().Get("nextToken")
	s.mu.Lock()
	defer s.mu.Unlock()
	page := []string{}
	for _, name := range s.names() {
		if name <= after || s.groups[name].SelfManaged {
			continue
		}
		if len(page) == size {
			return map[string]any{"nodegroups": page, "nextToken": page[size-1]}, nil
		}
		page = append(page, name)
	}
	return map[string]any{"nodegroups": page}, nil
}

func (s *Server) describe(r *http.Request) (any, *fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	g, f := s.find(r.PathValue("group"))
	if f != nil {
		return nil, f
	}
	return map[string]any{"nodegroup": g.wire(s.options.Cluster)}, nil
}

func (s *Server) update(r *http.Request) (any, *fault) {
	data, err := io.ReadAll(io.LimitReader(r.Body, 1<<20))
	if err != nil {
		return nil, invalidParameter("the body cannot be read: %v", err)
	}
	var request updateRequest
	if err := json.Unmarshal(data, &request); err != nil {
		return nil, invalidParameter("the body is no update: %v", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	g, f := s.find(r.PathValue("group"))
	if f != nil {
		return nil, f
	}
	u, f := g.begin(request, s.options.Now())
	if f != nil {
		return nil, f
	}
	return map[string]any{"update": u.wire()}, nil
}

func (s *Server) describeUpdate(r *http.Request) (any, *fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	g, f := s.find(r.URL.Query().Get("nodegroupName"))
	if f != nil {
		return nil, f
	}
	for _, u := range g.updates {
		if u.id == r.PathValue("update") {
			return map[string]any{"update": u.wire()}, nil
		}
	}
	return nil, notFound("No update found for ID: %s", r.PathValue("update"))
}

// find expects the caller to hold the lock.
func (s *Server) find(name string) (*group, *fault) {
	if g := s.groups[name]; g != nil && !g.SelfManaged {
		return g, nil
	}
	return nil, notFound("No node group found for name: %s.", name)
}

// wire is the group in EKS's format.
func (g *group) wire(cluster string) map[string]any {
	status := g.Status
	if g.running() != nil {
		status = updating
	}
	v := map[string]any{
		"nodegroupName": g.Name,
		"clusterName":   cluster,
		"status":        status,
		"scalingConfig": map[string]int{"minSize": g.Min, "maxSize": g.Max, "desiredSize": g.Desired},
		"health":        map[string]any{"issues": append([]Issue{}, g.Issues...)},
		"resources":     map[string]any{"autoScalingGroups": []map[string]string{{"name": g.scalingName()}}},
	}
	add(v, "instanceTypes", g.InstanceTypes, len(g.InstanceTypes) > 0 && g.LaunchTemplate == "")
	add(v, "capacityType", g.CapacityType, g.CapacityType != "")
	add(v, "amiType", g.AMIType, g.AMIType != "")
	add(v, "labels", g.Labels, len(g.Labels) > 0)
	add(v, "taints", g.Taints, len(g.Taints) > 0)
	return v
}

func add(to map[string]any, key string, value any, there bool) {
	if there {
		to[key] = value
	}
}

// wire is the update in EKS's format.
func (u *update) wire() map[string]any {
	return map[string]any{
		"id":     u.id,
		"status": u.status,
		"type":   "ConfigUpdate",
		"errors": append([]UpdateError{}, u.errors...),
	}
}
