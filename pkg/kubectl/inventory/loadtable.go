package inventory

import (
	"fmt"
	"strings"

	"github.com/mica-gpu/mica/pkg/kubectl/terminal"
)

// PodTable has a row per pod.
func PodTable(l Load) terminal.Table {
	t := terminal.Table{Columns: []terminal.Column{
		{Title: "NAMESPACE"}, {Title: "POD"}, {Title: "BUSY", Right: true}, {Title: "MEMORY", Right: true}, {Title: "NODE", Spare: 1}, {Title: "DEVICES", Wrapped: true},
	}}
	for _, p := range l.Pods {
		name := p.Name
		if name == "" {
			name = "(claim " + p.Claims[0] + ")"
		}
		t.Rows = append(t.Rows, terminal.Row{
			{Text: p.Namespace}, {Text: name}, p.busy(), {Text: p.memory()}, {Text: p.Node}, {Text: deviceNames(p.Devices)},
		})
	}
	return t
}

// NamespaceTable has a row per namespace.
func NamespaceTable(l Load) terminal.Table {
	t := terminal.Table{Columns: []terminal.Column{
		{Title: "NAMESPACE"}, {Title: "BUSY", Right: true}, {Title: "MEMORY", Right: true}, {Title: "DEVICES", Right: true}, {Title: "IDLE", Right: true}, {Title: "PODS", Right: true, Spare: 1},
	}}
	for _, n := range l.Namespaces {
		idle := terminal.Cell{Text: fmt.Sprint(n.Figures.Idle)}
		if n.Figures.Idle > 0 {
			idle.Style = terminal.Warning
		}
		t.Rows = append(t.Rows, terminal.Row{
			{Text: n.Name}, n.busy(), {Text: n.memory()}, {Text: fmt.Sprint(n.Devices)}, idle, {Text: fmt.Sprint(n.Pods)},
		})
	}
	return t
}

// unknown stands for a figure that no device reports.
const unknown = "-"

func (f Figures) busy() terminal.Cell {
	if f.Utilization == nil {
		return terminal.Cell{Text: unknown}
	}
	cell := terminal.Cell{Text: fmt.Sprintf("%.0f%%", *f.Utilization*100)}
	if f.Idle > 0 {
		cell.Style = terminal.Warning
	}
	return cell
}

func (f Figures) memory() string {
	switch {
	case f.MemoryUsedBytes == nil:
		return unknown
	case f.MemoryTotalBytes == nil:
		return inGibibytes(*f.MemoryUsedBytes) + "Gi"
	}
	return inGibibytes(*f.MemoryUsedBytes) + "/" + inGibibytes(*f.MemoryTotalBytes) + "Gi"
}

func inGibibytes(bytes float64) string { return fmt.Sprintf("%.1f", bytes/(1<<30)) }

func deviceNames(of []Device) string {
	texts := make([]string, len(of))
	for i, d := range of {
		texts[i] = d.Name
		if d.Shared {
			texts[i] += " (all who share it)"
		}
	}
	return strings.Join(texts, "\n")
}
