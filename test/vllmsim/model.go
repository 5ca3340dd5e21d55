package main

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
)

// Load is what the servers of a model say of themselves, all of them together.
type Load struct {
	// Running and Waiting count requests.
	Running float64 `json:"running"`
	Waiting float64 `json:"waiting"`
	// CacheUsage is the used part of the KV cache, from 0 to 1.
	CacheUsage float64 `json:"cacheUsage"`
	// FirstToken is how long a request waits for its first token, in seconds; for Queued of them it waits
	// to be read. Zero: there are no requests.
	FirstToken float64 `json:"firstToken"`
	Queued     float64 `json:"queued"`
	// InterToken is how long a request waits for each further token, in seconds.
	InterToken float64 `json:"interToken"`
	// Tokens are generated between two scrapes.
	Tokens float64 `json:"tokens"`
}

// check says what no server would report.
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

// requestsPerScrape is how many requests get their first token between two scrapes.
const requestsPerScrape = 10

// vLLM's own buckets, in seconds (vllm/v1/metrics/loggers.py).
var (
	firstTokenBuckets = []float64{0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560}
	interTokenBuckets = []float64{0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80}
	requestBuckets    = []float64{0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680}
)

// histogram is what servers have counted of a time.
type histogram struct {
	count   uint64
	sum     float64
	buckets map[float64]uint64
}

// newHistogram has all buckets from its beginning: a rate is of buckets that were there before.
func newHistogram(bounds []float64) *histogram {
	h := &histogram{buckets: map[float64]uint64{}}
	for _, bound := range bounds {
		h.buckets[bound] = 0
	}
	return h
}

func (h *histogram) observe(seconds float64) {
	h.count += requestsPerScrape
	h.sum += requestsPerScrape * seconds
	for bound := range h.buckets {
		if seconds <= bound {
			h.buckets[bound] += requestsPerScrape
		}
	}
}

// model is what has been set of one, and what its servers have counted.
type model struct {
	load                           Load
	firstToken, queued, interToken *histogram
	tokens                         float64
}

func newModel() *model {
	return &model{firstToken: newHistogram(firstTokenBuckets), queued: newHistogram(requestBuckets), interToken: newHistogram(interTokenBuckets)}
}

// serveRequests counts what happens between two scrapes.
func (m *model) serveRequests() {
	m.tokens += m.load.Tokens
	if m.load.FirstToken == 0 {
		return
	}
	m.firstToken.observe(m.load.FirstToken)
	m.queued.observe(m.load.Queued)
	m.interToken.observe(m.load.InterToken)
}

func describe(name, help string) *prometheus.Desc {
	return prometheus.NewDesc("vllm:"+name, help, []string{"model_name", "engine"}, nil)
}

// The metrics are a part of those that vLLM has from 0.11 on: testdata/vllm.txt.
var (
	running    = describe("num_requests_running", "Number of requests in model execution batches.")
	waiting    = describe("num_requests_waiting", "Number of requests waiting to be processed.")
	cache      = describe("kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage.")
	tokens     = describe("generation_tokens_total", "Number of generation tokens processed.")
	firstToken = describe("time_to_first_token_seconds", "Histogram of time to first token in seconds.")
	queued     = describe("request_queue_time_seconds", "Histogram of time spent in WAITING phase for request.")
	interToken = describe("inter_token_latency_seconds", "Histogram of inter-token latency in seconds.")
)

// models are all that were ever set, and the collector of their metrics.
type models struct {
	mutex  sync.Mutex
	byName map[string]*model
}

func newModels() *models { return &models{byName: map[string]*model{}} }

func (m *models) set(name string, load Load) {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	if m.byName[name] == nil {
		m.byName[name] = newModel()
	}
	m.byName[name].load = load
}

// remove takes a model's metrics away, as when its last server ends.
func (m *models) remove(name string) {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	delete(m.byName, name)
}

// Describe implements prometheus.Collector.
func (m *models) Describe(descriptions chan<- *prometheus.Desc) {
	for _, description := range []*prometheus.Desc{running, waiting, cache, tokens, firstToken, queued, interToken} {
		descriptions <- description
	}
}

// Collect implements prometheus.Collector.
func (m *models) Collect(metrics chan<- prometheus.Metric) {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	for _, name := range slices.Sorted(maps.Keys(m.byName)) {
		model := m.byName[name]
		model.serveRequests()
		tell := func(description *prometheus.Desc, kind prometheus.ValueType, value float64) {
			metrics <- prometheus.MustNewConstMetric(description, kind, value, name, "0")
		}
		tell(running, prometheus.GaugeValue, model.load.Running)
		tell(waiting, prometheus.GaugeValue, model.load.Waiting)
		tell(cache, prometheus.GaugeValue, model.load.CacheUsage)
		tell(tokens, prometheus.CounterValue, model.tokens)
		for description, h := range map[*prometheus.Desc]*histogram{firstToken: model.firstToken, queued: model.queued, interToken: model.interToken} {
			metrics <- prometheus.MustNewConstHistogram(description, h.count, h.sum, maps.Clone(h.buckets), name, "0")
		}
	}
}
