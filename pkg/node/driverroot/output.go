package driverroot

import (
	"bytes"
	"strings"
	"sync"
	"unicode"
)

const (
	// maxOutput bounds what is kept of a program's output: its end, which says why
	// it ended.
	maxOutput = 16 << 10
	// maxSaid bounds what of it becomes part of an error.
	maxSaid = 400
)

// Output keeps the end of what a program prints. It is safe for concurrent use.
type Output struct {
	mu   sync.Mutex
	kept []byte
}

// Write implements io.Writer and never fails.
func (o *Output) Write(printed []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.kept = append(o.kept, printed...)
	if excess := len(o.kept) - maxOutput; excess > 0 {
		o.kept = append(o.kept[:0], o.kept[excess:]...)
	}
	return len(printed), nil
}

// String is all that is kept.
func (o *Output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return string(o.kept)
}

// Said are the last lines of a text that are not empty, at most so many, as one
// short line for an error.
func Said(text string, lines int) string {
	var said []string
	for line := range bytes.Lines([]byte(text)) {
		if line := strings.TrimSpace(strings.Map(printable, string(line))); line != "" {
			said = append(said, line)
		}
	}
	if excess := len(said) - lines; excess > 0 {
		said = said[excess:]
	}
	joined := []rune(strings.Join(said, "; "))
	if len(joined) > maxSaid {
		joined = append([]rune("..."), joined[len(joined)-maxSaid:]...)
	}
	return string(joined)
}

func printable(r rune) rune {
	if unicode.IsPrint(r) {
		return r
	}
	return ' '
}
