package helm_test

import (
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/mica-gpu/mica/test/pages"
)

// TestChartCommandsOfTheDocs renders the chart with the arguments of every command of the pages that installs or
// upgrades it: a value that the chart does not have, or a set of values that it refuses, is found here.
func TestChartCommandsOfTheDocs(t *testing.T) {
	commands, err := pages.Commands("../..", "helm")
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, command := range commands {
		args := words(t, command.Line)
		chart := slices.Index(args, "deployments/helm/mica")
		if chart < 0 {
			continue
		}
		found++
		settings := slices.DeleteFunc(args[chart+1:], func(arg string) bool {
			return arg == "--reuse-values" || arg == "--reset-then-reuse-values" || arg == "--create-namespace" || arg == "--wait"
		})
		for i := range settings {
			settings[i] = strings.TrimPrefix(settings[i], "deployments/helm/") // where this test runs
		}
		if !slices.Contains(settings, "--namespace") {
			t.Errorf("%s: %s: the chart refuses the namespace default", command.Where, command.Line)
		}
		if _, stderr, err := helm(t, append([]string{"template", "mica", "mica"}, settings...)...); err != nil {
			t.Errorf("%s: %s: %v: %s", command.Where, command.Line, err, stderr)
		}
	}
	if found < 8 {
		t.Errorf("there are only %d commands with the chart: does the test look for the right thing?", found)
	}
}

// words are those that a shell makes of a command.
func words(t *testing.T, command string) []string {
	t.Helper()
	out, err := exec.Command("bash", "-c", `printf '%s\0' `+strings.SplitN(command, " #", 2)[0]).CombinedOutput()
	if err != nil {
		t.Fatalf("split %s: %v: %s", command, err, out)
	}
	return strings.Split(strings.TrimSuffix(string(out), "\x00"), "\x00")
}
