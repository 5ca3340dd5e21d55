package floors

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// hack/test.sh runs some rooms without the race detector. That loses nothing as long as they start
// no goroutine and share nothing.
func TestRoomsWithoutTheRaceDetectorHaveNothingToRace(t *testing.T) {
	script, err := os.ReadFile("../test.sh")
	if err != nil {
		t.Fatal(err)
	}
	list := regexp.MustCompile(`(?s)\npure=\((.*?)\)`).FindSubmatch(script)
	if list == nil {
		t.Fatal("hack/test.sh has no list called pure")
	}
	for _, room := range strings.Fields(string(list[1])) {
		files, err := filepath.Glob(filepath.Join("../..", room, "*.go"))
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %d files, %v", room, len(files), err)
		}
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
			if err != nil {
				t.Fatal(err)
			}
			if what := concurrent(parsed); what != "" {
				t.Errorf("%s has %s: take %s off the list in hack/test.sh", file, what, room)
			}
		}
	}
}

// concurrent names the first thing in a file that the race detector could have a say in.
func concurrent(file *ast.File) (what string) {
	for _, spec := range file.Imports {
		if path := strings.Trim(spec.Path.Value, `"`); path == "sync" || path == "sync/atomic" {
			return "an import of " + path
		}
	}
	ast.Inspect(file, func(node ast.Node) bool {
		if _, ok := node.(*ast.GoStmt); ok {
			what = "a go statement"
		}
		return what == ""
	})
	return what
}

func TestConcurrent(t *testing.T) {
	for source, want := range map[string]string{
		"package a\nfunc f() {}":                       "",
		"package a\nfunc f() { go f() }":               "a go statement",
		"package a\nimport \"sync\"\nvar m sync.Mutex": "an import of sync",
	} {
		file, err := parser.ParseFile(token.NewFileSet(), "a.go", source, 0)
		if err != nil {
			t.Fatal(err)
		}
		if got := concurrent(file); got != want {
			t.Errorf("%q has %q, want %q", source, got, want)
		}
	}
}
