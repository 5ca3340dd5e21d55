// Package explain prints the answers of kubectl gpu explain: why a pod or a claim waits, which devices a claim has,
// where the pods of a manifest would go, and what a node of an instance type will publish. pkg/scaleout plans and
// pkg/scaleout/explain finds the reasons. This package reads manifests and writes nothing to the cluster.
package explain

import (
	"cmp"
	"fmt"
	"io"
	"strings"

	"github.com/mica-gpu/mica/pkg/kubectl/terminal"
	reasons "github.com/mica-gpu/mica/pkg/scaleout/explain"
)

// Pod is the answer about a pod.
type Pod struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// Workload is the object of a manifest that the pod belongs to, as Kind/name.
	Workload string `json:"workload,omitempty"`
	reasons.Explanation
}

// NewPod is the answer about a pod of the cluster.
func NewPod(e reasons.Explanation) Pod {
	return Pod{Namespace: e.Pod.Namespace, Name: e.Pod.Name, Explanation: e}
}

// Write prints the answer as a table.
func (p Pod) Write(w io.Writer, screen terminal.Screen) error {
	return write(w, screen, fmt.Sprintf("Pod %s/%s: %s", p.Namespace, p.Name, p.Outcome), p.Summary, p.Verdicts, p.More)
}

// write prints a title, a summary, and a table of verdicts. more is the number of verdicts that are left out.
func write(w io.Writer, screen terminal.Screen, title, summary string, verdicts []reasons.Verdict, more int) error {
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

func table(verdicts []reasons.Verdict) terminal.Table {
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
