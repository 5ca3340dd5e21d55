package view

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/validation"
)

func TestNamesOfEKSBecomeNamesOfObjects(t *testing.T) {
	seen := map[string]string{}
	for _, name := range []string{
		"p5", "p5-spot", "P5", "p5_spot", "p5__spot", "P5_Spot", "5a", "-", "_",
		strings.Repeat("G", 63), strings.Repeat("g", 63),
	} {
		got := DiscoveredName(name)
		if problems := validation.IsDNS1123Subdomain(got); len(problems) > 0 {
			t.Errorf("%q becomes %q: %v", name, got, problems)
		}
		if other, twice := seen[got]; twice {
			t.Errorf("%q and %q both become %q", name, other, got)
		}
		seen[got] = name
	}
	if got := DiscoveredName("p5-spot"); got != "p5-spot" {
		t.Errorf("a name that can be kept becomes %q", got)
	}
}
