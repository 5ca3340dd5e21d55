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

// Each line of a walk names a function of its file, and the function above it, to the left, leads there: it calls that
// function by its name, itself or by way of others in its own file and package. An interface's method counts as the function.
func TestTheWalksThroughTheCodeAreThere(t *testing.T) {
	_, section, _ := strings.Cut(read(t, "../../docs/project/development.md"), "\n## How to read the code\n")
	section, _, _ = strings.Cut(section, "\n## ")
	step := regexp.MustCompile(`^( *)((?:[\w-]+/)+\w+\.go): ([\w.]+)`)
	packages, steps := map[string]calls{}, 0
	for _, walk := range strings.Split(section, "\n### ")[1:] {
		name, _, _ := strings.Cut(walk, "\n")
		type place struct {
			indent         int
			file, function string
		}
		var above []place
		for line := range strings.Lines(walk) {
			found := step.FindStringSubmatch(line)
			if found == nil {
				continue
			}
			steps++
			here := place{len(found[1]), found[2], found[3]}
			for len(above) > 0 && above[len(above)-1].indent >= here.indent {
				above = above[:len(above)-1]
			}
			if !callsOf(t, packages, here.file).has(here.file, here.function) {
				t.Errorf("%s: %s has no function %s", name, here.file, here.function)
			}
			if len(above) > 0 {
				caller := above[len(above)-1]
				if !callsOf(t, packages, caller.file).leads(caller.function, here.function) {
					t.Errorf("%s: %s in %s does not call %s of %s", name, caller.function, caller.file, here.function, here.file)
				}
			}
			above = append(above, here)
		}
	}
	if steps < 50 {
		t.Errorf("found %d functions: does the test look for the right thing?", steps)
	}
}

// calls are the functions of a package, by their names without a type, and the names that each mentions.
type calls struct {
	mentioned map[string]map[string]bool
	inFile    map[string]bool // file: function, with its type and without
}

func (c calls) has(file, function string) bool { return c.inFile[filepath.Base(file)+": "+function] }

// leads reports whether one function reaches the other, by names, and within its own package until the last step.
func (c calls) leads(from, to string) bool {
	target := to[strings.LastIndex(to, ".")+1:]
	todo, seen := []string{from[strings.LastIndex(from, ".")+1:]}, map[string]bool{}
	for len(todo) > 0 {
		function := todo[0]
		todo = todo[1:]
		if seen[function] {
			continue
		}
		seen[function] = true
		for name := range c.mentioned[function] {
			if name == target {
				return true
			}
			if c.mentioned[name] != nil {
				todo = append(todo, name)
			}
		}
	}
	return false
}

// callsOf parses the package of a file, whose path is below pkg or cmd.
func callsOf(t *testing.T, packages map[string]calls, file string) calls {
	t.Helper()
	directory := filepath.Join("../../pkg", filepath.Dir(file))
	if strings.HasPrefix(file, "cmd/") {
		directory = filepath.Join("../..", filepath.Dir(file))
	}
	if known, parsed := packages[directory]; parsed {
		return known
	}
	c := calls{mentioned: map[string]map[string]bool{}, inFile: map[string]bool{}}
	packages[directory] = c
	paths, err := filepath.Glob(filepath.Join(directory, "*.go"))
	if err != nil || len(paths) == 0 {
		t.Errorf("docs/project/development.md names the package %s, which cannot be read: %v", directory, err)
	}
	for _, path := range paths {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, declaration := range parsed.Decls {
			if function, is := declaration.(*ast.FuncDecl); is {
				c.add(filepath.Base(path), function)
			}
		}
	}
	return c
}

func (c calls) add(file string, function *ast.FuncDecl) {
	name := function.Name.Name
	c.inFile[file+": "+name] = true
	if function.Recv != nil {
		receiver := function.Recv.List[0].Type
		if pointer, is := receiver.(*ast.StarExpr); is {
			receiver = pointer.X
		}
		if generic, is := receiver.(*ast.IndexExpr); is {
			receiver = generic.X
		}
		if named, is := receiver.(*ast.Ident); is {
			c.inFile[file+": "+named.Name+"."+name] = true
		}
	}
	if c.mentioned[name] == nil {
		c.mentioned[name] = map[string]bool{}
	}
	ast.Inspect(function.Body, func(node ast.Node) bool {
		if identifier, is := node.(*ast.Ident); is {
			c.mentioned[name][identifier.Name] = true
		}
		return true
	})
}
