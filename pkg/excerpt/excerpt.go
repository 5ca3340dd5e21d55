// Package excerpt shortens texts that people read in objects of the cluster. It knows no
// object, and no sentence.
package excerpt

import "strings"

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
