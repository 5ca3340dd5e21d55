package scaleout

import (
	"fmt"
	"strings"
	"testing"

	"github.com/mica-gpu/mica/pkg/excerpt"
	"github.com/mica-gpu/mica/test/fixture"
)

// The files in testdata have a cluster above the line, and what is decided below it.
func TestScenarios(t *testing.T) {
	fixture.Scenarios(t, func(t *testing.T, script []fixture.Line) string {
		w := newWorld(t)
		for _, line := range script {
			w.do(line)
		}
		decision, err := Plan(t.Context(), w.Snapshot)
		if err != nil {
			t.Fatal(err)
		}
		return log(decision)
	})
}

// log is a decision for people.
func log(d Decision) string {
	var b strings.Builder
	for _, growth := range d.Growth {
		fmt.Fprintf(&b, "grow %s by %d\n", growth.Group, len(growth.Nodes))
		for _, node := range growth.Nodes {
			fmt.Fprintf(&b, "  for %s\n", node.describe())
		}
	}
	for _, kind := range d.Kinds {
		logKind(&b, kind)
	}
	for _, h := range d.Headroom {
		fmt.Fprintf(&b, "headroom %s: free %d %v, coming %d, demanded %d\n", h.Name, h.Free, h.Nodes, h.Coming, h.Demanded)
		if h.Problem != "" {
			fmt.Fprintf(&b, "  %s\n", h.Problem)
		}
	}
	for _, s := range d.Budgets {
		fmt.Fprintf(&b, "budget %s: %d GPUs, %s per hour, %s of its rate, %d pods held\n", s.Name, s.GPUs, Price(s.PricePerHour), excerpt.Count(s.Nodes, "node"), s.Held)
	}
	for _, r := range d.Supplies {
		fmt.Fprintf(&b, "room for %s: free %d, coming %d, provisionable %d\n", r.ID, r.Free, r.Coming, r.Provisionable)
		for _, text := range []string{r.Why, r.Problem} {
			if text != "" {
				fmt.Fprintf(&b, "  %s\n", text)
			}
		}
	}
	return b.String()
}

func (n NewNode) describe() string {
	var names []string
	for _, pod := range n.Pods {
		names = append(names, pod.Name)
	}
	text := brief(names)
	for _, kind := range n.Kinds {
		if strings.HasPrefix(kind, "headroom/") {
			text += " " + kind
		}
	}
	if len(n.Pods) > 0 {
		text += fmt.Sprintf(": cpu %s, memory %s", n.Requests.Cpu(), n.Requests.Memory())
	}
	return strings.TrimSpace(text)
}

func logKind(b *strings.Builder, kind Kind) {
	var all []string
	var places []string
	at := map[string][]string{}
	for _, pod := range kind.Pods {
		place := strings.Join(strings.Fields(fmt.Sprintf("%s %s %s", pod.Outcome, pod.Node, pod.Group)), " ")
		if pod.Why != "" {
			place += ": " + pod.Why
		}
		if at[place] == nil {
			places = append(places, place)
		}
		at[place] = append(at[place], pod.Pod.Name)
		all = append(all, pod.Pod.Name)
	}
	fmt.Fprintf(b, "pods %s\n", brief(all))
	if kind.Problem != "" {
		fmt.Fprintf(b, "  %s\n", kind.Problem)
	}
	for _, place := range places {
		fmt.Fprintf(b, "  %s %s\n", brief(at[place]), place)
	}
	for _, g := range kind.Groups {
		verdict := fmt.Sprintf("%d a node", g.PerNode)
		if g.Miss != nil {
			verdict = "no: " + string(g.Miss.Reason)
		}
		if g.Blocked != "" {
			verdict += ", " + g.Blocked
		}
		fmt.Fprintf(b, "  in %s: %s\n", g.Group, verdict)
	}
}

// brief counts what would be long.
func brief(names []string) string {
	if len(names) <= 4 {
		return strings.Join(names, " ")
	}
	return fmt.Sprintf("%s .. %s (%d)", names[0], names[len(names)-1], len(names))
}
