package scaledobject

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/mica-gpu/mica/pkg/elastic/profile"
)

// spelling is how a server of language models names its metrics.
type spelling struct {
	// modelLabel is the label with the model's name.
	modelLabel string
	// kvCache is a gauge from 0 to 1; waiting and running count requests.
	kvCache, waiting, running string
	// ttft and queueTime are histograms of seconds, without the suffix of their series.
	ttft, queueTime string
}

// spellings are those of vLLM as it names its metrics, and as they are named where something between it
// and Prometheus allows no colons.
var spellings = map[string]spelling{
	"vllm": {
		modelLabel: "model_name",
		kvCache:    "vllm:kv_cache_usage_perc",
		waiting:    "vllm:num_requests_waiting",
		running:    "vllm:num_requests_running",
		ttft:       "vllm:time_to_first_token_seconds",
		queueTime:  "vllm:request_queue_time_seconds",
	},
	"underscore": {
		modelLabel: "model",
		kvCache:    "vllm_gpu_cache_usage_perc",
		waiting:    "vllm_num_requests_waiting",
		running:    "vllm_num_requests_running",
		ttft:       "vllm_time_to_first_token_seconds",
		queueTime:  "vllm_request_queue_time_seconds",
	},
}

// Serving says which series of Prometheus are those of the workload.
type Serving struct {
	// MetricNames is the spelling of the metrics: "vllm" or "underscore".
	MetricNames string
	// Model is the name under which the model is served; empty where Matchers tell enough.
	Model string
	// Matchers are as PromQL writes them, such as pod=~"llm-.*".
	Matchers []string
}

var matcher = regexp.MustCompile(`^[a-zA-Z_][a-zA-Z0-9_]*(=|!=|=~|!~)("([^"\\]|\\.)*")$`)

// series are a metric's that belong to the workload.
type series func(metric string) string

// series is an error where they would be those of all workloads.
func (s Serving) series() (spelling, series, error) {
	names, ok := spellings[s.MetricNames]
	if !ok {
		return spelling{}, nil, fmt.Errorf("there is no spelling %q of metrics: choose one of %s", s.MetricNames, strings.Join(slices.Sorted(maps.Keys(spellings)), ", "))
	}
	var matchers []string
	if s.Model != "" {
		matchers = append(matchers, names.modelLabel+"="+strconv.Quote(s.Model))
	}
	for _, m := range s.Matchers {
		parts := matcher.FindStringSubmatch(m)
		if parts == nil {
			return spelling{}, nil, fmt.Errorf(`%q is no matcher of series: write it as PromQL does, such as pod=~"llm-.*"`, m)
		}
		if _, err := strconv.Unquote(parts[2]); err != nil {
			return spelling{}, nil, fmt.Errorf("the value in the matcher %s cannot be read: write a backslash as two", m)
		}
		matchers = append(matchers, m)
	}
	if len(matchers) == 0 {
		return spelling{}, nil, fmt.Errorf("which metrics are those of the workload? name the model, or a label that only its pods have: " +
			"otherwise it would be scaled by the load of all")
	}
	selector := "{" + strings.Join(matchers, ",") + "}"
	return names, func(metric string) string { return metric + selector }, nil
}

// query is what Prometheus is asked for a signal.
type query struct {
	promQL string
	// average is whether the answer is a mean over the replicas, and not their sum.
	average bool
}

// queries has one for each signal that Prometheus tells, as profiles name them, in the units
// that profiles have.
func queries(names spelling, of series) map[string]query {
	return map[string]query{
		// The server tells a part of 1, profiles have percent.
		profile.KVCache:         {"100 * avg(" + of(names.kvCache) + ")", true},
		profile.WaitingRequests: {"sum(" + of(names.waiting) + ")", false},
		profile.RunningRequests: {"sum(" + of(names.running) + ")", false},
		profile.TTFT:            {quantile(names.ttft, of), true},
		profile.PromptWait:      {quantile(names.queueTime, of), true},
	}
}

// summedCache is the use of the cache in all replicas, also of those that nobody uses.
func summedCache(names spelling, of series) query {
	return query{"100 * sum(" + of(names.kvCache) + ")", false}
}

// quantile is the 95th percentile of a histogram. Without a request it is no number: the
// comparison drops that, and an idle server that is there counts as 0. One that is not there
// gives nothing, which is not the same.
func quantile(histogram string, of series) string {
	return "histogram_quantile(0.95, sum by (le) (rate(" + of(histogram+"_bucket") + "[5m]))) >= 0 or 0 * sum(" + of(histogram+"_count") + ")"
}
