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
	lines := append([]string{fmt.Sprintf("Pod %s: %s", e.Pod, e.Outcome)}, screen.Lines(e.Summary, 0)...)
	if len(e.Verdicts) > 0 {
		lines = append(lines, "")
	}
	if _, err := fmt.Fprintln(w, strings.Join(lines, "\n")); err != nil {
		return err
	}
	if err := screen.Write(w, table(e.Verdicts)); err != nil || e.More == 0 {
		return err
	}
	_, err := fmt.Fprintf(w, "and %d more, which are farther from a fit\n", e.More)
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
	t := terminal.Table{Columns: []terminal.Column{{Title: "GROUP"}, {Title: "NODES"}, {Title: "RESULT"}, {Title: "WHY", Wrapped: true}}}
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
