package main

import (
	"errors"
	"fmt"
	"html/template"
	"regexp"
	"strings"
	"unicode/utf8"

	ansi "github.com/leaanthony/go-ansi-parser"
)

// A character of a font at 14 px is 8.4 px wide in most fonts of terminals. Where the reader's font differs, textLength keeps
// the columns.
const (
	character = 8.4
	lineSkip  = 20.0
	margin    = 18.0
	// The terminal of hack/screenshots.sh has so many columns: as wide is every drawing, so that all have letters of one size.
	columns = 110
)

// screen is what is drawn.
type screen struct {
	Prompt        string
	Width, Height float64
	Lines         []line
}

type line struct {
	Y    float64
	Runs []part
}

// part is text of one style, at its place.
type part struct {
	X, Length float64
	Style     string
	Text      string
}

// In a page the drawing has the page's colors: :root is the drawing only in a file of its own.
var drawing = template.Must(template.New("screenshot").Parse(`<svg xmlns="http://www.w3.org/2000/svg" class="mica-t" viewBox="0 0 {{.Width}} {{.Height}}" role="img">
  <title>{{.Prompt}}</title>
  <style>
    .mica-t { font: 14px ui-monospace, SFMono-Regular, Menlo, Consolas, "Liberation Mono", "DejaVu Sans Mono", monospace; fill: var(--d-fg, #1b2430); }
    .mica-t .screen { fill: var(--d-box, #fff); stroke: var(--d-line, #9aa7b6); }
    .mica-t .strong { font-weight: 650; fill: var(--d-strong, #0b1220); }
    .mica-t .faint { fill: var(--d-muted, #5a6675); }
    .mica-t .good { fill: var(--good, #15803d); }
    .mica-t .warning { fill: var(--warn, #b45309); }
    .mica-t .bad { fill: var(--danger, #be123c); }
    @media (prefers-color-scheme: dark) {
      :root.mica-t { --d-fg: #d5dde8; --d-strong: #f2f6fb; --d-muted: #92a0b3; --d-line: #3a4657; --d-box: #0d1117; --good: #4ade80; --warn: #f5b04c; --danger: #fb7185; }
    }
  </style>
  <rect class="screen" x=".5" y=".5" width="{{.Frame}}" height="{{.FrameHeight}}" rx="9"/>
{{- range .Lines}}
  <text y="{{.Y}}">{{range .Runs}}<tspan x="{{.X}}" textLength="{{.Length}}"{{with .Style}} class="{{.}}"{{end}}>{{.Text}}</tspan>{{end}}</text>
{{- end}}
</svg>
`))

// Frame and FrameHeight are those of the border, which is a pixel wide.
func (s screen) Frame() float64       { return s.Width - 1 }
func (s screen) FrameHeight() float64 { return s.Height - 1 }

// draw makes a drawing of what was typed and what came of it.
func draw(prompt, printed string) (string, error) {
	printed = strings.TrimRight(strings.ReplaceAll(printed, "\r\n", "\n"), " \n")
	if printed == "" {
		return "", errors.New("the command has printed nothing")
	}
	drawn := screen{Prompt: prompt, Width: width(columns)}
	for i, text := range append([]string{"\x1b[2m$ \x1b[0m\x1b[1m" + prompt + "\x1b[0m"}, strings.Split(printed, "\n")...) {
		parts, length, err := partsOf(text)
		if err != nil {
			return "", fmt.Errorf("line %d: %w", i, err)
		}
		drawn.Lines = append(drawn.Lines, line{Y: margin + 12 + float64(i)*lineSkip, Runs: parts})
		drawn.Width = max(drawn.Width, width(length))
	}
	drawn.Height = 2*margin + float64(len(drawn.Lines))*lineSkip - 4
	var out strings.Builder
	if err := drawing.Execute(&out, drawn); err != nil {
		return "", fmt.Errorf("draw: %w", err)
	}
	return out.String(), nil
}

// partsOf places the parts of a line, and counts its columns.
func partsOf(text string) ([]part, int, error) {
	text = strings.TrimRight(text, " ")
	if text == "" {
		return nil, 0, nil
	}
	styled, err := ansi.Parse(text)
	if err != nil {
		return nil, 0, fmt.Errorf("a sequence of the terminal cannot be read: %w", err)
	}
	var parts []part
	column := 0
	for _, s := range styled {
		length := utf8.RuneCountInString(s.Label)
		if strings.TrimSpace(s.Label) != "" {
			style, err := styleOf(s)
			if err != nil {
				return nil, 0, err
			}
			parts = append(parts, part{X: rounded(margin + float64(column)*character), Length: rounded(float64(length) * character), Style: style, Text: lasting(s.Label)})
		}
		column += length
	}
	return parts, column, nil
}

// styleOf names the styles of pkg/kubectl/terminal, which are all that kubectl gpu prints.
func styleOf(s *ansi.StyledText) (string, error) {
	switch {
	case s.FgCol != nil && s.FgCol.Name == "Green":
		return "good", nil
	case s.FgCol != nil && s.FgCol.Name == "Olive":
		return "warning", nil
	case s.FgCol != nil && s.FgCol.Name == "Maroon":
		return "bad", nil
	case s.FgCol != nil:
		return "", fmt.Errorf("color %s of %q has no style here", s.FgCol.Name, s.Label)
	case s.Bold():
		return "strong", nil
	case s.Faint():
		return "faint", nil
	}
	return "", nil
}

// blanks are those at an end and those in a row, which a page that has the drawing in it runs together.
var blanks = regexp.MustCompile(`^ +| +$| {2,}`)

// lasting has no-break spaces in place of such blanks.
func lasting(text string) string {
	return blanks.ReplaceAllStringFunc(text, func(run string) string { return strings.Repeat("\u00a0", len(run)) })
}

// width is that of a screen with so many columns.
func width(columns int) float64 { return rounded(2*margin + float64(columns)*character) }

func rounded(length float64) float64 { return float64(int(length*10+0.5)) / 10 }
