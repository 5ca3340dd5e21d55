// Package doctor finds what keeps GPUs from pods, gives a GPU to two drivers or buys nodes in vain, and
// how to fix it. It owns the checks, which turn Facts into findings. It never reads or changes a cluster.
package doctor

import (
	"cmp"
	"maps"
	"regexp"
	"slices"
)

// Severity is how much a finding matters.
type Severity string

// Severities, the worst first.
const (
	// Error keeps GPUs from pods, allocates a GPU twice or buys nodes in vain.
	Error Severity = "error"
	// Warning does so later, or under conditions that the API server does not show.
	Warning Severity = "warning"
	// Info is worth knowing.
	Info Severity = "info"
)

var rank = map[Severity]int{Error: 0, Warning: 1, Info: 2}

// MaxFindings bounds a report's findings per check: a mistake in a node group shows on all its nodes.
const MaxFindings = 100

// Check finds one kind of mistake.
type Check struct {
	Name string
	// Severity is that of its worst finding.
	Severity Severity
	// Finds describes the mistake and its consequence, for the documentation.
	Finds string
	// Fix is a command to copy, or a sentence. Words in capitals, such as NODE, stand for names from the finding.
	Fix string

	// needs are the kinds without which the check cannot run.
	needs []Kind
	find  func(*Facts) []Finding
}

// Checks returns all checks, by theme.
func Checks() []Check {
	return slices.Concat(serverChecks(), installationChecks(), conditionChecks(), sliceChecks(), driverChecks(), nodeChecks(),
		groupChecks(), workloadChecks())
}

// Finding is one object with a mistake.
type Finding struct {
	Check    string   `json:"check"`
	Severity Severity `json:"severity"`
	// Object is a kind and a name, as kubectl takes them.
	Object  string `json:"object"`
	Message string `json:"message"`
	// Fix is a command to copy, or a sentence if no command fixes it.
	Fix string `json:"fix"`

	// names replace words in capitals in the check's Fix.
	names map[string]string
}

// Unseen is a kind that could not be read.
type Unseen struct {
	Kind   Kind   `json:"kind"`
	Reason string `json:"reason"`
	// Checks did not run because of it.
	Checks []string `json:"checks,omitempty"`
}

// Omitted counts a check's findings beyond MaxFindings.
type Omitted struct {
	Check string `json:"check"`
	Count int    `json:"count"`
}

// Report is the result of all checks.
type Report struct {
	// Findings are sorted, the worst first.
	Findings []Finding `json:"findings"`
	Omitted  []Omitted `json:"omitted,omitempty"`
	// Passed names the checks without findings.
	Passed []string `json:"passed"`
	// Unseen is sorted by kind.
	Unseen []Unseen `json:"unseen,omitempty"`
}

// Count returns the number of findings with this severity, without omitted ones.
func (r Report) Count(s Severity) int {
	count := 0
	for _, f := range r.Findings {
		if f.Severity == s {
			count++
		}
	}
	return count
}

// Blind reports whether no check could run.
func (r Report) Blind() bool { return len(r.Findings) == 0 && len(r.Passed) == 0 }

// Examine runs all checks.
func Examine(facts *Facts) Report {
	report := Report{Findings: []Finding{}, Passed: []string{}}
	for _, kind := range slices.Sorted(maps.Keys(facts.Unseen)) {
		report.Unseen = append(report.Unseen, Unseen{Kind: kind, Reason: facts.Unseen[kind]})
	}
	for _, check := range Checks() {
		if report.blocks(check) {
			continue
		}
		found := check.examine(facts)
		if len(found) == 0 {
			report.Passed = append(report.Passed, check.Name)
		}
		if more := len(found) - MaxFindings; more > 0 {
			report.Omitted = append(report.Omitted, Omitted{Check: check.Name, Count: more})
			found = found[:MaxFindings]
		}
		report.Findings = append(report.Findings, found...)
	}
	slices.SortStableFunc(report.Findings, func(a, b Finding) int { return cmp.Compare(rank[a.Severity], rank[b.Severity]) })
	return report
}

// blocks reports whether a check lacks a kind that it needs, and records the check there.
func (r *Report) blocks(check Check) bool {
	blocked := false
	for i := range r.Unseen {
		if u := &r.Unseen[i]; slices.Contains(check.needs, u.Kind) {
			u.Checks = append(u.Checks, check.Name)
			blocked = true
		}
	}
	return blocked
}

// examine completes the check's findings and sorts them, the worst first.
func (c Check) examine(facts *Facts) []Finding {
	found := c.find(facts)
	for i := range found {
		f := &found[i]
		f.Check, f.Severity, f.Fix = c.Name, cmp.Or(f.Severity, c.Severity), fill(cmp.Or(f.Fix, c.Fix), f.names)
		f.names = nil
	}
	slices.SortStableFunc(found, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(rank[a.Severity], rank[b.Severity]), cmp.Compare(a.Object, b.Object), cmp.Compare(a.Message, b.Message))
	})
	return found
}

var placeholder = regexp.MustCompile(`\b[A-Z]{2,}\b`)

// fill replaces the words in capitals that have a name, and leaves the others to the reader.
func fill(text string, names map[string]string) string {
	return placeholder.ReplaceAllStringFunc(text, func(word string) string { return cmp.Or(names[word], word) })
}
