// Package excerpt shortens texts for people, and counts nouns.
package excerpt

import (
	"fmt"
	"strings"
)

// MaxEvent is the longest note of an Event, in bytes (NoteLengthLimit in
// k8s.io/kubernetes/pkg/apis/core/validation).
const MaxEvent = 1024

// Of returns the text. A text of more than most bytes is cut between characters, and ends in "…".
func Of(text string, most int) string {
	if len(text) <= most {
		return text
	}
	const end = "…"
	return strings.ToValidUTF8(text[:max(most-len(end), 0)], "") + end
}

// Count returns a number with its noun: 1 device, 2 devices.
func Count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
