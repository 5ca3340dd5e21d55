// Package pages reads the documentation: which files it has, and which blocks of code and commands are in them. It is for
// tests that hold the pages to the code; what a command means is theirs to say.
package pages

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/text"
)

// alsoPages are the pages of the site that are not below docs.
var alsoPages = []string{"README.md", "CONTRIBUTING.md", "SECURITY.md", "deployments/helm/mica/README.md", "deployments/observability/README.md", "examples/README.md"}

// Markdown are all files of Markdown below root that git knows or would add, relative to root.
func Markdown(root string) ([]string, error) {
	out, err := exec.Command("git", "-C", root, "ls-files", "--cached", "--others", "--exclude-standard", "--deduplicate", "*.md").Output()
	if err != nil {
		return nil, fmt.Errorf("list the files of Markdown: %w", err)
	}
	var found []string
	for _, file := range strings.Fields(string(out)) {
		if _, err := os.Stat(filepath.Join(root, file)); err == nil {
			found = append(found, file)
		}
	}
	return found, nil
}

// Files are the pages below root, relative to it: those of docs, and those that are elsewhere.
func Files(root string) ([]string, error) {
	all, err := Markdown(root)
	if err != nil {
		return nil, err
	}
	var found []string
	for _, file := range all {
		if strings.HasPrefix(file, "docs/") {
			found = append(found, file)
		}
	}
	for _, file := range alsoPages {
		if _, err := os.Stat(filepath.Join(root, file)); err == nil {
			found = append(found, file)
		}
	}
	return found, nil
}

// Block is a fenced block of code.
type Block struct {
	File     string
	Line     int
	Language string
	// Attributes are what stands in braces after the language: {run=TestExamples}.
	Attributes map[string]string
	Text       string
}

func (b Block) String() string { return fmt.Sprintf("%s:%d", b.File, b.Line) }

var attribute = regexp.MustCompile(`([\w-]+)=([\w./-]+)`)

// Blocks are the blocks of code of all pages.
func Blocks(root string) ([]Block, error) {
	files, err := Files(root)
	if err != nil {
		return nil, err
	}
	var found []Block
	for _, file := range files {
		source, err := os.ReadFile(filepath.Join(root, file))
		if err != nil {
			return nil, fmt.Errorf("read a page: %w", err)
		}
		blocks, err := blocksOf(file, source)
		if err != nil {
			return nil, err
		}
		found = append(found, blocks...)
	}
	return found, nil
}

func blocksOf(file string, source []byte) ([]Block, error) {
	var found []Block
	err := ast.Walk(goldmark.DefaultParser().Parse(text.NewReader(source)), func(node ast.Node, entering bool) (ast.WalkStatus, error) {
		fenced, ok := node.(*ast.FencedCodeBlock)
		if !ok || !entering {
			return ast.WalkContinue, nil
		}
		b := Block{File: file, Language: string(fenced.Language(source)), Attributes: map[string]string{}}
		if fenced.Info != nil {
			_, rest, _ := strings.Cut(string(fenced.Info.Value(source)), " ")
			for _, pair := range attribute.FindAllStringSubmatch(rest, -1) {
				b.Attributes[pair[1]] = pair[2]
			}
		}
		var lines bytes.Buffer
		for i := range fenced.Lines().Len() {
			segment := fenced.Lines().At(i)
			if i == 0 {
				b.Line = 1 + bytes.Count(source[:segment.Start], []byte("\n"))
			}
			lines.Write(segment.Value(source))
		}
		b.Text = lines.String()
		found = append(found, b)
		return ast.WalkContinue, nil
	})
	return found, err
}

// IsShell reports whether the block has commands.
func (b Block) IsShell() bool {
	return b.Language == "sh" || b.Language == "bash" || b.Language == "console"
}

// Script is what a reader types: the whole block, or what follows the prompts of a recorded session, with the lines that
// belong to it by an open quote or a backslash.
func (b Block) Script() string {
	if b.Language != "console" {
		return b.Text
	}
	var script strings.Builder
	open := false
	for line := range strings.Lines(b.Text) {
		typed, prompt := strings.CutPrefix(line, "$ ")
		if !prompt && !open {
			continue
		}
		script.WriteString(typed)
		open = strings.HasSuffix(strings.TrimSpace(script.String()), `\`) || strings.Count(script.String(), "'")%2 == 1
	}
	return script.String()
}

var continued = regexp.MustCompile(`\\\n\s*`)

// Commands are the lines of the script that begin with these words, with their continuations.
func (b Block) Commands(words string) []string {
	var found []string
	for line := range strings.Lines(continued.ReplaceAllString(b.Script(), "")) {
		if line = strings.TrimSpace(line); line == words || strings.HasPrefix(line, words+" ") {
			found = append(found, line)
		}
	}
	return found
}

// Command is one that a page shows.
type Command struct {
	// Where is the block that it is in.
	Where string
	Line  string
}

// Commands are those of all pages that begin with these words.
func Commands(root, words string) ([]Command, error) {
	blocks, err := Blocks(root)
	if err != nil {
		return nil, err
	}
	var found []Command
	for _, block := range blocks {
		if !block.IsShell() {
			continue
		}
		for _, line := range block.Commands(words) {
			found = append(found, Command{Where: block.String(), Line: line})
		}
	}
	return found, nil
}
