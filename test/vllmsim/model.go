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
	// FirstToken is how long a request waits for its first token, in seconds. Zero: there are
	// no requests.
	FirstToken float64 `json:"firstToken"`
}

// check says what no server would report.
func (l Load) check() error {
	for name, value := range map[string]float64{"running": l.Running, "waiting": l.Waiting, "firstToken": l.FirstToken} {
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

// firstTokenBuckets are in seconds, and near the values that matter to a user who waits.
var firstTokenBuckets = []float64{0.05, 0.1, 0.25, 0.5, 0.75, 1, 2, 2.5, 5, 7.5, 10}

// model is what has been set of one, and what its servers have counted.
type model struct {
	load    Load
	count   uint64
	sum     float64
	buckets map[float64]uint64
}

// newModel has all buckets from its beginning: a rate is of buckets that were there before.
func newModel() *model {
	m := &model{buckets: map[float64]uint64{}}
	for _, bound := range firstTokenBuckets {
		m.buckets[bound] = 0
	}
	return m
}

// serveRequests counts what happens between two scrapes.
func (m *model) serveRequests() {
	if m.load.FirstToken == 0 {
		return
	}
	m.count += requestsPerScrape
	m.sum += requestsPerScrape * m.load.FirstToken
	for _, bound := range firstTokenBuckets {
		if m.load.FirstToken <= bound {
			m.buckets[bound] += requestsPerScrape
		}
	}
}

// spelling is how a version of vLLM, or what rewrites its names, calls the metrics.
type spelling struct{ running, waiting, cache, firstToken *prometheus.Desc }

// spellings are vLLM's own, and the older one with underscores that many queries still have.
var spellings = []spelling{
	newSpelling("vllm:", "kv_cache_usage_perc", "model_name"),
	newSpelling("vllm_", "gpu_cache_usage_perc", "model"),
}

func newSpelling(prefix, cache, label string) spelling {
	describe := func(name, help string) *prometheus.Desc {
		return prometheus.NewDesc(prefix+name, help, []string{label}, nil)
	}
	return spelling{
		running:    describe("num_requests_running", "Requests that are being answered."),
		waiting:    describe("num_requests_waiting", "Requests that wait."),
		cache:      describe(cache, "Used part of the KV cache, from 0 to 1."),
		firstToken: describe("time_to_first_token_seconds", "Time to the first token of an answer, in seconds."),
	}
}

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
	for _, s := range spellings {
		for _, description := range []*prometheus.Desc{s.running, s.waiting, s.cache, s.firstToken} {
			descriptions <- description
		}
	}
}

// Collect implements prometheus.Collector.
func (m *models) Collect(metrics chan<- prometheus.Metric) {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	for _, name := range slices.Sorted(maps.Keys(m.byName)) {
		model := m.byName[name]
		model.serveRequests()
		for _, s := range spellings {
			gauge := func(description *prometheus.Desc, value float64) {
				metrics <- prometheus.MustNewConstMetric(description, prometheus.GaugeValue, value, name)
			}
			gauge(s.running, model.load.Running)
			gauge(s.waiting, model.load.Waiting)
			gauge(s.cache, model.load.CacheUsage)
			metrics <- prometheus.MustNewConstHistogram(s.firstToken, model.count, model.sum, maps.Clone(model.buckets), name)
		}
	}
}
