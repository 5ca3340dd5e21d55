package control

import (
	"testing"

	"github.com/mica-gpu/mica/pkg/tracing"
	"github.com/mica-gpu/mica/test/fixture/collector"
)

func TestAPassIsTraced(t *testing.T) {
	sent := collector.New(t)
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", sent.Endpoint)
	stop, err := tracing.Start(t.Context(), "controller", "v1")
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	w := newWorld(t)
	if _, err := w.loop.Pass(t.Context()); err != nil {
		t.Fatal(err)
	}
	stop()
	spans := map[string]collector.Span{}
	for _, span := range sent.Spans() {
		spans[span.Name] = span
	}
	for _, name := range []string{"look", "plan", "act"} {
		if got := spans[name]; got.Parent == "" || got.Parent != spans["scale-out pass"].ID {
			t.Errorf("%s is no part of the pass: %+v", name, got)
		}
	}
	for _, name := range []string{"mica.pending_pods", "mica.nodes", "mica.node_groups"} {
		if _, has := spans["plan"].Attributes[name]; !has {
			t.Errorf("the plan lacks %s: %+v", name, spans["plan"])
		}
	}
}
