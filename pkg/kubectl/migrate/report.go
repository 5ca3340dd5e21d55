package migrate

import (
	"cmp"
	"slices"
)

// Outcome is what became of an object, or of one of its fields.
type Outcome string

// The outcomes, the worst first.
const (
	// Blocked cannot move as it is.
	Blocked Outcome = "cannot move"
	// Look moves, or works as it is, and may not be what is wanted.
	Look Outcome = "look"
	// Moved is in the manifests that were made.
	Moved Outcome = "moved"
	// Unchanged works with Mica as it is.
	Unchanged Outcome = "unchanged"
)

var severity = []Outcome{Blocked, Look, Moved, Unchanged}

// Finding is what is said of an object, or of one of its fields.
type Finding struct {
	Source    string  `json:"source"`
	Line      int     `json:"line"`
	Namespace string  `json:"namespace,omitempty"`
	Object    string  `json:"object"`
	Field     string  `json:"field,omitempty"`
	Outcome   Outcome `json:"outcome"`
	// What is said, and what to do about it; nothing is to be done where Do is empty.
	What string `json:"what"`
	Do   string `json:"do,omitempty"`
}

// Report is what became of everything that has to do with GPUs.
type Report struct {
	Objects  int       `json:"objects"`
	Findings []Finding `json:"findings"`
	// Blocked, Look and Moved count findings.
	Blocked int `json:"blocked"`
	Look    int `json:"look"`
	Moved   int `json:"moved"`
}

func (m *migration) find(d document, outcome Outcome, field, what, do string) {
	m.findings = append(m.findings, Finding{
		Source: d.source, Line: d.line, Namespace: d.namespace, Object: d.name(),
		Field: field, Outcome: outcome, What: what, Do: do,
	})
}

// report has the worst findings of an object first, and objects in the order of the sources.
func (m *migration) report() Report {
	r := Report{Objects: m.given, Findings: m.findings}
	if r.Findings == nil {
		r.Findings = []Finding{}
	}
	first := map[string]int{}
	for i, f := range r.Findings {
		if _, seen := first[f.place()]; !seen {
			first[f.place()] = i
		}
		switch f.Outcome {
		case Blocked:
			r.Blocked++
		case Look:
			r.Look++
		case Moved:
			r.Moved++
		case Unchanged:
		}
	}
	slices.SortStableFunc(r.Findings, func(a, b Finding) int {
		return cmp.Or(
			cmp.Compare(first[a.place()], first[b.place()]),
			cmp.Compare(slices.Index(severity, a.Outcome), slices.Index(severity, b.Outcome)),
		)
	})
	return r
}

func (f Finding) place() string { return f.Source + "\x00" + f.Namespace + "\x00" + f.Object }
