package main

import (
	"go/scanner"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// phrases hide who does what: write "reports whether", and name the actor.
var phrases = regexp.MustCompile(`(?i)\b(tells whether|says whether|of which|nobody|somebody|who asks|who may)\b`)

// TestPhrasesStayOut looks at pages, scripts and manifests, and in Go at comments and texts.
func TestPhrasesStayOut(t *testing.T) {
	for _, file := range trackedFiles(t) {
		source, err := os.ReadFile(filepath.Join("../..", file))
		if os.IsNotExist(err) {
			continue // deleted and not committed yet
		}
		if err != nil {
			t.Fatal(err)
		}
		text := string(source)
		if filepath.Ext(file) == ".go" {
			text = prose(source)
		}
		// nobody: is the user of a passwd file.
		if found := phrases.FindAllString(strings.ReplaceAll(text, "nobody:", ""), -1); found != nil {
			t.Errorf("%s: name who acts instead, and write \"reports whether\": %q", file, found)
		}
	}
}

// trackedFiles are those that people write: no generated files, goldens or texts of other projects.
func trackedFiles(t *testing.T) []string {
	t.Helper()
	command := exec.Command("git", "ls-files", "--", "*.go", "*.md", "*.sh", "*.yaml", "*.tpl", "*.c", "*.h", "*.mk", "Makefile")
	command.Dir = "../.."
	out, err := command.Output()
	if err != nil {
		t.Fatalf("list the files: %v", err)
	}
	return slices.DeleteFunc(strings.Fields(string(out)), func(file string) bool {
		return strings.Contains(file, "testdata/") || strings.Contains(file, "zz_generated") ||
			file == "CHANGELOG.md" || strings.HasPrefix(file, "hack/spelling/")
	})
}

// prose has the comments and strings of a Go file, without code.
func prose(source []byte) string {
	var text strings.Builder
	var s scanner.Scanner
	set := token.NewFileSet()
	s.Init(set.AddFile("", set.Base(), len(source)), source, nil, scanner.ScanComments)
	for {
		_, kind, literal := s.Scan()
		switch kind {
		case token.EOF:
			return text.String()
		case token.COMMENT, token.STRING:
			text.WriteString(strings.NewReplacer("\n// ", " ", "\n//", " ").Replace(literal) + "\n")
		}
	}
}
