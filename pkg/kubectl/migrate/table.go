package migrate

import (
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/mica-gpu/mica/pkg/kubectl/terminal"
)

var styles = map[Outcome]terminal.Style{
	Blocked:   terminal.Bad,
	Look:      terminal.Warning,
	Moved:     terminal.Good,
	Unchanged: terminal.Faint,
}

// Write prints the report for people.
func (r Report) Write(w io.Writer, screen terminal.Screen) error {
	table := terminal.Table{Columns: []terminal.Column{
		{Title: "OBJECT"}, {Title: "OUTCOME"}, {Title: "FIELD", Spare: 1}, {Title: "WHAT, AND WHAT TO DO", Wrapped: true},
	}}
	for _, f := range r.Findings {
		table.Rows = append(table.Rows, terminal.Row{
			{Text: f.title()}, {Text: string(f.Outcome), Style: styles[f.Outcome]}, {Text: f.Field}, {Text: f.sentence()},
		})
	}
	if err := screen.Write(w, table); err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	if len(table.Rows) > 0 {
		_, _ = fmt.Fprintln(w)
	}
	_, err := fmt.Fprintln(w, strings.Join(screen.Lines(r.summary(), 0), "\n"))
	return err
}

func (f Finding) title() string {
	if f.Namespace == "" {
		return f.Object
	}
	return f.Namespace + "/" + f.Object
}

func (f Finding) sentence() string {
	if f.Do == "" {
		return f.What
	}
	return f.What + ": " + f.Do
}

func (r Report) summary() string {
	if len(r.Findings) == 0 {
		return fmt.Sprintf("%d manifests, none of which has to do with GPUs.", r.Objects)
	}
	return fmt.Sprintf("%d manifests: %d changes made, %d cannot move, %d to look at.", r.Objects, r.Moved, r.Blocked, r.Look)
}

// Write prints the plan for people: who has which node, then what to do.
func (p Plan) Write(w io.Writer, screen terminal.Screen) error {
	if len(p.Nodes) == 0 {
		_, err := fmt.Fprintln(w, strings.Join(screen.Lines("No node has GPUs that a device plugin or Mica gives out, nor the label nvidia.com/gpu.present=true.", 0), "\n"))
		return err
	}
	table := terminal.Table{Columns: []terminal.Column{{Title: "NODE"}, {Title: "GPUS BY"}, {Title: "PODS", Right: true}, {Title: "RESOURCES", Spare: 1}}}
	for _, node := range p.Nodes {
		table.Rows = append(table.Rows, terminal.Row{
			{Text: node.Name}, {Text: string(node.State), Style: stateStyles[node.State]}, {Text: strconv.Itoa(len(node.Pods))}, {Text: node.Resources},
		})
	}
	if err := screen.Write(w, table); err != nil {
		return fmt.Errorf("write the plan: %w", err)
	}
	var out strings.Builder
	p.writeSteps(&out, screen)
	_, err := io.WriteString(w, out.String())
	return err
}

var stateStyles = map[State]terminal.Style{DevicePlugin: terminal.Warning, Both: terminal.Bad, Nobody: terminal.Bad, Mica: terminal.Good}

// podsShown are the pods of a node that are named.
const podsShown = 10

func (p Plan) writeSteps(out *strings.Builder, screen terminal.Screen) {
	writeSteps(out, screen, "Once, before the first node", p.Before)
	for _, node := range p.Nodes {
		if len(node.Steps) == 0 {
			continue
		}
		title := "Node " + node.Name
		if n := len(node.Pods); n > podsShown {
			title += fmt.Sprintf(", with the pods %s and %d more", strings.Join(node.Pods[:podsShown], ", "), n-podsShown)
		} else if n > 0 {
			title += ", with the pods " + strings.Join(node.Pods, ", ")
		}
		writeSteps(out, screen, title, node.Steps)
	}
	writeSteps(out, screen, "Once, after the last node", p.After)
}

func writeSteps(out *strings.Builder, screen terminal.Screen, title string, steps []Step) {
	if len(steps) == 0 {
		return
	}
	out.WriteString("\n")
	for _, line := range screen.Lines(title+":", 0) {
		out.WriteString(screen.Paint(line, terminal.Strong) + "\n")
	}
	for i, step := range steps {
		lines := screen.Lines(fmt.Sprintf("%d. %s.", i+1, step.What), 2)
		out.WriteString(strings.Join(lines, "\n") + "\n")
		if step.Command != "" {
			// Never broken, to be copied.
			out.WriteString("     " + step.Command + "\n")
		}
	}
}
