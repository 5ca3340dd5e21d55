package keda

import (
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	promv1 "github.com/prometheus/client_golang/api/prometheus/v1"
	"github.com/prometheus/common/model"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	clocktesting "k8s.io/utils/clock/testing"
)

func vector(results ...string) string {
	return `{"status":"success","data":{"resultType":"vector","result":[` + strings.Join(results, ",") + `]}}`
}

func sample(name, value string) string {
	return fmt.Sprintf(`{"metric":{"pod":%q},"value":[1,%q]}`, name, value)
}

func refusal(kind, text string) string {
	return fmt.Sprintf(`{"status":"error","errorType":%q,"error":%q}`, kind, text)
}

func askOf(t *testing.T, o PrometheusOptions) Prometheus {
	t.Helper()
	if o.Clock == nil {
		o.Clock = clocktesting.NewFakeClock(began)
	}
	p, err := NewPrometheus(o)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestPrometheusGivesOneNumberOrSaysWhyNot(t *testing.T) {
	const query = `sum(vllm:num_requests_waiting)`
	for _, test := range []struct {
		name   string
		status int
		body   string
		value  float64
		want   string
		code   codes.Code
	}{
		{"a scalar", 200, `{"status":"success","data":{"resultType":"scalar","result":[1,"2.5"]}}`, 2.5, "", codes.OK},
		{"one series", 200, vector(sample("a", "7")), 7, "", codes.OK},
		{"warnings", 200, strings.Replace(vector(sample("a", "7")), `{`, `{"warnings":["some stores did not answer"],`, 1), 7, "", codes.OK},
		{"no series", 200, vector(), 0, "the query matches nothing", codes.Unavailable},
		{"several series", 200, vector(sample("a", "7"), sample("b", "8")), 0, "the query gives 2 series, where one number is needed: aggregate them, for example by sum()", codes.InvalidArgument},
		{"no number", 200, vector(sample("a", "NaN")), 0, "the query gives NaN, not a finite number: check that it does not divide by zero", codes.Unavailable},
		{"no end", 200, vector(sample("a", "+Inf")), 0, "the query gives +Inf, not a finite number: check that it does not divide by zero", codes.Unavailable},
		{"a range", 200, `{"status":"success","data":{"resultType":"matrix","result":[]}}`, 0, "the query gives a matrix, where one number is needed: ask for an instant vector", codes.InvalidArgument},
		{"a histogram", 200, vector(`{"metric":{},"histogram":[1,{"count":"1","sum":"1","buckets":[]}]}`), 0, "the query gives a histogram, where one number is needed: take a quantile by histogram_quantile()", codes.InvalidArgument},
		{"a series that is nothing", 200, vector("null"), 0, "its answer is not Prometheus' (it has a series without a value): check that the address is that of its HTTP API", codes.Unavailable},
		{"several series that are nothing", 200, vector("null", "null"), 0, "its answer is not Prometheus' (it has a series without a value): check that the address is that of its HTTP API", codes.Unavailable},
		{"PromQL that does not parse", 400, refusal("bad_data", `1:5: parse error: unclosed left parenthesis`), 0, "it cannot read the query: 1:5: parse error: unclosed left parenthesis", codes.InvalidArgument},
		{"PromQL that cannot be carried out", 422, refusal("execution", `found duplicate series for the match group {pod=\"secret\"} on the right hand-side`), 0, "it cannot execute the query, for example because many series match many: run it in Prometheus to see why", codes.InvalidArgument},
		{"a query that is too slow for it", 503, refusal("timeout", `query timed out in expression evaluation`), 0, "the query timed out: make it cheaper, for example by a recording rule", codes.Unavailable},
		{"a server that names its series", 500, refusal("internal", `block with {pod=\"secret\"} is broken`), 0, "it failed (internal): see its log", codes.Unavailable},
		{"no right to ask", 401, "Unauthorized", 0, "it refused (client error: 401): check the address and the controller's token", codes.Unavailable},
		{"another server", 404, "not found", 0, "it refused (client error: 404): check the address and the controller's token", codes.Unavailable},
		{"a server that fails", 500, "boom", 0, "it failed (server error: 500)", codes.Unavailable},
		{"a server that sends elsewhere", 302, "", 0, "its answer is not Prometheus'", codes.Unavailable},
		{"an answer that cannot be read", 200, "<html>", 0, "its answer is not Prometheus'", codes.Unavailable},
		{"an answer without end", 200, `{"status":"` + strings.Repeat("x", mostAnswer), 0, "the answer has more than 1 MiB: aggregate it to one number, for example by sum()", codes.InvalidArgument},
	} {
		t.Run(test.name, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.FormValue("query") != query || !strings.HasSuffix(r.URL.Path, "/prefix/api/v1/query") {
					t.Errorf("asked %s of %s", r.Form, r.URL)
				}
				if test.status == http.StatusFound {
					w.Header().Set("Location", "/prefix/api/v1/query")
				}
				w.WriteHeader(test.status)
				_, _ = w.Write([]byte(test.body))
			}))
			defer server.Close()
			value, err := askOf(t, PrometheusOptions{Address: server.URL + "/prefix/"}).Query(t.Context(), "ml", query)
			if test.want == "" {
				if err != nil || value != test.value {
					t.Errorf("got %v, %v", value, err)
				}
				return
			}
			want := fmt.Sprintf("query %q of Prometheus at %s/prefix/: %s", query, server.URL, test.want)
			if err == nil || !strings.HasPrefix(err.Error(), want) {
				t.Errorf("said  %v\nwant %s", err, want)
			}
			if strings.Contains(fmt.Sprint(err), "secret") || strings.Contains(fmt.Sprint(err), `pod=`) {
				t.Errorf("labels of series are in %v", err)
			}
			if errors.Is(err, ErrNoData) != (test.name == "no series") {
				t.Errorf("%v is taken for no data, or is not", err)
			}
			if code := status.Code(err); code != test.code {
				t.Errorf("code %v, want %v", code, test.code)
			}
		})
	}
}

