package simulate

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/mica-gpu/mica/pkg/kubectl/terminal"
	"github.com/mica-gpu/mica/pkg/scaleout/explain"
)

// Write prints a result for people. With verdicts, it has what each kind of nodes lacks for the pods
// that do not fit.
func (r *Result) Write(w io.Writer, screen terminal.Screen, verdicts bool) error {
	if err := screen.Write(w, r.table()); err != nil {
		return err
	}
	var lines []string
	for _, text := range r.notes() {
		lines = append(lines, screen.Lines(text, 0)...)
	}
	if _, err := fmt.Fprintf(w, "\n%s\n", strings.Join(lines, "\n")); err != nil || !verdicts {
		return err
	}
	return r.writeVerdicts(w, screen)
}

func (r *Result) table() terminal.Table {
	t := terminal.Table{Columns: []terminal.Column{{Title: "POD"}, {Title: "RESULT"}, {Title: "NODE"}, {Title: "DEVICES, OR WHY NOT", Wrapped: true}}}
	for _, pod := range r.Pods {
		style := terminal.Good
		switch {
		case !pod.Fits():
			style = terminal.Bad
		case pod.Outcome == NoDevices:
			style = terminal.Faint
		}
		t.Rows = append(t.Rows, terminal.Row{
			{Text: pod.Namespace + "/" + pod.Name}, {Text: string(pod.Outcome), Style: style}, {Text: pod.where()}, {Text: pod.devices()},
		})
	}
	return t
}

// where is the pod's node for people.
func (p Pod) where() string {
	switch {
	case p.Node != "":
		return p.Node
	case p.NewNode > 0:
		return fmt.Sprintf("%s, new node %d", p.Group, p.NewNode)
	}
	return "-"
}

// devices are what the pod gets, for people, and then why it does not run there.
func (p Pod) devices() string {
	var parts []string
	for _, claim := range p.Claims {
		names := make([]string, len(claim.Devices))
		for i, d := range claim.Devices {
			names[i] = d.String()
		}
		part := strings.Join(names, ", ")
		if len(p.Claims) > 1 {
			part = claim.Name + ": " + part
		}
		parts = append(parts, part)
	}
	if p.Why != "" {
		parts = append(parts, p.Why)
	}
	return strings.Join(parts, "\n")
}

// String is the device, with what a share has of it.
func (d Device) String() string {
	var share []string
	for _, name := range slices.Sorted(maps.Keys(d.Consumes)) {
		quantity := d.Consumes[name]
		share = append(share, name+" "+quantity.String())
	}
	if len(share) == 0 {
		return d.Device
	}
	return fmt.Sprintf("%s (%s)", d.Device, strings.Join(share, ", "))
}

// Missing says how many pods do not fit, or nothing.
func (r *Result) Missing() string {
	missing := 0
	for _, pod := range r.Pods {
		if !pod.Fits() {
			missing++
		}
	}
	if missing == 0 {
		return ""
	}
	return fmt.Sprintf("%d of %s not fit", missing, count(len(r.Pods), "pod does", "pods do"))
}

// notes are the sentences below the table.
func (r *Result) notes() []string {
	notes := []string{cmp.Or(r.Missing(), "Everything fits") + "."}
	for _, g := range r.Growth {
		text := fmt.Sprintf("Group %s would add %s", g.Group, count(g.Nodes, "node", "nodes"))
		if g.Advised {
			text = fmt.Sprintf("Group %s would need %s, which nobody adds by itself", g.Group, count(g.Nodes, "node", "nodes"))
		}
		if g.PricePerHour != "" {
			text += fmt.Sprintf(", at %s per hour each", g.PricePerHour)
		}
		notes = append(notes, text+".")
	}
	if len(r.Ignored) > 0 {
		notes = append(notes, "Not looked at: "+brief(r.Ignored)+".")
	}
	return append(notes, fmt.Sprintf("Assumes the scheduler of Kubernetes %s with its default feature gates. It may choose another node that fits.", r.Kubernetes))
}

// brief names the first few.
func brief(names []string) string {
	const most = 5
	if len(names) <= most {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
}

func count(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// writeVerdicts explains the first pod of each owner that does not fit.
func (r *Result) writeVerdicts(w io.Writer, screen terminal.Screen) error {
	told := map[string]bool{}
	for _, pod := range r.Pods {
		key := cmp.Or(pod.Owner, pod.Name) + "\x00" + pod.Namespace + "\x00" + pod.Why
		if pod.Fits() || told[key] {
			continue
		}
		told[key] = true
		if _, err := fmt.Fprintln(w); err != nil {
			return err
		}
		err := explain.Table(w, screen, explain.Explanation{
			Pod:     types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name},
			Outcome: pod.Outcome, Summary: pod.Why, Verdicts: pod.Verdicts,
		})
		if err != nil {
			return err
		}
	}
	return nil
}
