package scaleout

import (
	"context"
	"errors"
	"go/parser"
	"go/token"
	"path/filepath"
	"strings"
	"testing"
)

func TestEndOfContextIsTheOnlyError(t *testing.T) {
	w := newWorld(t)
	w.line("group p5 p5.48xlarge")
	w.line("template one")
	w.line("request gpu gpu.nvidia.com")
	w.line("pods a 1 templates=one")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Plan(ctx, w.Snapshot); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want that the context was cancelled", err)
	}
}

// Of two nodes that are coming, the cheaper one was asked for pods that fit nowhere else.
func TestNodesAreLeftToThoseForWhomTheyWereAskedFor(t *testing.T) {
	w := newWorld(t)
	w.line("group cheap p5.48xlarge price=1 labels=zone:a")
	w.line("group dear p5.48xlarge price=2")
	w.line("template eight")
	w.line("request gpu gpu.nvidia.com count=8")
	w.line("pods urgent 1 templates=eight priority=1")
	w.line("pods bound 1 templates=eight select=zone:a")
	kinds := planned(t, w).Kinds
	w.Groups[0].Upcoming, w.Groups[0].UpcomingFor = 1, []string{kinds[1].ID}
	w.Groups[1].Upcoming, w.Groups[1].UpcomingFor = 1, []string{kinds[0].ID}
	if decision := planned(t, w); len(decision.Growth) > 0 {
		t.Errorf("with what was asked for known, more is asked for:\n%s", log(decision))
	}
	w.Groups[0].UpcomingFor, w.Groups[1].UpcomingFor = []string{kinds[1].ID}, nil
	if decision := planned(t, w); len(decision.Growth) > 0 {
		t.Errorf("a node for pods that wait is taken before one for none:\n%s", log(decision))
	}
	w.Groups[0].UpcomingFor = nil
	if decision := planned(t, w); len(decision.Growth) != 1 {
		t.Errorf("with nothing known the cheaper node goes to the more urgent pod, and one more is asked for; got:\n%s", log(decision))
	}
}

// Plan is a decision with its supplies.
func Plan(ctx context.Context, s Snapshot) (Decision, error) {
	p := NewPlanner(s)
	decision, err := p.Decide(ctx)
	if err != nil {
		return Decision{}, err
	}
	decision.Supplies, err = p.Supplies(ctx)
	return decision, err
}

func planned(t *testing.T, w *world) Decision {
	t.Helper()
	decision, err := Plan(t.Context(), w.Snapshot)
	if err != nil {
		t.Fatal(err)
	}
	return decision
}

// What takes too long is told by the work that it is: the same snapshot gives the same plan on every
// machine, under any load.
func TestThePlanHasNoClock(t *testing.T) {
	for _, folder := range []string{".", "fit"} {
		files, err := filepath.Glob(filepath.Join(folder, "*.go"))
		if err != nil || len(files) == 0 {
			t.Fatalf("no files in %s: %v", folder, err)
		}
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ImportsOnly)
			if err != nil {
				t.Fatal(err)
			}
			for _, imported := range parsed.Imports {
				if imported.Path.Value == `"time"` {
					t.Errorf("%s imports time", file)
				}
			}
		}
	}
}
