package docs

import (
	"bytes"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"unicode"

	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/extension"
	"github.com/yuin/goldmark/text"

	"github.com/mica-gpu/mica/test/pages"
)

const root = "../.."

// A link within the repository leads to a file that there is, and to a heading that it has. What GitHub shows and
// what the site shows follow from the same links.
func TestLinksLeadSomewhere(t *testing.T) {
	known := map[string]map[string]bool{}
	for _, file := range markdown(t) {
		for _, link := range parse(t, file).links {
			target, err := url.Parse(link)
			if err != nil {
				t.Errorf("%s: the link %s is none: %v", file, link, err)
				continue
			}
			if target.Scheme != "" {
				continue
			}
			to := file
			if target.Path != "" {
				to = filepath.Join(filepath.Dir(file), target.Path)
			}
			if _, err := os.Stat(filepath.Join(root, to)); err != nil {
				t.Errorf("%s: the link %s leads nowhere", file, link)
				continue
			}
			if target.Fragment == "" {
				continue
			}
			if known[to] == nil {
				known[to] = parse(t, to).anchors
			}
			if !known[to][target.Fragment] {
				t.Errorf("%s: the link %s leads to a heading that %s does not have", file, link, to)
			}
		}
	}
}

// A blank line within a table ends it, and the rest is text.
func TestTablesAreTables(t *testing.T) {
	for _, file := range markdown(t) {
		for _, broken := range parse(t, file).broken {
			t.Errorf("%s: %.60q belongs to no table", file, broken)
		}
	}
}

// pageName is that of a page in a comment or a message. In an address something else is before it, and other
// projects have other parts.
var pageName = regexp.MustCompile(`(?:^|[ ("\x60])(docs/(?:(?:start|use|operate|understand|reference|project)/)?[a-z0-9-]+\.md)`)

// What is no Markdown names pages in comments and messages, and is not followed by who moves a page.
func TestPagesThatAreNamedAreThere(t *testing.T) {
	named := 0
	for _, part := range []string{"api", "cmd", "deployments", "examples", "hack", "pkg", "test", ".github"} {
		err := filepath.WalkDir(filepath.Join(root, part), func(path string, entry fs.DirEntry, err error) error {
			switch {
			case err != nil || entry.IsDir() && entry.Name() != "testdata":
				return err
			case entry.IsDir():
				return fs.SkipDir // it has what earlier versions were
			case !entry.Type().IsRegular() || filepath.Ext(path) == ".md":
				return nil
			}
			content := read(t, path)
			if !strings.Contains(content, "docs/") {
				return nil
			}
			for _, found := range pageName.FindAllStringSubmatch(content, -1) {
				named++
				if _, err := os.Stat(filepath.Join(root, found[1])); err != nil {
					t.Errorf("%s names %s, which does not exist", path, found[1])
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if named < 20 {
		t.Errorf("only %d pages are named: does the test look for the right thing?", named)
	}
}

// markdown are the files of Markdown, relative to the root.
func markdown(t *testing.T) []string {
	t.Helper()
	found, err := pages.Markdown(root)
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// parsed is what the tests ask of a file of Markdown.
type parsed struct {
	links []string
	// broken are paragraphs that look like rows of a table.
	broken  []string
	anchors map[string]bool
}

func parse(t *testing.T, file string) parsed {
	t.Helper()
	source := []byte(pages.WithoutFrontMatter(read(t, filepath.Join(root, file))))
	result := parsed{anchors: map[string]bool{}}
	seen := map[string]int{}
	document := goldmark.New(goldmark.WithExtensions(extension.GFM)).Parser().Parse(text.NewReader(source))
	err := ast.Walk(document, func(node ast.Node, entering bool) (ast.WalkStatus, error) {
		if !entering {
			return ast.WalkContinue, nil
		}
		switch n := node.(type) {
		case *ast.Link:
			result.links = append(result.links, string(n.Destination))
		case *ast.Image:
			result.links = append(result.links, string(n.Destination))
		case *ast.Paragraph:
			if text := plain(n, source); strings.HasPrefix(text, "|") {
				result.broken = append(result.broken, text)
			}
		case *ast.Heading:
			anchor := anchorOf(plain(n, source))
			count := seen[anchor]
			seen[anchor]++
			if count > 0 {
				anchor += "-" + strconv.Itoa(count)
			}
			result.anchors[anchor] = true
		}
		return ast.WalkContinue, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return result
}

func plain(node ast.Node, source []byte) string {
	var words bytes.Buffer
	for child := node.FirstChild(); child != nil; child = child.NextSibling() {
		if leaf, ok := child.(*ast.Text); ok {
			words.Write(leaf.Segment.Value(source))
			continue
		}
		words.WriteString(plain(child, source))
	}
	return words.String()
}

// anchorOf is what GitHub makes of a heading, and Hugo with autoHeadingIDType github: lower case, blanks as
// hyphens, and of the rest letters, digits, hyphens and underscores only.
func anchorOf(heading string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == ' ':
			return '-'
		case r == '-' || r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r):
			return unicode.ToLower(r)
		}
		return -1
	}, heading)
}
