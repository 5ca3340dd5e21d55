package helm_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// An update cannot change the names and selectors of what runs pods: a change here breaks `helm upgrade`.
func TestSelectorsOfPodsStay(t *testing.T) {
	rendered := render(t, "--namespace", "mica", "--is-upgrade", "--set", "mps.enabled=true")
	compareGolden(t, "testdata/selectors.golden.txt", selectors(t, rendered))
}

// selectors lists the DaemonSets and Deployments with their selectors.
func selectors(t *testing.T, rendered string) string {
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
			continue // other kinds have other selectors
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
