package docs

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/mica-gpu/mica/test/pages"
)

// languages that a block may have: neither the site nor a test reads one without.
var languages = []string{"sh", "console", "text", "yaml", "json", "toml", "promql", "go", "cel"}

// reasons for which no test runs a block, and what it would need.
var reasons = map[string]string{
	"hardware":   "a GPU of NVIDIA and its driver",
	"node":       "a shell on a node",
	"aws":        "an account at AWS",
	"engine":     "a container engine",
	"registry":   "a registry of images",
	"network":    "sources of others",
	"root":       "a machine of its own, as root: make demo and its like",
	"operator":   "NVIDIA's GPU Operator or DRA driver",
	"keda":       "KEDA with Prometheus; test/e2e/keda_*_test.go do the same by other words",
	"kueue":      "Kueue",
	"prometheus": "Prometheus in the cluster",
	"jq":         "jq",
	"care":       "a cluster to throw away",
}

// Whoever copies a command may trust that it was run: by the test that the block names, by the end-to-end tests if it
// says run=cluster, or that it says for want of what it was not.
func TestEveryCommandIsRunOrSaysWhyNot(t *testing.T) {
	tests := namesOfTests(t)
	ran := 0
	for _, block := range blocks(t) {
		if !slices.Contains(languages, block.Language) {
			t.Errorf("%s: a block of code has the language %q, want one of %v", block, block.Language, languages)
		}
		if !block.IsShell() {
			continue
		}
		run, needs := block.Attributes["run"], block.Attributes["needs"]
		switch {
		case run == "" && needs == "":
			t.Errorf("%s: no test runs these commands: name one ({run=TestName}), have the end-to-end tests run them ({run=cluster}), or say what they need ({needs=hardware})", block)
		case run != "" && needs != "":
			t.Errorf("%s: either a test runs these commands, or they need something that there is not", block)
		case needs != "" && reasons[needs] == "":
			t.Errorf("%s: needs=%s is unknown: add it to reasons, with what it is", block, needs)
		case run != "" && run != "cluster" && !tests[run]:
			t.Errorf("%s: there is no test %s", block, run)
		}
		if run != "" {
			ran++
		}
	}
	if ran < 20 {
		t.Errorf("only %d blocks are run by tests: does the test look for the right thing?", ran)
	}
}

// What can be checked of a command without running it.
func TestCommandsNameWhatThereIs(t *testing.T) {
	makefile := read(t, "../../Makefile")
	included, err := filepath.Glob("../../test/*/*.mk")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range included {
		makefile += read(t, file)
	}
	file := regexp.MustCompile(`(?:^|\s)((?:examples|deployments|hack|test)/[\w./-]+)`)
	for _, block := range blocks(t) {
		if !block.IsShell() {
			continue
		}
		if out, err := exec.Command("bash", "-n", "-c", block.Script()).CombinedOutput(); err != nil {
			t.Errorf("%s: bash cannot read it: %s", block, out)
		}
		for _, command := range block.Commands("make") {
			for _, target := range strings.Fields(command)[1:] {
				if target == "#" {
					break
				}
				if !strings.Contains(target, "=") && !strings.Contains("\n"+makefile, "\n"+target+":") {
					t.Errorf("%s: make has no target %s", block, target)
				}
			}
		}
		for _, name := range file.FindAllStringSubmatch(block.Script(), -1) {
			if _, err := os.Stat(filepath.Join(root, name[1])); err != nil {
				t.Errorf("%s: there is no file %s", block, name[1])
			}
		}
	}
}

func blocks(t *testing.T) []pages.Block {
	t.Helper()
	found, err := pages.Blocks(root)
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// namesOfTests are those of all tests of the repository.
func namesOfTests(t *testing.T) map[string]bool {
	t.Helper()
	out, err := exec.Command("git", "-C", root, "grep", "--untracked", "-hoE", `^func Test\w+`, "--", "*_test.go").Output()
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for line := range strings.Lines(string(out)) {
		names[strings.TrimPrefix(strings.TrimSpace(line), "func ")] = true
	}
	return names
}
