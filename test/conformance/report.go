package conformance

import (
	"fmt"
	"io"
	"slices"
	"sync"
)

// The results of a requirement. One that was not tested, or in part, is none that was passed.
const (
	passed    = "passed"
	failed    = "FAILED"
	notTested = "not tested"
	notRun    = "not run"
)

// requirement is a row of the sheet of Kubernetes AI Conformance.
type requirement struct {
	// ID is the row's, as in KubernetesAIConformance-1.37.yaml.
	ID, Level string
	result    string
	reasons   []string
}

// report collects the results; tests that run in parallel write it.
type report struct {
	mutex sync.Mutex
	rows  []*requirement
}

func newReport() *report {
	r := &report{}
	for _, row := range []struct{ id, level string }{
		{"secure_accelerator_access", "MUST"},
		{"driver_runtime_management", "SHOULD"},
		{"accelerator_metrics", "MUST"},
		{"cluster_autoscaling", "MUST"},
		{"pod_autoscaling", "MUST"},
	} {
		r.rows = append(r.rows, &requirement{ID: row.id, Level: row.level, result: notRun})
	}
	return r
}

// skip notes why a requirement is not tested, or not all of it.
func (r *report) skip(id, reason string) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	row := r.row(id)
	row.reasons = append(row.reasons, reason)
}

// end notes how the test of a requirement has ended.
func (r *report) end(id string, hasFailed bool) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	row := r.row(id)
	switch {
	case hasFailed:
		row.result = failed
	case len(row.reasons) > 0:
		row.result = notTested
	default:
		row.result = passed
	}
}

func (r *report) row(id string) *requirement {
	return r.rows[slices.IndexFunc(r.rows, func(row *requirement) bool { return row.ID == id })]
}

func (r *report) count(result string) int {
	count := 0
	for _, row := range r.rows {
		if row.result == result {
			count++
		}
	}
	return count
}

// write prints a line per requirement, and one for all.
func (r *report) write(w io.Writer) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	fmt.Fprintln(w)
	for _, row := range r.rows {
		fmt.Fprintf(w, "%-26s %-7s %s\n", row.ID, row.Level, row.result)
		for _, reason := range row.reasons {
			fmt.Fprintf(w, "    %s\n", reason)
		}
	}
	fmt.Fprintf(w, "\n%d of %d requirements passed, %d failed, %d not tested, %d not run\n",
		r.count(passed), len(r.rows), r.count(failed), r.count(notTested), r.count(notRun))
}
