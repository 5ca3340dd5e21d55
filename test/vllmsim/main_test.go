package main

import (
	"io"
	"net/http"
	"net/http/httptest"
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

func TestBothSpellingsTellWhatWasSet(t *testing.T) {
	handler := newHandler()
	if status, body := ask(t, handler, http.MethodPut, "/models/llama", `{"running": 3, "waiting": 12, "cacheUsage": 0.9, "firstToken": 2.5}`); status != http.StatusOK {
		t.Fatalf("PUT: %d %s", status, body)
	}
	_, metrics := ask(t, handler, http.MethodGet, "/metrics", "")
	for _, want := range []string{
		`vllm:num_requests_running{model_name="llama"} 3`,
		`vllm:num_requests_waiting{model_name="llama"} 12`,
		`vllm:kv_cache_usage_perc{model_name="llama"} 0.9`,
		`vllm:time_to_first_token_seconds_bucket{model_name="llama",le="2"} 0`,
		`vllm:time_to_first_token_seconds_bucket{model_name="llama",le="2.5"} 10`,
		`vllm_num_requests_waiting{model="llama"} 12`,
		`vllm_gpu_cache_usage_perc{model="llama"} 0.9`,
		`vllm_time_to_first_token_seconds_sum{model="llama"} 25`,
	} {
		if !strings.Contains(metrics, want+"\n") {
			t.Errorf("%s is missing in\n%s", want, metrics)
		}
	}
}

// TestFirstTokensAreCountedWhileThereAreRequests is what a rate over the buckets needs.
func TestFirstTokensAreCountedWhileThereAreRequests(t *testing.T) {
	handler := newHandler()
	const count = `vllm:time_to_first_token_seconds_count{model_name="llama"} `
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
