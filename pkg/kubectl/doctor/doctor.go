// Package doctor finds what keeps a cluster's GPUs from pods, or gives one GPU to two of them, and
// says how to mend it. It owns the table of checks, each of which looks at Facts and returns
// findings; it reads no cluster and changes nothing.
package doctor

import (
	"cmp"
	"maps"
	"regexp"
	"slices"
)

// Severity says how much a finding matters.
type Severity string

// Severities, the worst first.
const (
	// Error is for what keeps GPUs from pods, gives a GPU out twice or buys nodes in vain.
	Error Severity = "error"
	// Warning is for what does so under conditions that cannot be seen, or later.
	Warning Severity = "warning"
	// Info is for what is worth knowing.
	Info Severity = "info"
)

var rank = map[Severity]int{Error: 0, Warning: 1, Info: 2}

// MaxFindings is how many findings of one check a report has: a mistake of a node group is on all
// its nodes.
const MaxFindings = 100

// Check is one trap.
type Check struct {
	Name string
	// Severity is that of its worst finding.
	Severity Severity
	// Looks says at what it looks.
	Looks string
	// Why says what the trap does.
	Why string
	// Fix mends it. Words in capitals, such as NODE, stand for the names of a finding.
	Fix string
	// Source is where the fact comes from.
	Source string

	// needs are the kinds without which nothing can be said.
	needs []Kind
	find  func(*Facts) []Finding
}

// Finding is one object that is in a trap.
type Finding struct {
	Check    string   `json:"check"`
	Severity Severity `json:"severity"`
	// Object is the kind and name of what is at fault, as kubectl takes it.
	Object  string `json:"object"`
	Message string `json:"message"`
	// Fix is a command to copy, or a sentence where no command does it.
	Fix string `json:"fix"`

	// names replace the words in capitals of the check's Fix.
	names map[string]string
}

// Unseen is a part of the cluster that could not be read.
type Unseen struct {
	Kind   Kind   `json:"kind"`
	Reason string `json:"reason"`
	// Checks could not look because of that.
	Checks []string `json:"checks,omitempty"`
}

// Omitted counts findings of a check beyond MaxFindings.
type Omitted struct {
	Check string `json:"check"`
	Count int    `json:"count"`
}

// Report is what was found.
type Report struct {
	// Findings are sorted, the worst first.
	Findings []Finding `json:"findings"`
	Omitted  []Omitted `json:"omitted,omitempty"`
	// Passed names the checks that found nothing.
	Passed []string `json:"passed"`
	// Unseen is what could not be read, by kind.
	Unseen []Unseen `json:"unseen,omitempty"`
}

// Count is how many findings there are of a severity, without those that were omitted.
func (r Report) Count(s Severity) int {
	count := 0
	for _, f := range r.Findings {
		if f.Severity == s {
			count++
		}
	}
	return count
}

// Blind tells that no check could look.
func (r Report) Blind() bool { return len(r.Findings) == 0 && len(r.Passed) == 0 }

// Examine looks at the facts with every check.
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

// blocks tells whether a check cannot look, and notes that.
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

// examine completes what the check finds, the worst first and by object.
func (c Check) examine(facts *Facts) []Finding {
	found := c.find(facts)
	for i := range found {
		f := &found[i]
		f.Check = c.Name
		if f.Severity == "" {
			f.Severity = c.Severity
		}
		if f.Fix == "" {
			f.Fix = c.Fix
		}
		f.Fix = fill(f.Fix, f.names)
		f.names = nil
	}
	slices.SortStableFunc(found, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(rank[a.Severity], rank[b.Severity]), cmp.Compare(a.Object, b.Object), cmp.Compare(a.Message, b.Message))
	})
	return found
}

var placeholder = regexp.MustCompile(`\b[A-Z]{2,}\b`)

// fill replaces the words in capitals that have a name. Others are for the reader to replace.
func fill(text string, names map[string]string) string {
	return placeholder.ReplaceAllStringFunc(text, func(word string) string {
		if name, known := names[word]; known && name != "" {
			return name
		}
		return word
	})
}
