package scaleout

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/mica-gpu/mica/pkg/devices"
	"github.com/mica-gpu/mica/test/fixture"
)

// write has a line per pod and claim.
func write(placements []Placement) string {
	var b strings.Builder
	for _, p := range placements {
		where := p.Node
		if where == "" {
			where = fmt.Sprintf("%s#%d", p.Group, p.New)
		}
		for _, claim := range p.Claims {
			fmt.Fprintf(&b, "%s on %s has for %s", p.Pod.Name, where, claim.Called)
			for _, r := range claim.Results {
				fmt.Fprintf(&b, " %s/%s", r.Pool, r.Device)
			}
			b.WriteString("\n")
		}
	}
	return b.String()
}

func placements(t *testing.T, lines ...string) []Placement {
	t.Helper()
	w := newWorld(t)
	for _, line := range lines {
		w.line(line)
	}
	p := NewPlanner(w.Snapshot)
	placed, err := p.Placements(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return placed
}

func TestPlacements(t *testing.T) {
	for name, tc := range map[string]struct {
		lines []string
		want  string
	}{
		"nodes that are alike have pools of their own": {
			[]string{"node n1 g5.12xlarge", "node n2 g5.12xlarge", "template three", "request gpu gpu.nvidia.com count=3", "pods a 2 templates=three"},
			`a-1 on n1 has for claim "three" n1/gpu-0 n1/gpu-1 n1/gpu-2
a-2 on n2 has for claim "three" n2/gpu-0 n2/gpu-1 n2/gpu-2
`},
		"what is in use is not given": {
			[]string{"node n1 g5.12xlarge used=gpu-0,gpu-2", "template one", "request gpu gpu.nvidia.com", "pods a 3 templates=one"},
			`a-1 on n1 has for claim "one" n1/gpu-1
a-2 on n1 has for claim "one" n1/gpu-3
`},
		"new nodes are numbered by group": {
			[]string{"group g5 g5.12xlarge", "template four", "request gpu gpu.nvidia.com count=4", "pods a 2 templates=four"},
			`a-1 on g5#1 has for claim "four" template-of-g5/gpu-0 template-of-g5/gpu-1 template-of-g5/gpu-2 template-of-g5/gpu-3
a-2 on g5#2 has for claim "four" template-of-g5/gpu-0 template-of-g5/gpu-1 template-of-g5/gpu-2 template-of-g5/gpu-3
`},
		"pods that share a claim have the same": {
			[]string{"node n1 g5.12xlarge", "claim common", "request gpu gpu.nvidia.com", "template own", "request gpu gpu.nvidia.com", "pods a 2 claims=common templates=own"},
			`a-1 on n1 has for claim "own" n1/gpu-0
a-1 on n1 has for claim "common" n1/gpu-1
a-2 on n1 has for claim "own" n1/gpu-2
a-2 on n1 has for claim "common" n1/gpu-1
`},
		"a claim is allocated already": {
			[]string{"node n1 g5.12xlarge", "claim common on=n1 devices=gpu-2", "request gpu gpu.nvidia.com", "pods a 1 claims=common"},
			"a-1 on n1 has for claim \"common\" n1/gpu-2\n"},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, write(placements(t, tc.lines...))); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

// In no scenario of the plan a pod goes without a device for one of its claims, and none is given twice.
func TestPlacementsOfAllScenarios(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scenarios: %v", err)
	}
	given := 0
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			given += checkPlacements(t, file)
		})
	}
	if given < 100 {
		t.Errorf("only %d devices were given: the test does not look at the scenarios", given)
	}
}

func checkPlacements(t *testing.T, file string) (given int) {
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	script, _, _ := strings.Cut(string(text), "----\n")
	w := newWorld(t)
	for line := range strings.Lines(script) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			w.do(fixture.ParseLine(line))
		}
	}
	planner := NewPlanner(w.Snapshot)
	placed, err := planner.Placements(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	owners, shared := map[string]string{}, map[string]bool{}
	for _, claim := range w.Claims {
		shared[fmt.Sprintf("claim %q", claim.Name)] = true
	}
	for _, p := range placed {
		for _, claim := range p.Claims {
			if len(claim.Results) == 0 {
				t.Errorf("pod %s gets nothing for %s", p.Pod.Name, claim.Called)
			}
			for result := range devices.Results(&resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{Results: claim.Results}}) {
				given++
				key := fmt.Sprint(p.Node, p.Group, p.New, devices.Of(result))
				owner := p.Pod.Name
				if shared[claim.Called] {
					owner = claim.Called
				}
				if other, taken := owners[key]; taken && result.ShareID == nil && other != owner {
					t.Errorf("%s is given to %s and %s", key, other, owner)
				}
				owners[key] = owner
			}
		}
	}
	decision, err := planner.Decide(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	fits := 0
	for _, kind := range decision.Kinds {
		for _, pod := range kind.Pods {
			switch pod.Outcome {
			case FitsNode, FitsStarting, NeedsNode, Advised:
				fits++
			}
		}
	}
	if fits != len(placed) {
		t.Errorf("%d pods are placed, and %d fit", len(placed), fits)
	}
	return given
}
