package doctor

import (
	"fmt"
	"io"
	"strings"

	"github.com/mica-gpu/mica/pkg/excerpt"
	"github.com/mica-gpu/mica/pkg/kubectl/terminal"
)

// maxPrinted is how many findings per check Write prints.
const maxPrinted = 3

var styles = map[Severity]terminal.Style{Error: terminal.Bad, Warning: terminal.Warning, Info: terminal.Faint}

// Write prints a report for people. It never breaks a fix into lines, so that it can be copied.
func Write(w io.Writer, screen terminal.Screen, r Report) error {
	var out strings.Builder
	for start := 0; start < len(r.Findings); {
		first, end := r.Findings[start], start
		for end < len(r.Findings) && r.Findings[end].Check == first.Check && r.Findings[end].Severity == first.Severity {
			end++
		}
		writeFindings(&out, screen, r.Findings[start:end])
		start = end
	}
	for _, omitted := range r.Omitted {
		write(&out, screen, 0, fmt.Sprintf("%s: %d more findings are not listed.", omitted.Check, omitted.Count))
	}
	for _, u := range r.Unseen {
		line := fmt.Sprintf("Not seen: %s (%s).", u.Kind, u.Reason)
		if len(u.Checks) > 0 {
			line += " Not checked: " + strings.Join(u.Checks, ", ") + "."
		}
		write(&out, screen, 0, line)
	}
	write(&out, screen, 0, r.summary())
	_, err := io.WriteString(w, out.String())
	return err
}

// writeFindings prints findings of one check and severity.
func writeFindings(out *strings.Builder, screen terminal.Screen, found []Finding) {
	shown := found[:min(len(found), maxPrinted)]
	for _, f := range shown {
		for _, line := range screen.Lines(fmt.Sprintf("%s: %s (%s)", f.Severity, f.Object, f.Check), 0) {
			out.WriteString(screen.Paint(line, styles[f.Severity]) + "\n")
		}
		write(out, screen, 2, f.Message)
		out.WriteString("  " + screen.Paint("Fix: ", terminal.Strong) + f.Fix + "\n\n")
	}
	if more := len(found) - len(shown); more > 0 {
		write(out, screen, 0, fmt.Sprintf("%s: %d more of %s: -o json lists them.", found[0].Severity, more, found[0].Check))
		out.WriteString("\n")
	}
}

func write(out *strings.Builder, screen terminal.Screen, indent int, text string) {
	for _, line := range screen.Lines(text, indent) {
		out.WriteString(line + "\n")
	}
}

// summary is the last line.
func (r Report) summary() string {
	ran := len(r.Passed)
	counted := map[string]bool{}
	for _, f := range r.Findings {
		if !counted[f.Check] {
			counted[f.Check] = true
			ran++
		}
	}
	return fmt.Sprintf("%d of %d checks ran: %s, %s, %s.", ran, len(Checks()),
		excerpt.Count(r.Count(Error), "error"), excerpt.Count(r.Count(Warning), "warning"), excerpt.Count(r.Count(Info), "info"))
}
