package schema

import (
	"path/filepath"
	"testing"

	"github.com/prometheus/prometheus/promql/parser"
	"sigs.k8s.io/yaml"

	kedav1alpha1 "github.com/kedacore/keda/v2/apis/keda/v1alpha1"
)

// A query that does not parse would only be told of by the ScaledObject's Events.
func TestPrometheusReadsEveryQuery(t *testing.T) {
	read := 0
	for _, place := range files {
		paths, err := filepath.Glob(place.pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range paths {
			for _, document := range kedas(t, path) {
				var object kedav1alpha1.ScaledObject
				if err := yaml.Unmarshal([]byte(document), &object); err != nil {
					t.Fatal(err)
				}
				for _, trigger := range object.Spec.Triggers {
					query, ok := trigger.Metadata["query"]
					if !ok {
						continue
					}
					read++
					expression, err := parser.NewParser(parser.Options{}).ParseExpr(query)
					if err != nil {
						t.Errorf("%s: trigger %s: %v", path, trigger.Name, err)
					} else if kind := expression.Type(); kind != parser.ValueTypeVector {
						t.Errorf("%s: trigger %s gives a %s", path, trigger.Name, kind)
					}
				}
			}
		}
	}
	if read < 25 {
		t.Errorf("only %d queries were read", read)
	}
}
