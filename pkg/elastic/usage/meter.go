package usage

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/mica-gpu/mica/pkg/elastic/workload"
)

// Options configure a Meter.
type Options struct {
	// Driver is the name of the DRA driver.
	Driver string
	// Reader is the controller's cache, with the indexes that Index adds.
	Reader client.Reader
	// Namespace and Plugin select the plugin's pods.
	Namespace string
	Plugin    labels.Selector
	Clock     clock.WithTicker
}

// Meter reports how busy the devices of workloads are. It is safe for concurrent use.
type Meter struct {
	cluster cluster
	scraper *scraper
}

// New returns a Meter that answers once Start runs.
func New(o Options) *Meter {
	c, plugins := o.cluster(), newHTTPClient()
	return &Meter{cluster: c, scraper: newScraper(o.Clock, func(ctx context.Context, node string) (map[string]Reading, error) {
		return scrape(ctx, c, plugins, node)
	})}
}

func (o Options) cluster() cluster {
	return cluster{reader: o.Reader, driver: o.Driver, namespace: o.Namespace, plugin: o.Plugin}
}

// Index adds the Meter's indexes to the cache. Call it before the cache starts.
func Index(ctx context.Context, cache client.FieldIndexer, o Options) error {
	c := o.cluster()
	for _, i := range []struct {
		object  client.Object
		name    string
		extract client.IndexerFunc
	}{
		{&resourceapi.ResourceClaim{}, indexHeld, c.heldDevices},
		{&resourceapi.ResourceSlice{}, indexPool, c.ownPool},
		{&corev1.Pod{}, indexPlugin, c.pluginNode},
	} {
		if err := cache.IndexField(ctx, i.object, i.name, i.extract); err != nil {
			return fmt.Errorf("index %T by %s: %w", i.object, i.name, err)
		}
	}
	return nil
}

// NeedLeaderElection is false: each replica answers for itself.
func (m *Meter) NeedLeaderElection() bool { return false }

// Start polls the plugins of requested nodes until ctx ends.
func (m *Meter) Start(ctx context.Context) error {
	m.scraper.run(ctx)
	return nil
}

// Usage reports how busy the devices of a workload are. The first request for a node waits for its
// plugin, until ctx ends. Later readings are at most 10 seconds old while the plugin answers, and
// never older than 45 seconds. It returns an error if a device has no such reading.
func (m *Meter) Usage(ctx context.Context, of workload.State) (Usage, error) {
	holds := held(of)
	// Request all nodes before waiting for any.
	for _, h := range holds {
		if !h.idle {
			m.scraper.ask(h.node)
		}
	}
	for i := range holds {
		if err := m.read(ctx, &holds[i]); err != nil {
			return Usage{}, fmt.Errorf("find how busy the devices of %s are: %w", of.Ref, err)
		}
	}
	return attribute(holds), nil
}

// held lists the devices of a workload's pods, and shares of devices, once each. A pod without a node
// has no container that could use them.
func held(of workload.State) []hold {
	type key struct {
		pool, name string
		shareKey
	}
	var holds []hold
	at := map[key]int{}
	for _, pod := range of.Pods {
		if pod.Node == "" {
			continue
		}
		for _, d := range pod.Devices {
			k := key{d.Pool.Name, d.Name, keyOf(d.Claim, d.ShareID)}
			i, seen := at[k]
			if !seen {
				i = len(holds)
				at[k] = i
				holds = append(holds, hold{device: d, node: pod.Node, idle: true})
			}
			holds[i].idle = holds[i].idle && pod.Unstarted
		}
	}
	return holds
}

// read adds to h the device's reading, and the fraction of the device that is held.
func (m *Meter) read(ctx context.Context, h *hold) (err error) {
	if !h.idle {
		if h.reading, err = m.reading(ctx, *h); err != nil {
			return err
		}
	}
	h.fraction, h.together = alone, alone.memory
	if isShare(h.device) {
		h.fraction, h.together, err = m.cluster.divide(ctx, *h)
	}
	return err
}

// reading returns the last reading of a device if it is recent enough.
func (m *Meter) reading(ctx context.Context, h hold) (Reading, error) {
	known, err := m.scraper.first(ctx, h.node)
	if err == nil && m.missing(known, h) {
		// The claim may have been prepared after the last request.
		known, err = m.scraper.again(ctx, h.node)
	}
	if err != nil {
		return Reading{}, fmt.Errorf("wait for the plugin of node %s to report device %s: %w: if this goes on, see the controller's log for plugins that do not answer, as there are at most %d requests at one time", h.node, h.device.Name, err, atOnce)
	}
	return m.judge(known, h)
}

// missing reports whether the plugin's last answer lacks the device and is old enough to ask again.
// The delay keeps a device without readings from causing a request each time.
func (m *Meter) missing(known scraped, h hold) bool {
	_, reported := known.readings[h.device.Name]
	return known.err == nil && !reported && m.scraper.clock.Since(known.tried) >= askAgainAfter
}

// askAgainAfter is shorter than a plugin takes to prepare a claim and sample its devices.
const askAgainAfter = time.Second

// judge refuses a reading that is missing or too old.
func (m *Meter) judge(known scraped, h hold) (Reading, error) {
	now := m.scraper.clock.Now()
	if known.got.IsZero() || now.Sub(known.got) > tooOld {
		return Reading{}, m.silent(known, h, now)
	}
	reading, reported := known.readings[h.device.Name]
	if !reported {
		return Reading{}, fmt.Errorf("the plugin of node %s reports %d devices, but not %s: check in its log that the claim of UID %s was prepared, and that the device can be sampled",
			h.node, len(known.readings), h.device.Name, h.device.Claim)
	}
	if age := now.Sub(reading.At); age > tooOld {
		return Reading{}, fmt.Errorf("the plugin of node %s sampled device %s %s ago (%s) by the controller's clock, which is too old: see its log, and compare the clocks",
			h.node, h.device.Name, age.Round(time.Second), reading.At.UTC().Format(time.RFC3339))
	}
	return reading, nil
}

// silent is the error of a node whose plugin has not answered for too long.
func (m *Meter) silent(known scraped, h hold, now time.Time) error {
	since := "never answered"
	if !known.got.IsZero() {
		since = fmt.Sprintf("not answered for %s", now.Sub(known.got).Round(time.Second))
	}
	if known.err == nil {
		return fmt.Errorf("the plugin of node %s, which has device %s, has %s: check whether this controller was stopped meanwhile", h.node, h.device.Name, since)
	}
	return fmt.Errorf("the plugin of node %s, which has device %s, has %s: %w", h.node, h.device.Name, since, known.err)
}
