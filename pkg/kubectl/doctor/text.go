package doctor

import (
	"fmt"
	"io"
	"strings"

	"github.com/mica-gpu/mica/pkg/kubectl/terminal"
)

// maxPrinted is how many findings of one check are printed for people.
const maxPrinted = 3

var styles = map[Severity]terminal.Style{Error: terminal.Bad, Warning: terminal.Warning, Info: terminal.Faint}

// Write prints a report for people. Fixes are not broken into lines, so that they can be copied.
func Write(w io.Writer, screen terminal.Screen, r Report) error {
	var out strings.Builder
	for at := 0; at < len(r.Findings); {
		end := at
		for end < len(r.Findings) && r.Findings[end].Check == r.Findings[at].Check && r.Findings[end].Severity == r.Findings[at].Severity {
			end++
		}
		writeFindings(&out, screen, r.Findings[at:end])
		at = end
	}
	for _, omitted := range r.Omitted {
		write(&out, screen, 0, fmt.Sprintf("%s has found %d more, which are listed nowhere.", omitted.Check, omitted.Count))
	}
	for _, unseen := range r.Unseen {
		write(&out, screen, 0, unseen.sentence())
	}
	write(&out, screen, 0, r.summary())
	_, err := io.WriteString(w, out.String())
	return err
}

// writeFindings prints those of one check.
func writeFindings(out *strings.Builder, screen terminal.Screen, found []Finding) {
	shown := found[:min(len(found), maxPrinted)]
	for _, f := range shown {
		heading := fmt.Sprintf("%s: %s (%s)", f.Severity, f.Object, f.Check)
		for _, line := range screen.Lines(heading, 0) {
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

func (u Unseen) sentence() string {
	said := fmt.Sprintf("Not seen: %s (%s).", u.Kind, u.Reason)
	if len(u.Checks) > 0 {
		said += " Not checked: " + strings.Join(u.Checks, ", ") + "."
	}
	return said
}

// summary is the last line.
func (r Report) summary() string {
	looked := len(r.Passed)
	seen := map[string]bool{}
	for _, f := range r.Findings {
		if !seen[f.Check] {
			seen[f.Check] = true
			looked++
		}
	}
	return fmt.Sprintf("%d of %d checks have looked: %s, %s, %s.", looked, len(Checks()),
		plural(r.Count(Error), "error"), plural(r.Count(Warning), "warning"), plural(r.Count(Info), "info"))
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
