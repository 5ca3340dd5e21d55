// Spelling looks each word of the pages up in a dictionary, hunspell's of American English. Words of the field and of the project
// are in words.txt, which has no others than those that the pages use. What is in code is no word.
//
// It exits with 1 after printing what is wrong, a line each, and with 2 if it cannot tell.
package main

import (
	"bytes"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/mica-gpu/mica/test/pages"
)

const wordsFile = "hack/spelling/words.txt"

//go:embed words.txt
var projectWords string

func main() {
	findings, err := run(".")
	if err != nil {
		fmt.Fprintf(os.Stderr, "spelling: %v\n", err)
		os.Exit(2)
	}
	for _, finding := range findings {
		fmt.Println(finding)
	}
	if len(findings) > 0 {
		os.Exit(1)
	}
}

func run(root string) ([]string, error) {
	texts, err := read(root)
	if err != nil {
		return nil, err
	}
	unknown, err := hunspell(texts)
	if err != nil {
		return nil, err
	}
	return check(texts, unknown, strings.Fields(projectWords)), nil
}

// read has the words of each page, as they are to be looked up.
func read(root string) ([]page, error) {
	files, err := pages.Files(root)
	if err != nil {
		return nil, err
	}
	files = append(files, "CHANGELOG.md", "deployments/helm/mica/templates/NOTES.txt")
	texts := make([]page, 0, len(files))
	for _, file := range files {
		source, err := os.ReadFile(filepath.Join(root, file))
		if err != nil {
			return nil, err
		}
		prose := withoutTemplates(string(source))
		if filepath.Ext(file) == ".md" {
			if prose, err = pages.Prose(string(source)); err != nil {
				return nil, fmt.Errorf("read %s: %w", file, err)
			}
		}
		texts = append(texts, page{file: file, text: words(prose)})
	}
	return texts, nil
}

// hunspell lists the words that the dictionary does not have.
func hunspell(texts []page) ([]string, error) {
	var all bytes.Buffer
	for _, p := range texts {
		all.WriteString(p.text)
	}
	command := exec.Command("hunspell", "-d", "en_US", "-i", "UTF-8", "-l")
	command.Stdin = &all
	out, err := command.Output()
	var failed *exec.ExitError
	if errors.As(err, &failed) {
		return nil, fmt.Errorf("hunspell: %w: %s", err, failed.Stderr)
	}
	if err != nil {
		return nil, err
	}
	unknown := strings.Fields(string(out))
	slices.Sort(unknown)
	return slices.Compact(unknown), nil
}
