package scaledobject

import (
	"maps"
	"slices"

	"github.com/mica-gpu/mica/pkg/elastic/profile"
)

// metric is an engine's metric for a signal.
type metric struct {
	// names are the names in releases, the newest first. A server with two of them reports the same value. A
	// name may have a matcher in braces.
	names []string
	// scale converts to the unit of profiles; 0 is 1.
	scale float64
}

func named(names ...string) metric { return metric{names: names} }

// engine is the metrics of a model server.
type engine struct {
	// modelLabel is the label with the model's name; may be empty.
	modelLabel string
	// ofFrontend reports whether the metrics come from other pods than the workload's.
	ofFrontend bool
	// gauges count requests, which are summed over replicas, or are fractions (profile.KVCache), which are
	// averaged.
	gauges map[string]metric
	// histograms are in seconds, without the suffix of their series.
	histograms map[string]metric
	// counters only rise: the query takes their rate.
	counters map[string]metric
}

// engines by name. Sources of the metrics' names:
//
//	vllm    vllm-project/vllm, tests/entrypoints/instrumentator/test_metrics.py (at 87d89a0) and
//	        vllm/v1/metrics/loggers.py (at 005a810, of 0.10): gpu_cache_usage_perc was renamed in
//	        0.9, time_per_output_token_seconds is the older inter_token_latency_seconds
//	sglang  docs.sglang.io/references/production_metrics.html; metrics need --enable-metrics
//	triton  Triton's user guide, metrics.html (nv_inference_*); the first response needs histograms
//	        to be enabled. With the TensorRT-LLM backend, triton-trtllm, there are also
//	        nv_trt_llm_*, as the Gateway API's inference extension reads them
//	tgi     huggingface.co/docs/text-generation-inference/reference/metrics
//	nim     docs.nvidia.com/nim/large-language-models/latest/observability.html
//	dynamo  ai-dynamo/dynamo, docs/observability/metrics.md: of the frontend; its workers have the
//	        metrics of their own engine
var engines = map[string]engine{
	"vllm": {
		modelLabel: "model_name",
		gauges: map[string]metric{
			profile.KVCache:         named("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
			profile.WaitingRequests: named("vllm:num_requests_waiting"),
			profile.RunningRequests: named("vllm:num_requests_running"),
		},
		histograms: map[string]metric{
			profile.TTFT:              named("vllm:time_to_first_token_seconds"),
			profile.PromptWait:        named("vllm:request_queue_time_seconds"),
			profile.InterTokenLatency: named("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds"),
		},
		counters: map[string]metric{profile.TokensPerSecond: named("vllm:generation_tokens_total")},
	},
	"sglang": {
		modelLabel: "model_name",
		gauges: map[string]metric{
			profile.KVCache:         named("sglang:token_usage"),
			profile.WaitingRequests: named("sglang:num_queue_reqs"),
			profile.RunningRequests: named("sglang:num_running_reqs"),
		},
		histograms: map[string]metric{
			profile.TTFT:              named("sglang:time_to_first_token_seconds"),
			profile.PromptWait:        named("sglang:queue_time_seconds"),
			profile.InterTokenLatency: named("sglang:inter_token_latency_seconds", "sglang:time_per_output_token_seconds"),
		},
		counters: map[string]metric{profile.TokensPerSecond: named("sglang:generation_tokens_total")},
	},
	"triton": {
		modelLabel: "model",
		gauges:     map[string]metric{profile.WaitingRequests: named("nv_inference_pending_request_count")},
		histograms: map[string]metric{profile.TTFT: firstResponse},
	},
	"triton-trtllm": {
		modelLabel: "model",
		gauges: map[string]metric{
			profile.KVCache:         named(`nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="fraction"}`),
			profile.WaitingRequests: named(`nv_trt_llm_request_metrics{request_type="waiting"}`),
			profile.RunningRequests: named(`nv_trt_llm_request_metrics{request_type="scheduled"}`),
		},
		histograms: map[string]metric{profile.TTFT: firstResponse},
	},
	"tgi": {
		gauges: map[string]metric{
			profile.WaitingRequests: named("tgi_queue_size"),
			profile.RunningRequests: named("tgi_batch_current_size"),
		},
		histograms: map[string]metric{
			profile.PromptWait:        named("tgi_request_queue_duration"),
			profile.InterTokenLatency: named("tgi_request_mean_time_per_token_duration"),
		},
	},
	"nim": {
		modelLabel: "model_name",
		gauges: map[string]metric{
			profile.KVCache:         named("gpu_cache_usage_perc"),
			profile.WaitingRequests: named("num_requests_waiting"),
			profile.RunningRequests: named("num_requests_running"),
		},
		histograms: map[string]metric{
			profile.TTFT:              named("time_to_first_token_seconds"),
			profile.InterTokenLatency: named("time_per_output_token_seconds"),
		},
		counters: map[string]metric{profile.TokensPerSecond: named("generation_tokens_total")},
	},
	"dynamo": {
		modelLabel: "model",
		ofFrontend: true,
		gauges: map[string]metric{
			profile.WaitingRequests: named("dynamo_frontend_queued_requests"),
			profile.RunningRequests: named("dynamo_frontend_inflight_requests"),
		},
		histograms: map[string]metric{
			profile.TTFT:              named("dynamo_frontend_time_to_first_token_seconds"),
			profile.InterTokenLatency: named("dynamo_frontend_inter_token_latency_seconds"),
		},
		counters: map[string]metric{profile.TokensPerSecond: named("dynamo_frontend_output_tokens_total")},
	},
}

// firstResponse is in milliseconds.
var firstResponse = metric{names: []string{"nv_inference_first_response_histogram_ms"}, scale: 0.001}

// Engines returns the names of all engines, sorted.
func Engines() []string { return slices.Sorted(maps.Keys(engines)) }