func TestAPrometheusThatIsDownIsNamed(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := "http://" + listener.Addr().String()
	_ = listener.Close()
	_, err = askOf(t, PrometheusOptions{Address: address}).Query(t.Context(), "ml", "up")
	if err == nil || !strings.HasPrefix(err.Error(), `query "up" of Prometheus at `+address+`: it cannot be reached: dial tcp `) || status.Code(err) != codes.Unavailable {
		t.Errorf("said %v", err)
	}
}

func TestAPrometheusThatIsSlowIsNotWaitedFor(t *testing.T) {
	over := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-over }))
	defer server.Close()
	defer close(over)
	p := askOf(t, PrometheusOptions{Address: server.URL, Timeout: 50 * time.Millisecond})
	_, err := p.Query(t.Context(), "ml", "up")
	if err == nil || !strings.HasSuffix(err.Error(), "there was no answer within 50ms: check that it runs, and that the query is not too expensive") || status.Code(err) != codes.Unavailable {
		t.Errorf("said %v", err)
	}
	ctx, end := context.WithCancel(t.Context())
	end()
	if _, err := p.Query(ctx, "ml", "down"); !errors.Is(err, context.Canceled) {
		t.Errorf("said %v to who had gone", err)
	}
}

func TestWhatIsAskedTwiceIsAskedOnce(t *testing.T) {
	var asked atomic.Int32
	arrived, go1 := make(chan struct{}, 1), make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		n := asked.Add(1)
		if n == 1 {
			arrived <- struct{}{}
			<-go1
		}
		_, _ = w.Write([]byte(vector(sample("a", fmt.Sprint(n)))))
	}))
	defer server.Close()
	clock := clocktesting.NewFakeClock(began)
	p := askOf(t, PrometheusOptions{Address: server.URL, Clock: clock, Timeout: long})

	// The first caller leaves, and the others still get the answer.
	ctx, end := context.WithCancel(t.Context())
	first := make(chan error, 1)
	go func() { _, err := p.Query(ctx, "ml", "up"); first <- err }()
	<-arrived
	end()
	if err := <-first; !errors.Is(err, context.Canceled) {
		t.Errorf("said %v to who had gone", err)
	}
	var all sync.WaitGroup
	for range 10 {
		all.Go(func() {
			if value, err := p.Query(t.Context(), "ml", "up"); err != nil || value != 1 {
				t.Errorf("got %v, %v", value, err)
			}
		})
	}
	close(go1)
	all.Wait()
	clock.Step(fresh - time.Millisecond)
	if value, err := p.Query(t.Context(), "ml", "up"); err != nil || value != 1 {
		t.Errorf("got %v, %v of an answer that still stands", value, err)
	}
	clock.Step(2 * time.Millisecond)
	if value, err := p.Query(t.Context(), "ml", "up"); err != nil || value != 2 {
		t.Errorf("got %v, %v of an answer that is old", value, err)
	}
	if n := asked.Load(); n != 2 {
		t.Errorf("asked %d times", n)
	}
}

// bugs is a client with a bug.
type bugs struct{ promv1.API }

func (bugs) Query(context.Context, string, time.Time, ...promv1.Option) (model.Value, promv1.Warnings, error) {
	panic("index out of range")
}

func TestAPanicOfAQueryReachesItsCallers(t *testing.T) {
	p := askOf(t, PrometheusOptions{Address: "http://prom"})
	p.(*prometheusServer).api = bugs{}
	for range 2 {
		func() {
			defer func() {
				if got := fmt.Sprint(recover()); !strings.HasPrefix(got, "index out of range, in\n") || !strings.Contains(got, "bugs.Query") {
					t.Errorf("panicked with %s", got)
				}
			}()
			_, err := p.Query(t.Context(), "ml", "up")
			t.Errorf("said %v", err)
		}()
	}
}

