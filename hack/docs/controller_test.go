package docs

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// What the controller has by name is explained where users look for it.
func TestTheControllersNamesAreDocumented(t *testing.T) {
	for _, test := range []struct {
		what, source, page string
		// name has a name as its group.
		name *regexp.Regexp
	}{
		{"metric", "../../pkg/scaleout/control/metrics.go", "../../docs/reference/metrics.md", regexp.MustCompile(`Name:\s+"(mica_\w+)"`)},
		{"metric", "../../pkg/scaleout/control/arrivals.go", "../../docs/reference/metrics.md", regexp.MustCompile(`Name:\s+"(mica_\w+)"`)},
		{"metric", "../../pkg/elastic/keda/calls.go", "../../docs/reference/metrics.md", regexp.MustCompile(`Name:\s+"(mica_\w+)"`)},
		{"metric", "../../pkg/elastic/keda/capevents.go", "../../docs/reference/metrics.md", regexp.MustCompile(`Name:\s+"(mica_\w+)"`)},
		{"metric", "../../pkg/elastic/standby/keeper.go", "../../docs/reference/metrics.md", regexp.MustCompile(`Name:\s+"(mica_\w+)"`)},
		{"reason", "../../pkg/elastic/keda/capevents.go", "../../docs/operate/troubleshooting.md", regexp.MustCompile(`[rR]eason\w+\s+= "(\w+)"`)},
		{"flag", "../../cmd/controller/flags.go", "../../docs/reference/configuration.md", regexp.MustCompile(`Var\((?:&f\.\w+(?:\.\w+)*), "([\w-]+)"`)},
		{"reason", "../../pkg/scaleout/explain/report.go", "../../docs/operate/troubleshooting.md", regexp.MustCompile(`[rR]eason\w+\s+= "(\w+)"`)},
		{"reason", "../../pkg/scaleout/ready/gate.go", "../../docs/operate/troubleshooting.md", regexp.MustCompile(`[rR]eason\w+\s+= "(\w+)"`)},
		{"reason", "../../api/v1alpha1/nodegroup.go", "../../docs/operate/troubleshooting.md", regexp.MustCompile(`[rR]eason\w+\s+= "(\w+)"`)},
		{"reason", "../../api/v1alpha1/headroom.go", "../../docs/operate/troubleshooting.md", regexp.MustCompile(`[rR]eason\w+\s+= "(\w+)"`)},
	} {
		source, page := read(t, test.source), read(t, test.page)
		names := test.name.FindAllStringSubmatch(source, -1)
		if len(names) == 0 {
			t.Errorf("%s has no %s: does the test look for the right thing?", test.source, test.what)
		}
		for _, name := range names {
			written := "`" + name[1] + "`"
			if test.what == "flag" {
				written = "`--" + name[1] + "`"
			}
			if !good[name[1]] && !strings.Contains(page, written) {
				t.Errorf("%s does not explain %s %s of %s", test.page, test.what, written, test.source)
			}
		}
	}
}

// good are reasons of conditions that say that all is well.
var good = map[string]bool{"Ready": true, "AsPredicted": true, "NoFailure": true, "Listed": true}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
