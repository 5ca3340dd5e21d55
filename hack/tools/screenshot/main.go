// Command screenshot draws what a command has printed on a terminal as SVG. The text stays text, which can be selected, searched
// and read aloud; it has the colors of the page around it, or of the reader's system.
//
//	screenshot PROMPT <OUTPUT >DRAWING
package main

import (
	"fmt"
	"io"
	"os"
)

// limit is how much output is drawn: no screen of a page has more.
const limit = 64 << 10

func main() {
	if err := run(os.Stdin, os.Stdout, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "screenshot:", err)
		os.Exit(1)
	}
}

func run(in io.Reader, out io.Writer, args []string) error {
	if len(args) != 1 {
		return fmt.Errorf("%d arguments were given: the command that was typed is the only one, in quotes", len(args))
	}
	printed, err := io.ReadAll(io.LimitReader(in, limit+1))
	if err != nil {
		return fmt.Errorf("read what the command printed: %w", err)
	}
	if len(printed) > limit {
		return fmt.Errorf("the command printed more than %d bytes, which is too much for a picture: choose less", limit)
	}
	drawn, err := draw(args[0], string(printed))
	if err != nil {
		return err
	}
	_, err = io.WriteString(out, drawn)
	return err
}
