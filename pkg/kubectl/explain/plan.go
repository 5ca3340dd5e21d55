package explain

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/mica-gpu/mica/pkg/excerpt"
	"github.com/mica-gpu/mica/pkg/kubectl/terminal"
	"github.com/mica-gpu/mica/pkg/scaleout"
	reasons "github.com/mica-gpu/mica/pkg/scaleout/explain"
)

// Plan is what the scheduler and the controller would do with the pods of a manifest.
type Plan struct {
	// Fits reports whether every pod has a node, or a group that would add one by itself.
	Fits   bool     `json:"fits"`
	Pods   []Pod    `json:"pods"`
	Growth []Growth `json:"growth,omitempty"`
	// Ignored are the objects of the files that do not decide where pods go.
	Ignored []string `json:"ignored,omitempty"`
}

// Growth is the number of nodes that a group would add, for these pods and for those that wait already.
type Growth struct {
	Group string `json:"group"`
	Nodes int    `json:"nodes"`
	// PricePerHour is that of one node; empty: unknown.
	PricePerHour string `json:"pricePerHour,omitempty"`
	// Advised reports that an administrator has to add the nodes.
	Advised bool `json:"advised,omitempty"`
}

// NoDevices is the outcome of pods that ask for none.
const NoDevices scaleout.Outcome = "NoDevices"

// fits reports whether a pod has a node, or a group that would add one by itself.
func fits(outcome scaleout.Outcome) bool {
	return slices.Contains([]scaleout.Outcome{scaleout.FitsNode, scaleout.FitsStarting, scaleout.NeedsNode, NoDevices}, outcome)
}

// PlanFor plans for the pods of a manifest, which are among those of the snapshot.
func PlanFor(ctx context.Context, s scaleout.Snapshot, m *Manifest) (*Plan, error) {
	// A snapshot holds pods back that the scheduler has not tried, or whose claims do not exist yet.
	s.Held = maps.Clone(s.Held)
	for _, pod := range m.pods {
		delete(s.Held, pod.UID)
	}
	planner := scaleout.NewPlanner(s)
	explained, err := reasons.Pods(ctx, planner)
	if err != nil {
		return nil, fmt.Errorf("plan for the pods: %w", err)
	}
	decision, err := planner.Decide(ctx)
	if err != nil {
		return nil, fmt.Errorf("plan for the pods: %w", err)
	}
	byUID := make(map[types.UID]reasons.Explanation, len(explained))
	for _, e := range explained {
		byUID[e.UID] = e
	}
	plan := &Plan{Fits: true, Ignored: m.Ignored, Growth: growth(s, decision)}
	for _, pod := range m.pods {
		e, planned := byUID[pod.UID]
		if !planned {
			e = withoutDevices(pod)
		}
		plan.Fits = plan.Fits && fits(e.Outcome)
		plan.Pods = append(plan.Pods, Pod{Namespace: pod.Namespace, Name: pod.Name, Workload: m.workloads[pod.UID], Explanation: e})
	}
	return plan, nil
}

// withoutDevices explains a pod that the planner leaves out: it asks for no devices, or for a resource that only a
// device plugin could offer.
func withoutDevices(pod *corev1.Pod) reasons.Explanation {
	e := reasons.Explanation{Outcome: NoDevices, Summary: "asks for no devices, by a claim or by an extended resource of a DeviceClass", Verdicts: []reasons.Verdict{}}
	for _, container := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		for name, quantity := range container.Resources.Requests {
			if strings.HasPrefix(string(name), "nvidia.com/") && !quantity.IsZero() {
				e.Outcome = scaleout.Blocked
				e.Summary = fmt.Sprintf("requests %s, and no DeviceClass has this extendedResourceName: set it in a DeviceClass, or use a claim; devices of a device plugin are not considered", name)
			}
		}
	}
	return e
}

func growth(s scaleout.Snapshot, decision scaleout.Decision) []Growth {
	var all []Growth
	for _, grown := range decision.Growth {
		g := Growth{Group: grown.Group, Nodes: len(grown.Nodes)}
		at := slices.IndexFunc(s.Groups, func(g scaleout.Group) bool { return g.Name == grown.Group })
		if at >= 0 {
			g.Advised = s.Groups[at].Advised
			if price := s.Groups[at].PricePerHour; price != nil {
				g.PricePerHour = scaleout.Price(*price)
			}
		}
		all = append(all, g)
	}
	slices.SortFunc(all, func(a, b Growth) int { return cmp.Compare(a.Group, b.Group) })
	return all
}

// Missing says how many pods do not fit; empty: all do.
func (p *Plan) Missing() string {
	missing := 0
	for _, pod := range p.Pods {
		if !fits(pod.Outcome) {
			missing++
		}
	}
	switch {
	case missing == 0:
		return ""
	case missing == 1:
		return fmt.Sprintf("1 of %s does not fit", excerpt.Count(len(p.Pods), "pod"))
	}
	return fmt.Sprintf("%d of %d pods do not fit", missing, len(p.Pods))
}

// Write prints one explanation for all pods of a workload that have the same, and a summary.
func (p *Plan) Write(w io.Writer, screen terminal.Screen) error {
	for pods := p.Pods; len(pods) > 0; {
		n := 1
		for n < len(pods) && pods[n].alike(pods[0]) {
			n++
		}
		if err := pods[0].write(w, screen, n); err != nil {
			return err
		}
		if _, err := fmt.Fprintln(w); err != nil {
			return err
		}
		pods = pods[n:]
	}
	for _, note := range p.notes() {
		if _, err := fmt.Fprintln(w, strings.Join(screen.Lines(note, 0), "\n")); err != nil {
			return err
		}
	}
	return nil
}

// alike reports whether two pods have the same explanation.
func (p Pod) alike(other Pod) bool {
	return p.Namespace == other.Namespace && p.Workload == other.Workload && p.Workload != "Pod" && p.Outcome == other.Outcome && p.Summary == other.Summary
}

// write prints the explanation of a pod, which is that of n pods of its workload.
func (p Pod) write(w io.Writer, screen terminal.Screen, n int) error {
	if n == 1 {
		return p.Write(w, screen)
	}
	return write(w, screen, fmt.Sprintf("%d pods of %s in %s: %s", n, p.Workload, p.Namespace, p.Outcome), p.Summary, p.Verdicts, p.More)
}

// notes are the sentences after the explanations.
func (p *Plan) notes() []string {
	notes := []string{cmp.Or(p.Missing(), "Everything fits") + "."}
	for _, g := range p.Growth {
		verb := "would add"
		if g.Advised {
			verb = "would need"
		}
		text := fmt.Sprintf("Group %s %s %s", g.Group, verb, excerpt.Count(g.Nodes, "node"))
		if g.Advised {
			text += ", which an administrator has to add"
		}
		if g.PricePerHour != "" {
			text += fmt.Sprintf(", at %s per hour each", g.PricePerHour)
		}
		notes = append(notes, text+".")
	}
	if n := len(p.Ignored); n > 0 {
		const most = 5
		names := strings.Join(p.Ignored[:min(n, most)], ", ")
		if n > most {
			names += fmt.Sprintf(" and %d more", n-most)
		}
		notes = append(notes, "Ignored: "+names+".")
	}
	return notes
}
