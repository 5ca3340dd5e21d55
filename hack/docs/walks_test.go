package docs

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// Each line of a walk names a function that is in the file of which the line says so.
func TestTheWalksThroughTheCodeAreThere(t *testing.T) {
	_, section, _ := strings.Cut(read(t, "../../docs/project/development.md"), "\n## How to read the code\n")
	section, _, _ = strings.Cut(section, "\n## ")
	step := regexp.MustCompile("(?m)(?:^ *|`)((?:[\\w-]+/)+\\w+\\.go): ([\\w.]+)")
	steps := step.FindAllStringSubmatch(section, -1)
	if len(steps) < 50 {
		t.Errorf("found %d functions: does the test look for the right thing?", len(steps))
	}
	for _, step := range steps {
		path := filepath.Join("../../pkg", step[1])
		if strings.HasPrefix(step[1], "cmd/") {
			path = filepath.Join("../..", step[1])
		}
		if !functionsOf(t, path)[step[2]] {
			t.Errorf("docs/project/development.md names %s in %s, which has no such function", step[2], step[1])
		}
	}
}

// A reader goes top-down: what a walk has left is read.
func TestNoWalkReturnsToAFile(t *testing.T) {
	_, section, _ := strings.Cut(read(t, "../../docs/project/development.md"), "\n## How to read the code\n")
	section, _, _ = strings.Cut(section, "\n## ")
	walks := strings.Split(section, "\n### ")[1:]
	if len(walks) != 5 {
		t.Errorf("found %d walks: does the test look for the right thing?", len(walks))
	}
	line := regexp.MustCompile(`(?m)^ *((?:[\w-]+/)+\w+\.go): `)
	for _, walk := range walks {
		name, _, _ := strings.Cut(walk, "\n")
		files := []string{""}
		for _, step := range line.FindAllStringSubmatch(walk, -1) {
			file := step[1]
			if file == files[len(files)-1] {
				continue
			}
			if slices.Contains(files, file) {
				t.Errorf("docs/project/development.md, %q: the walk returns to %s: move what it returns for to the file where it is then, or to one of its own", name, file)
			}
			files = append(files, file)
		}
	}
}

// functionsOf has each method with its type and without.
func functionsOf(t *testing.T, path string) map[string]bool {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
	if err != nil {
		t.Errorf("docs/project/development.md names a file that cannot be read: %v", err)
		return nil
	}
	names := map[string]bool{}
	for _, declaration := range file.Decls {
		function, is := declaration.(*ast.FuncDecl)
		if !is {
			continue
		}
		names[function.Name.Name] = true
		if function.Recv == nil {
			continue
		}
		receiver := function.Recv.List[0].Type
		if pointer, is := receiver.(*ast.StarExpr); is {
			receiver = pointer.X
		}
		if named, is := receiver.(*ast.Ident); is {
			names[named.Name+"."+function.Name.Name] = true
		}
	}
	return names
}