func TestPrometheusIsAskedWithTokenAndAuthority(t *testing.T) {
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer secret" {
			w.WriteHeader(http.StatusForbidden)
			return
		}
		_, _ = w.Write([]byte(vector(sample("a", "1"))))
	}))
	defer server.Close()
	token, ca := filepath.Join(t.TempDir(), "token"), filepath.Join(t.TempDir(), "ca.crt")
	if err := os.WriteFile(token, []byte("secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name, token, ca, want string
	}{
		{"both", token, ca, ""},
		{"no token", "", ca, "it refused (client error: 403): check the address and the controller's token"},
		{"no authority", token, "", "certificate signed by unknown authority"},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, err := askOf(t, PrometheusOptions{Address: server.URL, TokenFile: test.token, CAFile: test.ca}).Query(t.Context(), "ml", "up")
			if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.HasSuffix(err.Error(), test.want)) {
				t.Errorf("said %v", err)
			}
			if err != nil && strings.Contains(err.Error(), "secret") {
				t.Errorf("%v has the token", err)
			}
		})
	}
}

func TestAPrometheusThatCannotBeAskedIsRefused(t *testing.T) {
	for _, test := range []struct{ name, address, token, ca, want string }{
		{"no URL", "prometheus:9090", "", "", "the address of Prometheus cannot be used: give a URL such as http://prometheus.monitoring:9090"},
		{"no address", "", "", "", "give a URL such as http://prometheus.monitoring:9090"},
		{"credentials", "http://me:secret@prom:9090", "", "", "the address of Prometheus at prom:9090 has credentials: give them as a file with a bearer token"},
		{"credentials in what is no URL", "http://me:secret@prom:x", "", "", "the address of Prometheus cannot be used: give a URL such as http://prometheus.monitoring:9090"},
		{"a query", "http://prom/?query=up", "", "", "the address of Prometheus at prom has a query: leave out what follows the path"},
		{"no token", "http://prom", "/nowhere/token", "", "ask Prometheus at http://prom: "},
		{"no authority", "https://prom", "", "/nowhere/ca.crt", "ask Prometheus at https://prom: "},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, err := NewPrometheus(PrometheusOptions{Address: test.address, TokenFile: test.token, CAFile: test.ca, Clock: clocktesting.NewFakeClock(began)})
			if err == nil || !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), "secret") {
				t.Errorf("said %v", err)
			}
		})
	}
}

// Triggers of one namespace, however slow, are errors of that namespace alone.
func TestSlowQueriesOfANamespaceAreItsOwnTrouble(t *testing.T) {
	over := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.FormValue("query"), "slow") {
			select {
			case <-over:
			case <-r.Context().Done():
			}
		}
		_, _ = w.Write([]byte(vector(sample("a", "7"))))
	}))
	defer server.Close()
	p := askOf(t, PrometheusOptions{Address: server.URL, Timeout: long})
	var slow sync.WaitGroup
	defer slow.Wait()
	defer close(over)
	for _, namespace := range []string{"greedy", "as-greedy"} {
		for i := range 4 * mostAtOnce {
			slow.Go(func() { _, _ = p.Query(context.WithoutCancel(t.Context()), namespace, fmt.Sprint("slow", i)) })
		}
	}
	for _, namespace := range []string{"modest", "another", ""} {
		if value, err := p.Query(t.Context(), namespace, "fast"); err != nil || value != 7 {
			t.Errorf("namespace %q got %v, %v", namespace, value, err)
		}
	}
}

// All slots come back, and each namespace that waits gets one.
func TestSlotsAreShared(t *testing.T) {
	s := newQuerySlots(8)
	take := func(namespace string) (n int) {
		for {
			if got, _ := s.try(namespace); !got {
				return n
			}
			n++
		}
	}
	if got := [4]int{take("a"), take("b"), take("c"), take("d")}; got != [4]int{4, 2, 1, 1} {
		t.Errorf("namespaces that want all got %v", got)
	}
	ctx, cancel := context.WithCancel(t.Context())
	waited := make(chan bool, 1)
	go func() { waited <- s.take(ctx, "e") }()
	s.give("a")
	if !<-waited {
		t.Error("a slot that came free was not taken")
	}
	cancel()
	if s.take(ctx, "c") {
		t.Error("there was a slot too many")
	}
	for namespace, n := range map[string]int{"a": 3, "b": 2, "c": 1, "d": 1, "e": 1} {
		for range n {
			s.give(namespace)
		}
	}
	if s.free != 8 || len(s.held) != 0 {
		t.Errorf("%d are free, and held are %v", s.free, s.held)
	}
}
