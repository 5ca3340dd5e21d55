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

// Path is where the controller serves what it knows for `kubectl gpu top`, on its port of metrics.
const Path = "/usage"

const (
	// sweepTimeout bounds an answer: nodes that were not asked until then are answered with an error.
	sweepTimeout = 20 * time.Second
	// maxNodes bounds the nodes that a question names.
	maxNodes = 1000
)

// Fleet is how busy the devices of nodes are, by the nodes' names, as it is served.
type Fleet struct {
	Nodes map[string]NodeUsage `json:"nodes"`
}

// NodeUsage is what a node's plugin tells.
type NodeUsage struct {
	// Devices are those of prepared claims, by their names.
	Devices map[string]DeviceUsage `json:"devices,omitempty"`
	// Error is a sentence that says why there are none.
	Error string `json:"error,omitempty"`
}

// DeviceUsage is a Reading as it is served. What a device does not tell is absent.
type DeviceUsage struct {
	Utilization      *float64  `json:"utilization,omitempty"`
	MemoryUsedBytes  *float64  `json:"memoryUsedBytes,omitempty"`
	MemoryTotalBytes *float64  `json:"memoryTotalBytes,omitempty"`
	Sampled          time.Time `json:"sampled"`
}

// server answers by asking plugins when it is asked: nobody's question leaves anything running.
type server struct {
	cluster cluster
	ask     func(ctx context.Context, at target) (map[string]Reading, error)
	// turns are as many as plugins are asked at one time, for all questions together.
	turns chan struct{}
}

// NewServer answers GET with a Fleet: of the nodes that parameters named node name, or of all that
// have a plugin. It tells no claims and no pods, and so needs no identity of who asks.
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
		http.Error(w, "only GET is answered", http.StatusMethodNotAllowed)
		return
	case len(names) > maxNodes:
		http.Error(w, fmt.Sprintf("%d nodes are named, and at most %d can be: name none for all", len(names), maxNodes), http.StatusBadRequest)
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
		klog.FromContext(ctx).V(4).Info("Who asked how busy devices are did not wait for the answer", "err", err)
	}
}

// plugins are the pods of the plugin by their nodes.
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

// sweep asks the plugins of the nodes.
func (s *server) sweep(ctx context.Context, names []string, plugins map[string][]corev1.Pod) Fleet {
	fleet := Fleet{Nodes: make(map[string]NodeUsage, len(names))}
	var lock sync.Mutex
	var asking sync.WaitGroup
	for _, name := range names {
		select {
		case s.turns <- struct{}{}:
		case <-ctx.Done():
			lock.Lock()
			fleet.Nodes[name] = NodeUsage{Error: fmt.Sprintf("it was not asked within %s: ask for fewer nodes", sweepTimeout)}
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
	node := NodeUsage{Devices: make(map[string]DeviceUsage, len(readings))}
	for name, r := range readings {
		node.Devices[name] = DeviceUsage{Utilization: r.Utilization, MemoryUsedBytes: r.MemoryUsed, MemoryTotalBytes: r.MemoryTotal, Sampled: r.At}
	}
	return node
}
