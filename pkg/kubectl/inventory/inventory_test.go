package inventory

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/mica-gpu/mica/pkg/fleet"
	"github.com/mica-gpu/mica/pkg/kubectl/terminal"
	"github.com/mica-gpu/mica/test/fixture"
)

// gpusOf reads a file that the tests of pkg/fleet write.
func gpusOf(t *testing.T, name string) []fleet.GPU {
	t.Helper()
	content, err := os.ReadFile(filepath.Join("../../fleet/testdata", name+".gpus.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var gpus []fleet.GPU
	if err := yaml.UnmarshalStrict(content, &gpus); err != nil {
		t.Fatal(err)
	}
	return gpus
}

func TestTables(t *testing.T) {
	for name, test := range map[string]struct {
		widths []int
		wide   bool
	}{
		"everything":              {[]int{0, 140, 79}, false},
		"everything.wide":         {[]int{0, 140, 79}, true},
		"nvidia":                  {[]int{0}, true},
		"consumable":              {[]int{0}, true},
		"claims-of-one-namespace": {[]int{100}, false},
		"no-slices":               {[]int{100}, false},
		"no-claims":               {[]int{100}, false},
	} {
		t.Run(name, func(t *testing.T) {
			var out strings.Builder
			for _, width := range test.widths {
				if len(test.widths) > 1 {
					fmt.Fprintf(&out, "--- %d\n", width)
				}
				if err := (terminal.Screen{Width: width}).Write(&out, Table(gpusOf(t, strings.TrimSuffix(name, ".wide")), test.wide)); err != nil {
					t.Fatal(err)
				}
			}
			fixture.Golden(t, name+".txt", out.String())
		})
	}
}

func TestFilters(t *testing.T) {
	all := gpusOf(t, "everything")
	for name, test := range map[string]struct {
		filter Filter
		want   string
	}{
		"all":            {Filter{}, "gpu-0 gpu-1 gpu-2 gpu-3 gpu-4 gpu-5 gpu-6 gpu-9"},
		"of a node":      {Filter{Nodes: []string{"n1"}, Product: "h100"}, "gpu-0 gpu-1 gpu-2 gpu-3 gpu-4 gpu-5 gpu-6"},
		"of no node":     {Filter{Nodes: []string{"n2"}}, ""},
		"of a product":   {Filter{Product: "A100"}, ""},
		"with room":      {Filter{Free: true}, "gpu-1 gpu-2 gpu-3 gpu-4 gpu-6"},
		"of a namespace": {Filter{Namespace: "research"}, "gpu-0 gpu-1 gpu-2 gpu-3 gpu-9"},
		"of another":     {Filter{Namespace: "default"}, ""},
	} {
		var names []string
		for _, g := range test.filter.Select(all) {
			names = append(names, g.Name)
		}
		if got := strings.Join(names, " "); got != test.want {
			t.Errorf("%s: %s, want %s", name, cmp.Or(got, "none"), cmp.Or(test.want, "none"))
		}
	}
}
