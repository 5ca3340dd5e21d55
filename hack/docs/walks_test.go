package docs

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Each line of a walk names a function that is in the file of which the line says so.
func TestTheWalksThroughTheCodeAreThere(t *testing.T) {
	_, section, _ := strings.Cut(read(t, "../../docs/development.md"), "\n## How to read the code\n")
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
			t.Errorf("docs/development.md names %s in %s, which has no such function", step[2], step[1])
		}
	}
}

// functionsOf has each method with its type and without.
func functionsOf(t *testing.T, path string) map[string]bool {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
	if err != nil {
		t.Errorf("docs/development.md names a file that cannot be read: %v", err)
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
