package docs

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/utils/clock"
	"sigs.k8s.io/yaml"

	"github.com/mica-gpu/mica/pkg/elastic/keda"
	"github.com/mica-gpu/mica/pkg/elastic/profile"
)

const (
	commandPage  = "../../docs/use/keda.md"
	triggersPage = "../../docs/reference/triggers.md"
	profilesPage = "../../docs/reference/profiles.md"
)

func TestWhatTriggersHaveIsDocumented(t *testing.T) {
	for _, test := range []struct {
		page, what, source string
		name               *regexp.Regexp
	}{
		{triggersPage, "key", "../../pkg/elastic/keda/field.go", regexp.MustCompile(`key\w+\s+= "(\w+)"`)},
		{triggersPage, "metric", "../../pkg/elastic/keda/metric.go", regexp.MustCompile(`\{name: "(\w+)"`)},
		{triggersPage, "reason", "../../pkg/elastic/keda/capevents.go", regexp.MustCompile(`[rR]eason\w+ = "(\w+)"`)},
		{triggersPage, "reason", "../../pkg/elastic/keda/degraded.go", regexp.MustCompile(`reason\w+\s+= "(\w+)"`)},
		{commandPage, "flag", "../../cmd/kubectl-gpu/scaledobject.go", regexp.MustCompile(`Var\(&s\.[\w.]+, "([\w-]+)"`)},
	} {
		names := test.name.FindAllStringSubmatch(read(t, test.source), -1)
		if len(names) == 0 {
			t.Errorf("%s has no %s: does the test look for the right thing?", test.source, test.what)
		}
		page := read(t, test.page)
		for _, name := range names {
			if !strings.Contains(page, "`"+name[1]+"`") && !strings.Contains(page, "`--"+name[1]+"`") {
				t.Errorf("%s does not explain %s %s of %s", test.page, test.what, name[1], test.source)
			}
		}
	}
}

// The numbers in the table are those that are used.
func TestTheProfilesInTheTableAreThoseOfTheFile(t *testing.T) {
	page := read(t, profilesPage)
	profiles, err := profile.Load(nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range profiles.Names() {
		p, err := profiles.Get(name)
		if err != nil {
			t.Fatal(err)
		}
		var targets, below []string
		for _, signal := range p.Triggers {
			text := written(signal, p.Targets[signal])
			if p.Holds(signal) {
				text += " (holds)"
			}
			targets = append(targets, text)
		}
		for signal, value := range p.ScaleInBelow {
			below = append(below, written(signal, value))
		}
		slices.Sort(below)
		row := regexp.MustCompile("(?m)^" + regexp.QuoteMeta("| `"+name+"` | ") + "[^|]+" +
			regexp.QuoteMeta(fmt.Sprintf("| %s | %s | %d s |", strings.Join(targets, ", "), strings.Join(below, ", "), p.Cooldown.Duration/time.Second)) + "$")
		if !row.MatchString(page) {
			t.Errorf("%s has no row %s", profilesPage, row)
		}
	}
	for _, text := range []string{
		fmt.Sprintf("by %d %% or %d pods in %d s, the larger", profiles.ScaleOut.Percent, profiles.ScaleOut.Pods, profiles.ScaleOut.Period.Duration/time.Second),
		fmt.Sprintf("after %d s, by %d %%", profiles.ScaleIn.Stabilization.Duration/time.Second, profiles.ScaleIn.Percent),
		fmt.Sprintf("more than %d readings, KEDA keeps the current replicas", profiles.Fallback.Failures),
		fmt.Sprintf("**pollingInterval**: %d s", profiles.PollingInterval.Duration/time.Second),
	} {
		if !strings.Contains(page, text) {
			t.Errorf("%s does not say %q", profilesPage, text)
		}
	}
}

// written is a target as the table has it.
func written(signal string, value float64) string {
	unit := map[string]string{profile.GPUUtilization: " %", profile.GPUMemory: " %", profile.KVCache: " %", profile.TTFT: " s", profile.PromptWait: " s", profile.InterTokenLatency: " s"}[signal]
	return fmt.Sprintf("`%s` %v%s", signal, value, unit)
}

func TestTheDocumentedTriggersCanBeRead(t *testing.T) {
	profiles, err := profile.NewSource("", clock.RealClock{})
	if err != nil {
		t.Fatal(err)
	}
	triggers := 0
	for _, block := range regexp.MustCompile("(?s)```yaml\n(triggers:.*?)```").FindAllStringSubmatch(read(t, triggersPage), -1) {
		var documented struct {
			Triggers []struct {
				Type     string            `json:"type"`
				Metadata map[string]string `json:"metadata"`
			} `json:"triggers"`
		}
		if err := yaml.UnmarshalStrict([]byte(block[1]), &documented); err != nil {
			t.Fatal(err)
		}
		for _, trigger := range documented.Triggers {
			triggers++
			if _, err := keda.Parse("default", trigger.Metadata, profiles); err != nil {
				t.Errorf("%v: %v", trigger.Metadata, err)
			}
		}
	}
	if triggers < 2 {
		t.Errorf("%s shows %d triggers", triggersPage, triggers)
	}
}
