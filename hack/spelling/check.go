package main

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// page is a file with the words of its lines.
type page struct{ file, text string }

var (
	template = regexp.MustCompile(`(?s)\{\{.*?\}\}`)
	// Names and amounts, such as p5.48xlarge, H100 and 80Gi, and addresses.
	withDigit = regexp.MustCompile(`[\w.+-]*\d[\w.+-]*`)
	// Addresses, paths, and the names of files, of groups of APIs and of series.
	written = regexp.MustCompile(`\w+://\S+|[\w-]+([./_][\w-]+)+`)
	// Between the words of a name such as GPUNodeGroup or maxDevices, and not before the end of GPUs or ANDed.
	inName    = regexp.MustCompile(`([a-z])([A-Z])`)
	afterCaps = regexp.MustCompile(`([A-Z])([A-Z][a-z]{2}[a-zA-Z])`)
	genitive  = regexp.MustCompile(`'s\b`)
)

// withoutTemplates is the text of one of Helm's templates, on its lines.
func withoutTemplates(text string) string {
	return template.ReplaceAllStringFunc(text, func(action string) string {
		return strings.Repeat("\n", strings.Count(action, "\n"))
	})
}

// words has a text's words, on its lines, without the ends of genitives. Names that are made of words are taken apart.
func words(text string) string {
	text = genitive.ReplaceAllString(strings.ReplaceAll(text, "’", "'"), "")
	text = withDigit.ReplaceAllString(written.ReplaceAllString(text, " "), " ")
	return inName.ReplaceAllString(afterCaps.ReplaceAllString(text, "$1 $2"), "$1 $2")
}

// check says where the unknown words are that are no project's, and what is wrong with the list of the project's.
func check(texts []page, unknown, project []string) []string {
	var findings []string
	if !slices.IsSortedFunc(project, compare) {
		findings = append(findings, wordsFile+" is not sorted, without regard to case")
	}
	used := map[string]bool{}
	for _, word := range unknown {
		if known, found := lookUp(word, project); found {
			used[known] = true
			continue
		}
		findings = append(findings, places(texts, word)...)
	}
	for _, word := range project {
		if !used[word] {
			findings = append(findings, fmt.Sprintf("%s: no page needs %q any more: remove it", wordsFile, word))
		}
	}
	return findings
}

func compare(a, b string) int {
	if folded := strings.Compare(strings.ToLower(a), strings.ToLower(b)); folded != 0 {
		return folded
	}
	return strings.Compare(a, b)
}

// lookUp finds a word among the project's: as it is, at the beginning of a sentence, or as a placeholder. Parts of names that
// are too short to be words pass.
func lookUp(word string, project []string) (string, bool) {
	if len(word) < 3 {
		return "", true
	}
	forms := []string{word, strings.ToLower(word[:1]) + word[1:]}
	if word == strings.ToUpper(word) {
		forms = append(forms, strings.ToLower(word))
	}
	for _, form := range forms {
		if slices.Contains(project, form) {
			return form, true
		}
	}
	return "", false
}

// places are the lines that have a word.
func places(texts []page, word string) []string {
	whole := regexp.MustCompile(`\b` + regexp.QuoteMeta(word) + `\b`)
	var found []string
	for _, p := range texts {
		for i, line := range strings.Split(p.text, "\n") {
			if whole.MatchString(line) {
				found = append(found, fmt.Sprintf("%s:%d: %q is misspelled, or a word for %s", p.file, i+1, word, wordsFile))
			}
		}
	}
	return found
}
