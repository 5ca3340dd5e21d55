package usage

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Path is where the controller serves usage for `kubectl gpu`, on its port for metrics.
const Path = "/usage"

const (
	// sweepTimeout bounds an answer; nodes that are not polled by then have an error in it.
	sweepTimeout = 20 * time.Second
	// maxNodes bounds the nodes in a request.
	maxNodes = 1000
)

// Fleet is the usage of devices by node name.
type Fleet struct {
	Nodes map[string]NodeUsage `json:"nodes"`
}

// NodeUsage is the report of a node's plugin.
type NodeUsage struct {
	// Devices of prepared claims, by name.
	Devices map[string]Reading `json:"devices,omitempty"`
	// Error says why there are no devices.
	Error string `json:"error,omitempty"`
}

// server polls plugins on request only.
type server struct {
	cluster cluster
	ask     func(ctx context.Context, at target) (map[string]Reading, error)
	// turns bounds concurrent polls over all requests.
	turns chan struct{}
}

// NewServer answers GET with a Fleet: of the nodes in the parameters named node, or of all nodes with
// a plugin. It reveals no claims and no pods, and so needs no authorization.
func NewServer(o Options) http.Handler {
	plugins := newHTTPClient()
	return &server{cluster: o.cluster(), turns: make(chan struct{}, atOnce), ask: func(ctx context.Context, at target) (map[string]Reading, error) {
		return get(ctx, plugins, at)
	}}
}

// ServeHTTP implements http.Handler.
func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	names := r.URL.Query()["node"]
	switch {
	case r.Method != http.MethodGet:
		http.Error(w, "use GET", http.StatusMethodNotAllowed)
		return
	case len(names) > maxNodes:
		http.Error(w, fmt.Sprintf("%d nodes in one request: name at most %d, or none for all", len(names), maxNodes), http.StatusBadRequest)
		return
	}
	ctx, stop := context.WithTimeout(r.Context(), sweepTimeout)
	defer stop()
	plugins, err := s.plugins(ctx)
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	if len(names) == 0 {
		for name := range plugins {
			names = append(names, name)
		}
	}
	w.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(w).Encode(s.sweep(ctx, names, plugins)); err != nil {
		klog.FromContext(ctx).V(4).Info("Client closed the connection before the answer", "err", err)
	}
}

// plugins lists the plugin's pods by node.
func (s *server) plugins(ctx context.Context) (map[string][]corev1.Pod, error) {
	var pods corev1.PodList
	err := s.cluster.reader.List(ctx, &pods, client.InNamespace(s.cluster.namespace), client.MatchingLabelsSelector{Selector: s.cluster.plugin}, client.UnsafeDisableDeepCopy)
	if err != nil {
		return nil, fmt.Errorf("list the plugin's pods: %w", err)
	}
	byNode := map[string][]corev1.Pod{}
	for _, pod := range pods.Items {
		if pod.Spec.NodeName != "" {
			byNode[pod.Spec.NodeName] = append(byNode[pod.Spec.NodeName], pod)
		}
	}
	return byNode, nil
}

// sweep polls the plugins of the nodes.
func (s *server) sweep(ctx context.Context, names []string, plugins map[string][]corev1.Pod) Fleet {
	fleet := Fleet{Nodes: make(map[string]NodeUsage, len(names))}
	var lock sync.Mutex
	var asking sync.WaitGroup
	for _, name := range names {
		select {
		case s.turns <- struct{}{}:
		case <-ctx.Done():
			lock.Lock()
			fleet.Nodes[name] = NodeUsage{Error: fmt.Sprintf("not polled within %s: request fewer nodes", sweepTimeout)}
			lock.Unlock()
			continue
		}
		asking.Go(func() {
			defer func() { <-s.turns }()
			node := s.node(ctx, plugins[name])
			lock.Lock()
			defer lock.Unlock()
			fleet.Nodes[name] = node
		})
	}
	asking.Wait()
	return fleet
}

func (s *server) node(ctx context.Context, pods []corev1.Pod) NodeUsage {
	at, err := s.cluster.targetOf(pods)
	if err != nil {
		return NodeUsage{Error: err.Error()}
	}
	readings, err := s.ask(ctx, at)
	if err != nil {
		return NodeUsage{Error: err.Error()}
	}
	return NodeUsage{Devices: readings}
}
