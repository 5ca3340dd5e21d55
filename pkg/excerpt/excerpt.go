// Package excerpt shortens texts for people, and counts nouns.
package excerpt

import (
	"fmt"
	"strings"
)

// MaxEvent is how many bytes an Event's note has at most (NoteLengthLimit in
// k8s.io/kubernetes/pkg/apis/core/validation).
const MaxEvent = 1024

// Of is the text, or its begin with "…" where it has more than most bytes. It is cut between
// characters.
func Of(text string, most int) string {
	if len(text) <= most {
		return text
	}
	const end = "…"
	return strings.ToValidUTF8(text[:max(most-len(end), 0)], "") + end
}

// Count is a number with its noun: 1 device, 2 devices.
func Count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
