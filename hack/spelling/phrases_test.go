package main

import (
	"flag"
	"go/scanner"
	"go/token"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "take directories that are clean out of unclean.txt")

// phrases hide who does what: write "reports whether", and name the actor.
var phrases = regexp.MustCompile(`(?i)\b(tells whether|says whether|of which|nobody|somebody|who asks|who may)\b`)

// uncleanFile lists directories that have phrases still, one per line. It only shrinks.
const uncleanFile = "unclean.txt"

// TestPhrasesStayOut looks at pages, scripts and manifests, and in Go at comments and texts.
func TestPhrasesStayOut(t *testing.T) {
	content, err := os.ReadFile(uncleanFile)
	if err != nil {
		t.Fatal(err)
	}
	unclean := strings.Fields(string(content))
	found := map[string][]string{}
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
		if phrase := phrases.FindString(strings.ReplaceAll(text, "nobody:", "")); phrase != "" {
			found[filepath.Dir(file)] = append(found[filepath.Dir(file)], filepath.Base(file)+": "+phrase)
		}
	}
	for _, directory := range slices.Sorted(maps.Keys(found)) {
		if !slices.Contains(unclean, directory) {
			t.Errorf("%s: name who acts instead, and write \"reports whether\": %q", directory, found[directory])
		}
	}
	left := slices.DeleteFunc(slices.Clone(unclean), func(directory string) bool { return found[directory] == nil })
	if *update {
		if err := os.WriteFile(uncleanFile, []byte(strings.Join(left, "\n")+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if len(left) < len(unclean) {
		t.Errorf("directories in hack/spelling/%s are clean now: run go test ./hack/spelling -update", uncleanFile)
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
