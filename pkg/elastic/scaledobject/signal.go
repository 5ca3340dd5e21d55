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

// Server is how a server of language models names what it tells Prometheus.
type Server struct {
	// modelLabel is the label with the model's name.
	modelLabel string
	// kvCache is a gauge from 0 to 1; waiting and running count requests.
	kvCache, waiting, running string
	// ttft and queueTime are histograms of seconds, without the suffix of their series.
	ttft, queueTime string
}

// servers are vLLM as it names its metrics, and as they are named where something between it
// and Prometheus allows no colons.
var servers = map[string]Server{
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

// MetricNames are the spellings of metrics that there are, sorted.
func MetricNames() []string { return slices.Sorted(maps.Keys(servers)) }

// Serving says which series of Prometheus are those of the workload.
type Serving struct {
	// MetricNames is one of the function of the same name.
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
func (s Serving) series() (Server, series, error) {
	server, ok := servers[s.MetricNames]
	if !ok {
		return Server{}, nil, fmt.Errorf("there is no spelling %q of metrics: choose one of %s", s.MetricNames, strings.Join(MetricNames(), ", "))
	}
	var matchers []string
	if s.Model != "" {
		matchers = append(matchers, server.modelLabel+"="+strconv.Quote(s.Model))
	}
	for _, m := range s.Matchers {
		parts := matcher.FindStringSubmatch(m)
		if parts == nil {
			return Server{}, nil, fmt.Errorf(`%q is no matcher of series: write it as PromQL does, such as pod=~"llm-.*"`, m)
		}
		if _, err := strconv.Unquote(parts[2]); err != nil {
			return Server{}, nil, fmt.Errorf("the value in the matcher %s cannot be read: write a backslash as two", m)
		}
		matchers = append(matchers, m)
	}
	if len(matchers) == 0 {
		return Server{}, nil, fmt.Errorf("which metrics are those of the workload? name the model, or a label that only its pods have: " +
			"otherwise it would be scaled by the load of all")
	}
	selector := "{" + strings.Join(matchers, ",") + "}"
	return server, func(metric string) string { return metric + selector }, nil
}

// query is what Prometheus is asked for a signal.
type query struct {
	promQL string
	// average is whether the answer is a mean over the replicas, and not their sum.
	average bool
}

// queries has one for each signal that Prometheus tells, as profiles name them, in the units
// that profiles have.
func queries(server Server, of series) map[string]query {
	return map[string]query{
		// The server tells a part of 1, profiles have percent.
		profile.KVCache:         {"100 * avg(" + of(server.kvCache) + ")", true},
		profile.WaitingRequests: {"sum(" + of(server.waiting) + ")", false},
		profile.RunningRequests: {"sum(" + of(server.running) + ")", false},
		profile.TTFT:            {quantile(server.ttft, of), true},
		profile.PromptWait:      {quantile(server.queueTime, of), true},
	}
}

// quantile is the 95th percentile of a histogram. Without a request it is no number: the
// comparison drops that, and an idle server that is there counts as 0. One that is not there
// gives nothing, which is not the same.
func quantile(histogram string, of series) string {
	return "histogram_quantile(0.95, sum by (le) (rate(" + of(histogram+"_bucket") + "[5m]))) >= 0 or 0 * sum(" + of(histogram+"_count") + ")"
}
