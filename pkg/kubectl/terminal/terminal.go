// Package terminal prints what `kubectl gpu` has to say: tables that fit the terminal, and the same
// values as JSON or YAML. Colour is for people: output that is not a terminal's has none, and no line of
// it is broken. The package knows no object of the cluster.
package terminal

import (
	"io"
	"os"
	"strings"
	"unicode/utf8"

	"golang.org/x/term"
)

// Screen is what is printed on.
type Screen struct {
	// Width is how many characters a line has, 0 where lines have no end: in files and pipes.
	Width int
	// Colour is whether styles are shown.
	Colour bool
}

// Of looks at what a command writes to. Variables of the environment are asked for with lookup:
// NO_COLOR (https://no-color.org) and TERM=dumb turn colour off.
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

// Style is what a text means. It is shown by colour, and must be readable without.
type Style int

const (
	// Plain is a text like any other.
	Plain Style = iota
	// Good is for what is as it is to be.
	Good
	// Warning is for what somebody may want to look at.
	Warning
	// Bad is for what somebody has to mend.
	Bad
	// Faint is for what is of less weight than the rest.
	Faint
	// Strong is for headings.
	Strong
)

// codes are SGR parameters of ECMA-48, which every terminal knows.
var codes = map[Style]string{Good: "32", Warning: "33", Bad: "31", Faint: "2", Strong: "1"}

// Paint gives a text its style, if the screen has colours.
func (s Screen) Paint(text string, style Style) string {
	code := codes[style]
	if !s.Colour || code == "" || text == "" {
		return text
	}
	return "\x1b[" + code + "m" + text + "\x1b[0m"
}

// Lines breaks a text at its spaces into lines of the screen, each after an indent of so many
// characters. A word that is too long has a line of its own.
func (s Screen) Lines(text string, indent int) []string {
	var lines []string
	for _, paragraph := range strings.Split(text, "\n") {
		for _, line := range wrap(paragraph, s.room(indent)) {
			lines = append(lines, strings.Repeat(" ", indent)+line)
		}
	}
	return lines
}

// room is how many characters are left after so many, 0 where lines have no end.
func (s Screen) room(taken int) int {
	if s.Width == 0 {
		return 0
	}
	return max(s.Width-taken, leastWrapped)
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
