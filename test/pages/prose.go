package pages

import (
	"bytes"
	"strings"

	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/extension"
	"github.com/yuin/goldmark/text"
)

// Prose is what a reader of a page reads as sentences, on the lines where it stands. Blanks are in place of all else: code,
// the addresses of links, and what the site alone reads.
func Prose(page string) (string, error) {
	prose := blank(page)
	body := len(page) - len(WithoutFrontMatter(page))
	source := []byte(page)[body:]
	document := goldmark.New(goldmark.WithExtensions(extension.GFM)).Parser().Parse(text.NewReader(source))
	err := ast.Walk(document, func(node ast.Node, entering bool) (ast.WalkStatus, error) {
		if node.Kind() == ast.KindCodeSpan {
			return ast.WalkSkipChildren, nil
		}
		if words, ok := node.(*ast.Text); ok && entering {
			copy(prose[body+words.Segment.Start:], words.Segment.Value(source))
		}
		return ast.WalkContinue, nil
	})
	return string(prose), err
}

// blank has the lines of a text without what is on them.
func blank(text string) []byte {
	lines := bytes.Repeat([]byte(" "), len(text))
	for i := range lines {
		if text[i] == '\n' {
			lines[i] = '\n'
		}
	}
	return lines
}

// WithoutFrontMatter is the page below what the site alone reads.
func WithoutFrontMatter(page string) string {
	if matter, found := strings.CutPrefix(page, "---\n"); found {
		if _, body, found := strings.Cut(matter, "\n---\n"); found {
			return body
		}
	}
	return page
}
