package driverroot

import (
	"bytes"
	"strings"
	"sync"
	"unicode"
)

const (
	// maxOutput is how much Output keeps: the end, which has the reason.
	maxOutput = 16 << 10
	// maxSaid is how much of it an error has.
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

// String is the kept end.
func (o *Output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return string(o.kept)
}

// Said returns the last lines of a text that are not empty as one short line for an error.
func Said(text string, lines int) string {
	var last []string
	for line := range bytes.Lines([]byte(text)) {
		if line := strings.TrimSpace(strings.Map(printable, string(line))); line != "" {
			last = append(last, line)
		}
	}
	if excess := len(last) - lines; excess > 0 {
		last = last[excess:]
	}
	joined := []rune(strings.Join(last, "; "))
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
