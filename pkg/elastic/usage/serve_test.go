package usage

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
)

// serving answers for the plugin's pods that are there.
func serving(pods ...client.Object) *server {
	reader := fake.NewClientBuilder().WithObjects(pods...).Build()
	return NewServer(Options{Driver: testDriver, Reader: reader, Namespace: testNamespace, Plugin: testLabels.AsSelector()}).(*server)
}

// answered returns the server's answer to a request.
func answered(t *testing.T, s *server, ctx context.Context, method, url string) (Fleet, int, string) {
	t.Helper()
	w := httptest.NewRecorder()
	s.ServeHTTP(w, httptest.NewRequestWithContext(ctx, method, url, http.NoBody))
	var fleet Fleet
	if w.Code == http.StatusOK {
		if err := json.Unmarshal(w.Body.Bytes(), &fleet); err != nil {
			t.Fatal(err)
		}
	}
	return fleet, w.Code, w.Body.String()
}

func TestNodesAreServedAsTheirPluginsTell(t *testing.T) {
	p := newPlugins(t)
	p.tell(page(series("gpu-0", 0.25, 1.5e9, 8e9, t0))...)
	ip, port := p.at(t)
	s := serving(
		pluginPod("n1", ip, port),
		pluginPod("n2", "", 8080, func(p *corev1.Pod) { p.Status = corev1.PodStatus{Phase: corev1.PodPending} }),
		pluginPod("", "10.0.0.9", 8080, func(p *corev1.Pod) { p.Name = "nowhere" }),
	)
	all, _, _ := answered(t, s, t.Context(), http.MethodGet, Path)
	if len(all.Nodes) != 2 {
		t.Fatalf("all nodes are %v", all.Nodes)
	}
	got := all.Nodes["n1"].Devices["gpu-0"]
	if all.Nodes["n1"].Error != "" || got.Utilization == nil || *got.Utilization != 0.25 || *got.MemoryUsed != 1.5e9 || *got.MemoryTotal != 8e9 || !got.At.Equal(t0) {
		t.Errorf("n1 is %+v", all.Nodes["n1"])
	}
	if why := all.Nodes["n2"].Error; !strings.Contains(why, "Pending") {
		t.Errorf("n2 is silent because %q", why)
	}
	some, _, _ := answered(t, s, t.Context(), http.MethodGet, Path+"?node=n1&node=other")
	if len(some.Nodes) != 2 || some.Nodes["n1"].Error != "" || !strings.Contains(some.Nodes["other"].Error, "DaemonSet") {
		t.Errorf("the nodes that are named are %+v", some.Nodes)
	}
}

// However many ask for however many nodes, few requests are under way.
func TestPluginsAreAskedFewAtATime(t *testing.T) {
	var pods []client.Object
	for i := range 4 * atOnce {
		pods = append(pods, pluginPod(fmt.Sprint("n", i), "10.0.0.1", 8080))
	}
	s := serving(pods...)
	var under, most atomic.Int64
	var once sync.Once
	full := make(chan struct{}) // closed when as many ask as may
	s.ask = func(context.Context, target) (map[string]Reading, error) {
		now := under.Add(1)
		defer under.Add(-1)
		for was := most.Load(); now > was && !most.CompareAndSwap(was, now); was = most.Load() {
		}
		if now == atOnce {
			once.Do(func() { close(full) })
		}
		<-full
		return nil, nil
	}
	fleet, _, _ := answered(t, s, t.Context(), http.MethodGet, Path)
	if len(fleet.Nodes) != 4*atOnce || most.Load() != atOnce {
		t.Errorf("%d nodes, %d at one time", len(fleet.Nodes), most.Load())
	}
}

func TestQuestionsThatAreNotAnswered(t *testing.T) {
	s := serving(pluginPod("n1", "10.0.0.1", 8080, func(p *corev1.Pod) { p.CreationTimestamp = metav1.NewTime(t0) }))
	if _, code, _ := answered(t, s, t.Context(), http.MethodPost, Path); code != http.StatusMethodNotAllowed {
		t.Errorf("POST is answered with %d", code)
	}
	if _, code, text := answered(t, s, t.Context(), http.MethodGet, Path+"?"+strings.Repeat("node=a&", maxNodes+1)); code != http.StatusBadRequest || !strings.Contains(text, "at most 1000") {
		t.Errorf("a question for too many nodes is answered with %d, %s", code, text)
	}
	s.turns = make(chan struct{}) // no request gets a turn
	ended, end := context.WithCancel(t.Context())
	end()
	if fleet, _, _ := answered(t, s, ended, http.MethodGet, Path); !strings.Contains(fleet.Nodes["n1"].Error, "not polled within 20s") {
		t.Errorf("a question that has no time is answered with %+v", fleet)
	}
}
