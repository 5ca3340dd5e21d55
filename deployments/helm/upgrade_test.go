package helm_test

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// There was no release yet: testdata/earlier has the values of a chart before it had kubeletPlugin.besideDevicePlugin and
// viewGPUs, as `helm upgrade --reuse-values` gives them to the new templates, and what an upgrade cannot change.
func TestUpgradeWithTheValuesOfAnEarlierChart(t *testing.T) {
	chart := filepath.Join(t.TempDir(), "mica")
	if err := os.CopyFS(chart, os.DirFS("mica")); err != nil {
		t.Fatal(err)
	}
	values, err := os.ReadFile("testdata/earlier/values.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(chart, "values.yaml"), values, 0o600); err != nil {
		t.Fatal(err)
	}
	args := []string{"--namespace", "mica", "--is-upgrade", "--set", "mps.enabled=true"}
	stdout, stderr, err := helm(t, append([]string{"template", "mica", chart}, args...)...)
	if err != nil {
		t.Fatalf("the new templates do not render with the earlier values:\n%s", stderr)
	}
	compareGolden(t, "testdata/earlier/immutable.golden.txt", immutable(t, stdout))
	compareGolden(t, "testdata/earlier/immutable.golden.txt", immutable(t, render(t, args...)))
}

// immutable are the names of what has pods, with the selectors, which no update can change.
func immutable(t *testing.T, rendered string) string {
	t.Helper()
	lines := map[string]bool{}
	for document := range strings.SplitSeq(rendered, "\n---\n") {
		var object struct {
			Kind     string
			Metadata struct{ Namespace, Name string }
			Spec     struct {
				Selector struct{ MatchLabels map[string]string }
			}
		}
		if err := yaml.Unmarshal([]byte(document), &object); err != nil {
			continue // of another shape, and so no selector of pods
		}
		if object.Kind != "DaemonSet" && object.Kind != "Deployment" {
			continue
		}
		labels := object.Spec.Selector.MatchLabels
		var selector []string
		for _, key := range slices.Sorted(maps.Keys(labels)) {
			selector = append(selector, key+"="+labels[key])
		}
		lines[fmt.Sprintf("%s %s/%s: %s", object.Kind, object.Metadata.Namespace, object.Metadata.Name, strings.Join(selector, ","))] = true
	}
	return strings.Join(slices.Sorted(maps.Keys(lines)), "\n") + "\n"
}
