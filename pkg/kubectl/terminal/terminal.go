// Package terminal prints tables that fit the terminal, and values as JSON or YAML. Output to files and
// pipes has no colour, and no line of it is broken. The package knows no object of the cluster.
package terminal

import (
	"io"
	"os"
	"strings"
	"unicode/utf8"

	"golang.org/x/term"
)

// Screen is a terminal, a file or a pipe.
type Screen struct {
	// Width is the number of characters per line. 0: no limit, as in files and pipes.
	Width int
	// Colour reports whether styles are shown.
	Colour bool
}

// Of returns the screen that w writes to. lookup reads environment variables: NO_COLOR
// (https://no-color.org) and TERM=dumb turn colour off.
func Of(w io.Writer, lookup func(string) (string, bool)) Screen {
	file, is := w.(*os.File)
	if !is || !term.IsTerminal(int(file.Fd())) {
		return Screen{}
	}
	width, _, err := term.GetSize(int(file.Fd()))
	if err != nil {
		width = 0
	}
	kind, _ := lookup("TERM")
	unwanted, _ := lookup("NO_COLOR")
	return Screen{Width: width, Colour: unwanted == "" && kind != "dumb"}
}

// Style is the meaning of a text. It is shown by colour, and the text must be readable without.
type Style int

const (
	// Plain has no colour.
	Plain Style = iota
	// Good marks what is healthy.
	Good
	// Warning marks what may need attention.
	Warning
	// Bad marks what needs repair.
	Bad
	// Faint marks details.
	Faint
	// Strong marks headings.
	Strong
)

// codes are SGR parameters of ECMA-48.
var codes = map[Style]string{Good: "32", Warning: "33", Bad: "31", Faint: "2", Strong: "1"}

// Paint applies a style if the screen has colours.
func (s Screen) Paint(text string, style Style) string {
	code := codes[style]
	if !s.Colour || code == "" || text == "" {
		return text
	}
	return "\x1b[" + code + "m" + text + "\x1b[0m"
}

// Lines breaks a text at its spaces into lines of the screen, each after so many spaces. A word that is
// too long has a line of its own.
func (s Screen) Lines(text string, indent int) []string {
	lines := s.wrapped(text, indent)
	for i := range lines {
		lines[i] = strings.Repeat(" ", indent) + lines[i]
	}
	return lines
}

// wrapped breaks a text into lines that start after so many characters.
func (s Screen) wrapped(text string, taken int) []string {
	width := 0 // without end
	if s.Width > 0 {
		width = max(s.Width-taken, leastWrapped)
	}
	var lines []string
	for paragraph := range strings.SplitSeq(text, "\n") {
		lines = append(lines, wrap(paragraph, width)...)
	}
	return lines
}

func wrap(text string, width int) []string {
	if width == 0 {
		return []string{text}
	}
	var lines []string
	line := ""
	for _, word := range strings.Fields(text) {
		switch {
		case line == "":
			line = word
		case length(line)+1+length(word) > width:
			lines = append(lines, line)
			line = word
		default:
			line += " " + word
		}
	}
	return append(lines, line)
}

func length(text string) int { return utf8.RuneCountInString(text) }
