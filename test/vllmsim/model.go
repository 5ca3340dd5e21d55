package main

import (
	"fmt"
	"math"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// Load is what the servers of a model report together.
type Load struct {
	// Running and Waiting count requests.
	Running float64 `json:"running"`
	Waiting float64 `json:"waiting"`
	// CacheUsage is the used part of the KV cache, from 0 to 1.
	CacheUsage float64 `json:"cacheUsage"`
	// FirstToken is the time until a request's first token, in seconds; 0: there are no requests. Queued is
	// the part of it in the queue.
	FirstToken float64 `json:"firstToken"`
	Queued     float64 `json:"queued"`
	// InterToken is the time between two tokens, in seconds.
	InterToken float64 `json:"interToken"`
	// Tokens is the number of tokens that are generated between two scrapes.
	Tokens float64 `json:"tokens"`
}

// check returns an error for a load that no server would report.
func (l Load) check() error {
	for name, value := range map[string]float64{
		"running": l.Running, "waiting": l.Waiting, "firstToken": l.FirstToken, "queued": l.Queued, "interToken": l.InterToken, "tokens": l.Tokens,
	} {
		if value < 0 || math.IsInf(value, 0) || math.IsNaN(value) {
			return fmt.Errorf("%s is %v: give a number that is not negative", name, value)
		}
	}
	if l.CacheUsage < 0 || l.CacheUsage > 1 {
		return fmt.Errorf("cacheUsage is %v: give a fraction from 0 to 1", l.CacheUsage)
	}
	return nil
}

// requestsPerScrape is the number of requests that get their first token between two scrapes.
const requestsPerScrape = 10

// vLLM's own buckets, in seconds (vllm/v1/metrics/loggers.py).
var (
	firstTokenBuckets = []float64{0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560}
	interTokenBuckets = []float64{0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80}
	requestBuckets    = []float64{0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680}
)

// models has the metrics of the models that were set. They are a part of those that vLLM has from 0.11 on:
// testdata/vllm.txt.
type models struct {
	running, waiting, cache        *prometheus.GaugeVec
	tokens                         *prometheus.CounterVec
	firstToken, queued, interToken *prometheus.HistogramVec

	mutex sync.Mutex
	loads map[string]Load
}

func newModels(registry *prometheus.Registry) *models {
	var (
		create = promauto.With(registry)
		labels = []string{"model_name", "engine"}
		gauge  = func(name, help string) *prometheus.GaugeVec {
			return create.NewGaugeVec(prometheus.GaugeOpts{Name: "vllm:" + name, Help: help}, labels)
		}
		histogram = func(name, help string, buckets []float64) *prometheus.HistogramVec {
			return create.NewHistogramVec(prometheus.HistogramOpts{Name: "vllm:" + name, Help: help, Buckets: buckets}, labels)
		}
	)
	return &models{
		running:    gauge("num_requests_running", "Number of requests in model execution batches."),
		waiting:    gauge("num_requests_waiting", "Number of requests waiting to be processed."),
		cache:      gauge("kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage."),
		tokens:     create.NewCounterVec(prometheus.CounterOpts{Name: "vllm:generation_tokens_total", Help: "Number of generation tokens processed."}, labels),
		firstToken: histogram("time_to_first_token_seconds", "Histogram of time to first token in seconds.", firstTokenBuckets),
		queued:     histogram("request_queue_time_seconds", "Histogram of time spent in WAITING phase for request.", requestBuckets),
		interToken: histogram("inter_token_latency_seconds", "Histogram of inter-token latency in seconds.", interTokenBuckets),
		loads:      map[string]Load{},
	}
}

func (m *models) set(name string, load Load) {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	m.loads[name] = load
	m.running.WithLabelValues(name, "0").Set(load.Running)
	m.waiting.WithLabelValues(name, "0").Set(load.Waiting)
	m.cache.WithLabelValues(name, "0").Set(load.CacheUsage)
}

// remove deletes a model's metrics, as when its last server ends.
func (m *models) remove(name string) {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	delete(m.loads, name)
	for _, metric := range []interface{ DeleteLabelValues(...string) bool }{m.running, m.waiting, m.cache, m.tokens, m.firstToken, m.queued, m.interToken} {
		metric.DeleteLabelValues(name, "0")
	}
}

// serveRequests counts what happens between two scrapes. All buckets exist from the first scrape, because a
// rate needs earlier samples.
func (m *models) serveRequests() {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	for name, load := range m.loads {
		m.tokens.WithLabelValues(name, "0").Add(load.Tokens)
		for metric, seconds := range map[*prometheus.HistogramVec]float64{m.firstToken: load.FirstToken, m.queued: load.Queued, m.interToken: load.InterToken} {
			histogram := metric.WithLabelValues(name, "0")
			for i := 0; i < requestsPerScrape && load.FirstToken > 0; i++ {
				histogram.Observe(seconds)
			}
		}
	}
}
