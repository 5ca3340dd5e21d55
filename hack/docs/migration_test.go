package docs

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/mica-gpu/mica/pkg/settings"
)

// What plugin and chart accept of NVIDIA's driver is on the page for those who come from
// it, in the same words, and nothing else is.
func TestWhatIsAcceptedOfNVIDIAsDriverIsDocumented(t *testing.T) {
	chart := "../../deployments/helm/mica/"
	var values []struct{ Value, Instead string }
	if err := yaml.Unmarshal([]byte(read(t, chart+"nvidia-values.yaml")), &values); err != nil {
		t.Fatal(err)
	}
	var want []string
	row := func(theirs, ours string) { want = append(want, "| `"+theirs+"` | "+ours+" |") }
	noted := map[string]string{}
	for _, value := range values {
		if gate, isGate := strings.CutPrefix(value.Value, "featureGates."); isGate {
			noted[gate] = value.Instead
			continue
		}
		row(value.Value, value.Instead)
	}
	for flag, instead := range settings.NVIDIAFlags {
		row("--"+flag, instead)
	}
	schema := read(t, chart+"values.schema.json")
	for gate, instead := range settings.NVIDIAGates {
		row(gate, instead)
		if !regexp.MustCompile(`"\^\([\w|]*\b` + gate + `\b`).MatchString(schema) {
			t.Errorf("the chart's schema refuses the feature gate %s, which the plugin accepts", gate)
		}
		if noted[gate] != instead && gate != "DynamicMIG" { // by which the chart goes
			t.Errorf("the chart's notes say %q of the feature gate %s, and the plugin's log %q", noted[gate], gate, instead)
		}
	}
	var got []string
	for line := range strings.Lines(read(t, "../../docs/start/migration.md")) {
		if line = strings.TrimSpace(line); strings.HasPrefix(line, "| `") {
			got = append(got, line)
		}
	}
	slices.Sort(want)
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("docs/start/migration.md does not say what code and chart do:\n got: %s\nwant: %s", strings.Join(got, "\n      "), strings.Join(want, "\n      "))
	}
}
