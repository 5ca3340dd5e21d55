package explain

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"
)

// columns of a table, and what is between them.
const (
	gap = 2
	// leastWhy is what the last column has, however narrow the terminal.
	leastWhy = 40
)

// Table writes an explanation for people, in lines of so many characters where that can be.
func Table(w io.Writer, e Explanation, width int) error {
	var out strings.Builder
	fmt.Fprintf(&out, "Pod %s: %s\n", e.Pod, e.Outcome)
	for _, line := range wrap(e.Summary, max(width, leastWhy)) {
		fmt.Fprintln(&out, line)
	}
	if len(e.Verdicts) > 0 {
		fmt.Fprintln(&out)
		writeRows(&out, rows(e.Verdicts), width)
	}
	if e.More > 0 {
		fmt.Fprintf(&out, "and %d more, which are farther from a fit\n", e.More)
	}
	_, err := io.WriteString(w, out.String())
	return err
}

// JSON writes an explanation for programs.
func JSON(w io.Writer, e Explanation) error {
	encoder := json.NewEncoder(w)
	// Selectors are full of >= and &&, which are to be read by people as well.
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	return encoder.Encode(struct {
		Namespace string `json:"namespace"`
		Name      string `json:"name"`
		Explanation
	}{e.Pod.Namespace, e.Pod.Name, e})
}

// row is a line of the table, the last column of which may take several.
type row struct {
	cells [3]string
	why   []string
}

func rows(verdicts []Verdict) []row {
	all := []row{{cells: [3]string{"GROUP", "NODES", "RESULT"}, why: []string{"WHY"}}}
	for _, v := range verdicts {
		r := row{cells: [3]string{cmp.Or(v.Group, "-"), "new", "Fits"}, why: []string{v.Text}}
		if v.Live {
			r.cells[1] = fmt.Sprintf("%d: %s", v.Nodes, v.Example)
			if v.Nodes > 1 {
				r.cells[1] += ", …"
			}
		}
		if !v.Fits {
			r.cells[2] = v.Blocker
		}
		if v.Hint != "" {
			r.why = append(r.why, "Hint: "+v.Hint)
		}
		all = append(all, r)
	}
	return all
}

func writeRows(out *strings.Builder, all []row, width int) {
	var widths [3]int
	for _, r := range all {
		for i, cell := range r.cells {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	left := width
	for _, w := range widths {
		left -= w + gap
	}
	for _, r := range all {
		var lines []string
		for _, text := range r.why {
			lines = append(lines, wrap(text, max(left, leastWhy))...)
		}
		for i, line := range lines {
			cells := r.cells
			if i > 0 {
				cells = [3]string{}
			}
			for j, cell := range cells {
				out.WriteString(cell + strings.Repeat(" ", widths[j]+gap-utf8.RuneCountInString(cell)))
			}
			fmt.Fprintln(out, line)
		}
	}
}

// wrap breaks a text at spaces. A word that is too long has a line of its own.
func wrap(text string, width int) []string {
	var lines []string
	line := ""
	for _, word := range strings.Fields(text) {
		switch {
		case line == "":
			line = word
		case utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) > width:
			lines = append(lines, line)
			line = word
		default:
			line += " " + word
		}
	}
	return append(lines, line)
}
