package schema

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/promqltest"
	"sigs.k8s.io/yaml"

	kedav1alpha1 "github.com/kedacore/keda/v2/apis/keda/v1alpha1"
)

// loadQuery returns the query of a printed object's trigger "load".
func loadQuery(t *testing.T, file string) string {
	t.Helper()
	for _, document := range kedas(t, filepath.Join(root, "pkg", "elastic", "scaledobject", "testdata", file)) {
		var object kedav1alpha1.ScaledObject
		if err := yaml.Unmarshal([]byte(document), &object); err != nil {
			t.Fatal(err)
		}
		for _, candidate := range object.Spec.Triggers {
			if candidate.Name == "load" {
				return candidate.Metadata["query"]
			}
		}
	}
	t.Fatalf("%s has no trigger load", file)
	return ""
}

// Prometheus itself says how many replicas the signals ask for.
func TestTheLoadIsInReplicas(t *testing.T) {
	const of = `{namespace="default",pod="llm-6c9f7d-x2x4z",model_name="meta-llama/Llama-3.1-8B",engine="0",instance=`
	idle := strings.ReplaceAll(`
		vllm:num_requests_waitingOF"a"} 0x80
		vllm:num_requests_waitingOF"b"} 0x80
		vllm:kv_cache_usage_percOF"a"} 0x80
		vllm:kv_cache_usage_percOF"b"} 0x80
		vllm:time_to_first_token_seconds_countOF"a"} 7x80
		vllm:time_to_first_token_seconds_bucketOF"a",le="+Inf"} 7x80
`, "OF", of)
	for name, test := range map[string]struct {
		file, series string
		want         float64
	}{
		"idle": {"realtime.yaml", idle, 0},
		"a queue": {"realtime.yaml", idle + strings.ReplaceAll(`
		vllm:num_requests_waitingOF"c"} 45x80
`, "OF", of), 4.5},
		"the same model in another namespace": {"realtime.yaml", idle + strings.ReplaceAll(strings.ReplaceAll(`
		vllm:num_requests_waitingOF"c"} 45x80
`, "OF", of), `"default"`, `"staging"`), 0},
		"the same model of another workload": {"realtime.yaml", idle + strings.ReplaceAll(strings.ReplaceAll(`
		vllm:num_requests_waitingOF"c"} 45x80
`, "OF", of), `"llm-`, `"llm-green-`), 0},
		"two full caches":              {"realtime.yaml", strings.ReplaceAll(idle, "perc"+of+`"a"} 0x80`, "perc"+of+`"a"} 1x80`), 1.25},
		"full caches of an older vLLM": {"realtime.yaml", strings.ReplaceAll(strings.ReplaceAll(idle, "vllm:kv_cache", "vllm:gpu_cache"), "perc"+of+`"b"} 0x80`, "perc"+of+`"b"} 1x80`), 1.25},
		"engines of one replica": {"realtime.yaml", strings.ReplaceAll(idle, "perc"+of+`"b"} 0x80`, "perc"+of+`"b"} 1x80`) + strings.ReplaceAll(`
		vllm:kv_cache_usage_percOF"b"} 1x80
`, "OF", strings.Replace(of, `"0"`, `"1"`, 1)), 2.0 * 2 / 3 / 0.8},
		"slow first tokens": {"realtime.yaml", idle + strings.ReplaceAll(`
		vllm:time_to_first_token_seconds_bucketOF"b",le="2.5"} 0+0x80
		vllm:time_to_first_token_seconds_bucketOF"b",le="5"} 0+15x80
		vllm:time_to_first_token_seconds_bucketOF"b",le="+Inf"} 0+15x80
`, "OF", of), (2.5 + 0.95*2.5) * 2 / 2},
		"underscores": {"realtime-underscore.yaml", strings.ReplaceAll(strings.ReplaceAll(idle, "vllm:", "vllm_"), `waiting`+of+`"a"} 0x80`, `waiting`+of+`"a"} 30x80`), 3},
		"demand without a replica": {"realtime-zero.yaml", `
		gateway_queue_depth{model="llm"} 25x80
`, 2.5},
	} {
		t.Run(name, func(t *testing.T) {
			vector := evaluated(t, loadQuery(t, test.file), test.series)
			if len(vector) != 1 {
				t.Fatalf("the query gives %v", vector)
			}
			if got := vector[0].F; got < test.want-1e-9 || got > test.want+1e-9 {
				t.Errorf("the load asks for %v replicas, want %v", got, test.want)
			}
		})
	}
}

// A server without a scrape is not idle: KEDA gets no value, which is an error.
func TestWithoutServersThereIsNoLoad(t *testing.T) {
	if vector := evaluated(t, loadQuery(t, "realtime.yaml"), "another 1x80"); len(vector) != 0 {
		t.Errorf("the query gives %v", vector)
	}
}

// evaluated is Prometheus' own answer to a query after ten minutes of series with a sample each 15 s.
func evaluated(t *testing.T, text, series string) promql.Vector {
	t.Helper()
	lines := strings.FieldsFunc(series, func(r rune) bool { return r == '\n' })
	storage := promqltest.LoadedStorage(t, "load 15s\n  "+strings.Join(lines, "\n  "))
	engine := promql.NewEngine(promql.EngineOpts{MaxSamples: 1e6, Timeout: time.Minute})
	query, err := engine.NewInstantQuery(t.Context(), storage, nil, text, time.Unix(0, 0).Add(10*time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(query.Close)
	vector, err := query.Exec(t.Context()).Vector()
	if err != nil {
		t.Fatal(err)
	}
	return vector
}
