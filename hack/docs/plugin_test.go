package docs

import (
	"regexp"
	"strings"
	"testing"
)

// What the plugin counts is explained where users look for it.
func TestThePluginsMetricsAreDocumented(t *testing.T) {
	page := read(t, "../../docs/reference/metrics.md")
	for source, name := range map[string]*regexp.Regexp{
		"../../pkg/node/driver/metrics.go":  regexp.MustCompile(`Name:\s+"(mica_\w+)"`),
		"../../pkg/node/prepare/metrics.go": regexp.MustCompile(`Name:\s+"(mica_\w+)"`),
		"../../pkg/node/monitor/metrics.go": regexp.MustCompile(`Name:\s+"(mica_\w+)"`),
		"../../pkg/node/publish/metrics.go": regexp.MustCompile(`Name:\s+"(mica_\w+)"`),
		"../../pkg/node/driver/census.go":   regexp.MustCompile(`NewDesc\("(mica_\w+)"`),
		"../../pkg/node/account/metrics.go": regexp.MustCompile(`NewDesc\("(mica_\w+)"`),
		"../../pkg/gpu/usage.go":            regexp.MustCompile(`Metric\w+\s+= "(mica_\w+)"`),
		"../../pkg/node/sample/metrics.go":  regexp.MustCompile(`describe\("(mica_\w+)"`),
	} {
		names := name.FindAllStringSubmatch(read(t, source), -1)
		if len(names) == 0 {
			t.Errorf("%s has no metric: does the test look for the right thing?", source)
		}
		for _, name := range names {
			if !strings.Contains(page, "| `"+name[1]+"` |") {
				t.Errorf("docs/reference/metrics.md does not explain %s of %s", name[1], source)
			}
		}
	}
}
