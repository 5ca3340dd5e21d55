package prepare

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"k8s.io/component-base/metrics"
)

// counted has the metrics of this process.
var counted = func() metrics.KubeRegistry {
	registry := metrics.NewKubeRegistry()
	RegisterMetrics(registry.MustRegister)
	return registry
}()

// corrections starts to count what is put right; the function that it returns says what was, each with its
// number, in the order of names.
func correctionsOf(t *testing.T) (since func() string) {
	t.Helper()
	read := func() map[string]int {
		families, err := counted.Gather()
		must(t, err)
		numbers := map[string]int{}
		for _, family := range families {
			for _, m := range family.GetMetric() {
				if family.GetName() == "mica_reconcile_corrections_total" {
					numbers[m.GetLabel()[0].GetValue()] = int(m.GetCounter().GetValue())
				}
			}
		}
		return numbers
	}
	before := read()
	if len(before) != len(corrections) {
		t.Fatalf("there are series of %v at the start", before)
	}
	return func() string {
		var done []string
		for name, n := range read() {
			if n > before[name] {
				done = append(done, fmt.Sprintf("%s %d", name, n-before[name]))
			}
		}
		slices.Sort(done)
		return strings.Join(done, ", ")
	}
}
