// Package observability_test holds the alerts and dashboards of the chart to the metrics that there are and
// to the pages that explain them. Whether their queries find something is for test/e2e, with a real Prometheus.
package observability_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

const (
	alertFiles = "../helm/mica/alerts/*.yaml"
	page       = "../../docs/operate/observability.md"
	runbooks   = "https://github.com/mica-gpu/mica/blob/main/docs/operate/observability.md#"
)

type alert struct {
	Alert       string            `json:"alert"`
	Expr        string            `json:"expr"`
	For         string            `json:"for"`
	Labels      map[string]string `json:"labels"`
	Annotations map[string]string `json:"annotations"`
}

func alerts(t *testing.T) []alert {
	t.Helper()
	var all []alert
	for _, path := range glob(t, alertFiles) {
		var file struct {
			Groups []struct {
				Name  string  `json:"name"`
				Rules []alert `json:"rules"`
			} `json:"groups"`
		}
		if err := yaml.UnmarshalStrict([]byte(read(t, path)), &file); err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		for _, group := range file.Groups {
			if want := "mica-" + strings.TrimSuffix(filepath.Base(path), ".yaml"); group.Name != want {
				t.Errorf("%s has the group %s, want %s", path, group.Name, want)
			}
			all = append(all, group.Rules...)
		}
	}
	return all
}

func TestEveryAlertSaysWhatToDo(t *testing.T) {
	text := read(t, page)
	var sections []string
	for _, heading := range regexp.MustCompile(`(?m)^### (Mica\w+)$`).FindAllStringSubmatch(text, -1) {
		sections = append(sections, heading[1])
	}
	tests := read(t, "alerts_test.yaml")
	var names []string
	for _, a := range alerts(t) {
		names = append(names, a.Alert)
		if severities := []string{"critical", "warning", "info"}; !slices.Contains(severities, a.Labels["severity"]) {
			t.Errorf("%s has the severity %q, want one of %q", a.Alert, a.Labels["severity"], severities)
		}
		if len(a.Labels) != 1 {
			t.Errorf("%s sets the labels %v, want severity alone", a.Alert, a.Labels)
		}
		for _, annotation := range []string{"summary", "description"} {
			if text := a.Annotations[annotation]; !strings.HasSuffix(text, ".") {
				t.Errorf("%s has the %s %q, which is no sentence", a.Alert, annotation, text)
			}
		}
		if got, want := a.Annotations["runbook_url"], runbooks+strings.ToLower(a.Alert); got != want {
			t.Errorf("%s has the runbook %s, want %s", a.Alert, got, want)
		}
		if !strings.Contains(tests, `alertname="`+a.Alert+`"`) {
			t.Errorf("%s fires in no test of alerts_test.yaml", a.Alert)
		}
		expectKnownMetrics(t, a.Alert, a.Expr)
	}
	slices.Sort(names)
	slices.Sort(sections)
	if !slices.Equal(names, sections) {
		t.Errorf("%s has sections for\n%q, and there are the alerts\n%q", page, sections, names)
	}
	if len(names) < 10 {
		t.Errorf("found %d alerts, too few to be the chart's", len(names))
	}
}

var (
	// metricName is a name as PromQL writes it before a selector, a range, an operator or the end.
	metricName = regexp.MustCompile(`\b(?:mica_|keda_|vllm:|leader_election_)[\w:]+`)
	// selector is whatever has braces after it.
	selector = regexp.MustCompile(`([a-zA-Z_][\w:]*)\{`)
	// parts are what a histogram has instead of its name.
	parts = regexp.MustCompile(`_(bucket|count|sum)$`)
)

// expectKnownMetrics wants Mica's metrics in docs/reference/metrics.md and those of others in docs/operate/observability.md.
func expectKnownMetrics(t *testing.T, what, query string) {
	t.Helper()
	names := metricName.FindAllString(query, -1)
	for _, match := range selector.FindAllStringSubmatch(query, -1) {
		if match[1] != "up" && !slices.Contains(names, match[1]) {
			t.Errorf("%s: %s is a metric unknown to the test", what, match[1])
		}
	}
	if len(names) == 0 && !strings.Contains(query, "up{") {
		t.Errorf("%s: the query %s has no metric", what, query)
	}
	ours, others := read(t, "../../docs/reference/metrics.md"), read(t, page)
	for _, name := range names {
		if strings.HasPrefix(name, "mica_") {
			if !strings.Contains(ours, "| `"+name+"` |") && !strings.Contains(ours, "| `"+parts.ReplaceAllString(name, "")+"` | histogram |") {
				t.Errorf("%s: docs/reference/metrics.md has no metric %s", what, name)
			}
		} else if !strings.Contains(others, "`"+parts.ReplaceAllString(name, "")+"`") {
			t.Errorf("%s: %s does not say that %s is used", what, page, name)
		}
	}
}

func glob(t *testing.T, pattern string) []string {
	t.Helper()
	paths, err := filepath.Glob(pattern)
	if err != nil || len(paths) == 0 {
		t.Fatalf("there are no files %s: %v", pattern, err)
	}
	return paths
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// The queries that are tested are those that users read.
func TestTestedQueriesAreDocumented(t *testing.T) {
	var file struct {
		Tests []struct {
			Queries []struct {
				Expr string `json:"expr"`
			} `json:"promql_expr_test"`
		} `json:"tests"`
	}
	if err := yaml.Unmarshal([]byte(read(t, "queries_test.yaml")), &file); err != nil {
		t.Fatal(err)
	}
	if len(file.Tests) == 0 {
		t.Error("queries_test.yaml has no test")
	}
	text := read(t, "../../docs/reference/metrics.md") + read(t, "../../docs/use/rightsize.md")
	for _, test := range file.Tests {
		for _, query := range test.Queries {
			if !strings.Contains(text, "\n"+query.Expr+"\n") {
				t.Errorf("no page has the query %s", query.Expr)
			}
		}
	}
}
