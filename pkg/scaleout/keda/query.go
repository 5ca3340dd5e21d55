package keda

import (
	"context"
	"errors"
	"fmt"

	"github.com/mica-gpu/mica/pkg/scaleout/workload"
)

// ErrNoData is what the error is of a query that matches nothing.
var ErrNoData = errors.New("the query matches nothing")

// promQL is a number that Prometheus knows.
type promQL struct {
	polled
	query string
	// average tells that the query gives a mean over the replicas.
	average bool
	// whenEmpty is taken where the query matches nothing; nil: that is an error.
	whenEmpty *float64
}

func readQuery(f fields, _ string, _ *workload.Ref) (metric, error) {
	m := promQL{query: f[keyQuery]}
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
	whenEmpty, ok, err := f.number(keyWhenEmpty)
	if err != nil {
		return nil, err
	}
	if ok {
		m.whenEmpty = &whenEmpty
	}
	return m, nil
}

func (m promQL) value(ctx context.Context, from *Sources, target *workload.State) (float64, error) {
	value, err := m.ask(ctx, from)
	if err != nil || !m.average {
		return value, err
	}
	ready := 0
	for _, pod := range target.Pods {
		if pod.Ready {
			ready++
		}
	}
	return value * float64(max(ready, 1)), nil
}

func (m promQL) ask(ctx context.Context, from *Sources) (float64, error) {
	if from.Prometheus == nil {
		return 0, unavailable(errors.New("the controller was given no Prometheus to ask: set the chart's value controller.keda.prometheus.address"))
	}
	value, err := from.Prometheus.Query(ctx, m.query)
	switch {
	case err == nil:
		return value, nil
	case !errors.Is(err, ErrNoData):
		return 0, err
	case m.whenEmpty != nil:
		return *m.whenEmpty, nil
	}
	return 0, fmt.Errorf("%w; give %s where that is as it should be", err, keyWhenEmpty)
}
