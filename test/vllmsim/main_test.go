package main

import (
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"testing"
)

// ask returns the status and the body.
func ask(t *testing.T, handler http.Handler, method, path, body string) (int, string) {
	t.Helper()
	recorder := httptest.NewRecorder()
	handler.ServeHTTP(recorder, httptest.NewRequestWithContext(t.Context(), method, path, strings.NewReader(body)))
	content, err := io.ReadAll(recorder.Result().Body)
	if err != nil {
		t.Fatal(err)
	}
	return recorder.Code, string(content)
}

func TestMetricsHaveTheValuesThatWereSet(t *testing.T) {
	handler := newHandler()
	load := `{"running": 3, "waiting": 12, "cacheUsage": 0.9, "firstToken": 2.5, "queued": 1, "interToken": 0.0625, "tokens": 400}`
	if status, body := ask(t, handler, http.MethodPut, "/models/llama", load); status != http.StatusOK {
		t.Fatalf("PUT: %d %s", status, body)
	}
	_, metrics := ask(t, handler, http.MethodGet, "/metrics", "")
	for _, want := range []string{
		`vllm:num_requests_running{engine="0",model_name="llama"} 3`,
		`vllm:num_requests_waiting{engine="0",model_name="llama"} 12`,
		`vllm:kv_cache_usage_perc{engine="0",model_name="llama"} 0.9`,
		`vllm:generation_tokens_total{engine="0",model_name="llama"} 400`,
		`vllm:time_to_first_token_seconds_bucket{engine="0",model_name="llama",le="1"} 0`,
		`vllm:time_to_first_token_seconds_bucket{engine="0",model_name="llama",le="2.5"} 10`,
		`vllm:request_queue_time_seconds_bucket{engine="0",model_name="llama",le="1"} 10`,
		`vllm:inter_token_latency_seconds_sum{engine="0",model_name="llama"} 0.625`,
	} {
		if !strings.Contains(metrics, want+"\n") {
			t.Errorf("%s is missing in\n%s", want, metrics)
		}
	}
}

// An invented name would let queries pass that find nothing of a real server.
func TestEveryNameIsOneOfVLLMs(t *testing.T) {
	content, err := os.ReadFile("testdata/vllm.txt")
	if err != nil {
		t.Fatal(err)
	}
	known := strings.Split(string(content), "\n")
	handler := newHandler()
	ask(t, handler, http.MethodPut, "/models/llama", `{"firstToken": 1}`)
	_, metrics := ask(t, handler, http.MethodGet, "/metrics", "")
	series := 0
	for line := range strings.Lines(metrics) {
		name, _, is := strings.Cut(line, "{")
		if !is || strings.HasPrefix(line, "#") {
			continue
		}
		series++
		if !slices.Contains(known, name) {
			t.Errorf("vLLM has no %s", name)
		}
	}
	if series < 50 {
		t.Errorf("there are only %d series", series)
	}
}

// A rate over the buckets needs counts that rise.
func TestFirstTokensAreCountedWhileThereAreRequests(t *testing.T) {
	handler := newHandler()
	const count = `vllm:time_to_first_token_seconds_count{engine="0",model_name="llama"} `
	for _, step := range []struct{ load, want string }{
		{`{"firstToken": 0.3}`, "10"},
		{`{"firstToken": 3}`, "20"},
		{`{}`, "20"},
	} {
		ask(t, handler, http.MethodPut, "/models/llama", step.load)
		if _, metrics := ask(t, handler, http.MethodGet, "/metrics", ""); !strings.Contains(metrics, count+step.want+"\n") {
			t.Errorf("after %s there is no %s%s in\n%s", step.load, count, step.want, metrics)
		}
	}
}

func TestAModelWithoutServersHasNoMetrics(t *testing.T) {
	handler := newHandler()
	ask(t, handler, http.MethodPut, "/models/llama", `{"waiting": 1}`)
	ask(t, handler, http.MethodDelete, "/models/llama", "")
	if _, metrics := ask(t, handler, http.MethodGet, "/metrics", ""); strings.Contains(metrics, "llama") {
		t.Errorf("the metrics are\n%s", metrics)
	}
}

func TestImpossibleLoadIsRefused(t *testing.T) {
	for load, want := range map[string]string{
		`{"waiting": -1}`:      "waiting is -1",
		`{"cacheUsage": 90}`:   "fraction from 0 to 1",
		`{"queue": 1}`:         "unknown field",
		`{"running": "three"}`: "cannot unmarshal string",
	} {
		status, body := ask(t, newHandler(), http.MethodPut, "/models/llama", load)
		if status != http.StatusBadRequest || !strings.Contains(body, want) {
			t.Errorf("%s gives %d %s, want %q", load, status, body, want)
		}
	}
}
