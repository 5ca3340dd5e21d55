package schema

import (
	"math"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/promqltest"
	"sigs.k8s.io/yaml"

	kedav1alpha1 "github.com/kedacore/keda/v2/apis/keda/v1alpha1"
)

// loadQuery is that of a printed object.
func loadQuery(t *testing.T, file string) string {
	t.Helper()
	return queryOf(t, file, "load")
}

// queryOf is that of a trigger of a printed object.
func queryOf(t *testing.T, file, trigger string) string {
	t.Helper()
	for _, document := range kedas(t, filepath.Join(root, "pkg", "elastic", "scaledobject", "testdata", file)) {
		var object kedav1alpha1.ScaledObject
		if err := yaml.Unmarshal([]byte(document), &object); err != nil {
			t.Fatal(err)
		}
		for _, candidate := range object.Spec.Triggers {
			if candidate.Name == trigger {
				return candidate.Metadata["query"]
			}
		}
	}
	t.Fatalf("%s has no trigger %s", file, trigger)
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
			vector := evaluated(t, loadQuery(t, test.file), test.series, 10*time.Minute)
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
	if vector := evaluated(t, loadQuery(t, "realtime.yaml"), "another 1x80", 10*time.Minute); len(vector) != 0 {
		t.Errorf("the query gives %v", vector)
	}
}

// What was needed a week ago, from then until five minutes later, adds to what is needed now.
func TestTheLastWeekAsksAheadOfTime(t *testing.T) {
	const (
		of = `{namespace="default",pod="llm-6c9f7d-x2x4z",model_name="meta-llama/Llama-3.1-8B",engine="0",instance="a"} `
		// week is so many samples, and now is ten minutes after it.
		week = 7 * 24 * time.Hour
		idle = "vllm:kv_cache_usage_perc" + of + "0x40400\n"
	)
	queue := "vllm:num_requests_waiting" + of
	for name, test := range map[string]struct {
		file, series string
		want         []float64
	}{
		"in four minutes":        {"realtime-ahead.yaml", idle + queue + "0x55 45x2 0x40320", []float64{4.5}},
		"just now":               {"realtime-ahead.yaml", idle + queue + "0x43 45x1 0x40340", []float64{4.5}},
		"before that":            {"realtime-ahead.yaml", idle + queue + "0x30 45x8 0x40340", []float64{0}},
		"in six minutes":         {"realtime-ahead.yaml", idle + queue + "0x62 45x20 0x40340", []float64{0}},
		"less than now":          {"realtime-ahead.yaml", idle + queue + "20x1000 70x39400", []float64{7}},
		"more than now":          {"realtime-ahead.yaml", idle + queue + "70x1000 20x39400", []float64{7}},
		"a full cache":           {"realtime-ahead.yaml", queue + "0x40400\nvllm:kv_cache_usage_perc" + of + "1x1000 0x39400", []float64{1.25}},
		"no week ago":            {"realtime-ahead.yaml", "vllm:kv_cache_usage_perc" + of + "_x40000 0x400\n" + queue + "_x40000 20x400", []float64{2}},
		"not known now":          {"realtime-ahead.yaml", "vllm:kv_cache_usage_perc" + of + "1x1000\n" + queue + "70x1000", nil},
		"no request came":        {"zero-ahead.yaml", "gateway_queue_depth{model=\"llm\"} 0x40400", []float64{0}},
		"from zero":              {"zero-ahead.yaml", "gateway_queue_depth{model=\"llm\"} 0x40400\nvllm:kv_cache_usage_perc" + of + "0.4x1000\n" + queue + "0x1000", []float64{0.5}},
		"through the controller": {"decode-ahead.yaml", "vllm:num_requests_running" + of + "48x1000 16x39400", []float64{3}},
		"no week ago, through":   {"decode-ahead.yaml", "vllm:num_requests_running" + of + "_x40000 16x400", []float64{0}},
	} {
		t.Run(name, func(t *testing.T) {
			trigger := "load"
			if strings.HasPrefix(test.file, "decode") {
				trigger = "ahead"
			}
			var got []float64
			for _, sample := range evaluated(t, queryOf(t, test.file, trigger), test.series, week+10*time.Minute) {
				got = append(got, math.Round(sample.F*1000)/1000)
			}
			if !slices.Equal(got, test.want) {
				t.Errorf("the query asks for %v replicas, want %v", got, test.want)
			}
		})
	}
}

// evaluated is what Prometheus itself makes of a query after so long, of series with a sample each 15 s.
func evaluated(t *testing.T, text, series string, after time.Duration) promql.Vector {
	t.Helper()
	lines := strings.FieldsFunc(series, func(r rune) bool { return r == '\n' })
	storage := promqltest.LoadedStorage(t, "load 15s\n  "+strings.Join(lines, "\n  "))
	engine := promql.NewEngine(promql.EngineOpts{MaxSamples: 1e6, Timeout: time.Minute})
	query, err := engine.NewInstantQuery(t.Context(), storage, nil, text, time.Unix(0, 0).Add(after))
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
