package explain

import (
	"cmp"
	"fmt"
	"io"
	"strings"

	"github.com/mica-gpu/mica/pkg/kubectl/terminal"
)

// Table writes an explanation for people.
func Table(w io.Writer, screen terminal.Screen, e Explanation) error {
	return Write(w, screen, fmt.Sprintf("Pod %s: %s", e.Pod, e.Outcome), e.Summary, e.Verdicts, e.More)
}

// Write writes under a title what it says, and verdicts, with the number of those that are left out.
func Write(w io.Writer, screen terminal.Screen, title, summary string, verdicts []Verdict, more int) error {
	lines := append([]string{title}, screen.Lines(summary, 0)...)
	if len(verdicts) > 0 {
		lines = append(lines, "")
	}
	if _, err := fmt.Fprintln(w, strings.Join(lines, "\n")); err != nil {
		return err
	}
	if err := screen.Write(w, table(verdicts)); err != nil || more == 0 {
		return err
	}
	_, err := fmt.Fprintf(w, "and %d more, which are farther from a fit\n", more)
	return err
}

// Value is an explanation for programs.
func Value(e Explanation) any {
	return struct {
		Namespace string `json:"namespace"`
		Name      string `json:"name"`
		Explanation
	}{e.Pod.Namespace, e.Pod.Name, e}
}

func table(verdicts []Verdict) terminal.Table {
	t := terminal.Table{Columns: []terminal.Column{{Title: "GROUP", Key: true}, {Title: "NODES", Key: true}, {Title: "RESULT"}, {Title: "WHY", Wrapped: true}}}
	for _, v := range verdicts {
		nodes, result, why := "new", terminal.Cell{Text: "Fits", Style: terminal.Good}, v.Text
		if v.Live {
			nodes = fmt.Sprintf("%d: %s", v.Nodes, v.Example)
			if v.Nodes > 1 {
				nodes += ", …"
			}
		}
		if !v.Fits {
			result = terminal.Cell{Text: v.Blocker, Style: terminal.Warning}
		}
		if v.Hint != "" {
			why += "\nHint: " + v.Hint
		}
		t.Rows = append(t.Rows, terminal.Row{{Text: cmp.Or(v.Group, "-")}, {Text: nodes}, result, {Text: why}})
	}
	return t
}
