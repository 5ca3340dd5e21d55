package docs

import (
	"os/exec"
	"regexp"
	"strings"
	"testing"
)

var testName = regexp.MustCompile("`(Test[A-Za-z0-9]+)`")

// Each test that the table of kubelet's work with claims names is there.
func TestTheTestsOfKubeletAreThere(t *testing.T) {
	_, after, _ := strings.Cut(read(t, "../../docs/project/development.md"), "\n### Kubelet and claims\n")
	table, _, _ := strings.Cut(after, "\n## ")
	named := testName.FindAllStringSubmatch(table, -1)
	if len(named) < 10 {
		t.Errorf("the table names %d tests", len(named))
	}
	for _, match := range named {
		command := exec.Command("git", "grep", "--untracked", "--quiet", "^func "+match[1]+"(t ", "--", "*_test.go")
		command.Dir = root
		if out, err := command.CombinedOutput(); err != nil {
			t.Errorf("no test is %s: %v %s", match[1], err, out)
		}
	}
}
