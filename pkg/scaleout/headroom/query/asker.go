// Package query asks Prometheus how many devices headrooms want, and remembers what it last said.
// It decides nothing: package headroom says what an answer means, and how long it counts.
package query

import (
	"context"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/mica-gpu/mica/api/v1alpha1"
	"github.com/mica-gpu/mica/pkg/scaleout/headroom"
)

const (
	// interval is how often a query is asked, and look how soon one that is new.
	interval = 30 * time.Second
	look     = 5 * time.Second
	// timeout is for one query, with its wait for others.
	timeout = 10 * time.Second
	// atOnce are asked at a time.
	atOnce = 8
)

// Prometheus answers a query with one number. The error is a sentence that names the query.
type Prometheus interface {
	Query(ctx context.Context, query string) (float64, error)
}

// Asker asks. Its methods may be called concurrently.
type Asker struct {
	reader     client.Reader
	prometheus Prometheus
	changed    func()
	clock      clock.WithTicker

	mu sync.Mutex
	// known are what was last heard, by the name of the headroom.
	known map[string]heard
}

// heard is what became of a query.
type heard struct {
	query  string
	at     time.Time
	answer headroom.Answer
}

// New reads headrooms of a cache, and calls changed when an answer is another. prometheus is nil where
// nobody can be asked.
func New(reader client.Reader, prometheus Prometheus, changed func(), clock clock.WithTicker) *Asker {
	return &Asker{reader: reader, prometheus: prometheus, changed: changed, clock: clock, known: map[string]heard{}}
}

// NeedLeaderElection tells the manager that one replica asks: the one that decides.
func (*Asker) NeedLeaderElection() bool { return true }

// Start asks until ctx ends.
func (a *Asker) Start(ctx context.Context) error {
	ticker := a.clock.NewTicker(look)
	defer ticker.Stop()
	for {
		if err := a.round(ctx); err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "Cannot read the headrooms whose queries are to be asked")
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C():
		}
	}
}

// nobody is what is said without Prometheus.
const nobody = "the controller was given no Prometheus to ask: set the chart's value controller.keda.prometheus.address"

// Of is what Prometheus has last said to a headroom's query.
func (a *Asker) Of(h *v1alpha1.GPUHeadroom) headroom.Answer {
	if h.Spec.Query == nil {
		return headroom.Answer{}
	}
	if a.prometheus == nil {
		return headroom.Answer{Problem: nobody, Nobody: true}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.known[h.Name].answer
}

// round asks the queries that are due, and forgets those of headrooms that are gone.
func (a *Asker) round(ctx context.Context) error {
	if a.prometheus == nil {
		return nil
	}
	var list v1alpha1.GPUHeadroomList
	if err := a.reader.List(ctx, &list); err != nil {
		return fmt.Errorf("list the headrooms: %w", err)
	}
	var asking errgroup.Group
	asking.SetLimit(atOnce)
	for _, h := range a.due(list.Items) {
		asking.Go(func() error {
			a.ask(ctx, h)
			return nil
		})
	}
	return asking.Wait()
}

// due are the headrooms to be asked for now. What was heard of others that have no query is forgotten.
func (a *Asker) due(all []v1alpha1.GPUHeadroom) []*v1alpha1.GPUHeadroom {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := a.clock.Now()
	queries := map[string]bool{}
	var due []*v1alpha1.GPUHeadroom
	for i := range all {
		h := &all[i]
		if h.Spec.Query == nil {
			continue
		}
		queries[h.Name] = true
		if before, ok := a.known[h.Name]; !ok || before.query != h.Spec.Query.PromQL || !now.Before(before.at.Add(interval)) {
			due = append(due, h)
		}
	}
	for name := range a.known {
		if !queries[name] {
			delete(a.known, name)
		}
	}
	return due
}

// ask keeps the devices of the last answer where there is none now.
func (a *Asker) ask(ctx context.Context, h *v1alpha1.GPUHeadroom) {
	within, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	var devices int32
	value, err := a.prometheus.Query(within, h.Spec.Query.PromQL)
	if err == nil {
		devices, err = headroom.Devices(h.Spec.Query, value)
	}
	if ctx.Err() != nil {
		return
	}
	now := a.clock.Now()
	a.mu.Lock()
	before := a.known[h.Name]
	after := heard{query: h.Spec.Query.PromQL, at: now, answer: headroom.Answer{Devices: devices, At: now}}
	if err != nil {
		after.answer = before.answer
		after.answer.Problem = err.Error()
	}
	a.known[h.Name] = after
	a.mu.Unlock()
	if differ(before.answer, after.answer) {
		a.changed()
	}
}

// differ leaves out when it was heard.
func differ(before, after headroom.Answer) bool {
	return before.Devices != after.Devices || before.Problem != after.Problem || before.At.IsZero() != after.At.IsZero()
}
