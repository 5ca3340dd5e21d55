package keda

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/mica-gpu/mica/pkg/elastic/workload"
)

// ErrNoData is the error of a query that matches nothing.
var ErrNoData = errors.New("the query matches nothing")

// promQL is the result of a query.
type promQL struct {
	polled
	namespace, query string
	// average reports whether the query gives a mean over the replicas, not a sum.
	average bool
	// notReady is the value if the query matches nothing and no replica is Ready; nil: that is an error.
	notReady *float64
}

func readQuery(f fields, namespace string, _ *workload.Ref) (metric, error) {
	m := promQL{namespace: namespace, query: f[keyQuery]}
	if m.query == "" {
		return nil, fmt.Errorf("%s is missing: metric prometheus has a PromQL query that gives one number", keyQuery)
	}
	switch f[keyValueType] {
	case "", "total":
	case "average":
		m.average = true
	default:
		return nil, fmt.Errorf("%s %s is unknown: it is total (a sum over the replicas) or average (a mean over them)", keyValueType, quoted(f[keyValueType]))
	}
	notReady, ok, err := f.number(keyNotReady)
	if err != nil {
		return nil, err
	}
	if ok {
		m.notReady = &notReady
	}
	return m, nil
}

func (m promQL) value(ctx context.Context, from *Sources, target *workload.State) (float64, error) {
	ready := 0
	for _, replica := range target.Replicated() {
		if !slices.ContainsFunc(replica, func(pod workload.Pod) bool { return !pod.Ready }) {
			ready++
		}
	}
	value, err := m.ask(ctx, from, ready)
	if err != nil || !m.average {
		return value, err
	}
	return value * float64(max(ready, 1)), nil
}

// ask returns an error if the query matches nothing although replicas are Ready: otherwise a misspelt
// name would never show load.
func (m promQL) ask(ctx context.Context, from *Sources, ready int) (float64, error) {
	if from.Prometheus == nil {
		return 0, unavailable(errors.New("the controller answers no queries of triggers: an administrator allows them by the chart's values controller.keda.prometheus.address and controller.keda.prometheus.triggers"))
	}
	value, err := from.Prometheus.Query(ctx, m.namespace, m.query)
	switch {
	case err == nil:
		return value, nil
	case !errors.Is(err, ErrNoData):
		return 0, err
	case m.notReady == nil:
		return 0, fmt.Errorf("%w; set %s for the time in which no replica is Ready", err, keyNotReady)
	case ready > 0:
		return 0, fmt.Errorf("%w though %d replicas are Ready: correct its names, check that Prometheus scrapes the pods, or write `or vector(0)` where nothing means 0", err, ready)
	}
	return *m.notReady, nil
}
