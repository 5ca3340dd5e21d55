package explain

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"sync"

	"github.com/google/cel-go/common"
	"github.com/google/cel-go/common/ast"
	"github.com/google/cel-go/common/operators"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/parser"
	resourceapi "k8s.io/api/resource/v1"
)

// parse reads an expression as it was written: without macros a cel.bind or an exists is a
// call like any other, and can be printed again.
var parse = sync.OnceValues(func() (*parser.Parser, error) {
	return parser.NewParser(parser.Macros(), parser.EnableOptionalSyntax(true),
		parser.EnableIdentEscapeSyntax(true), parser.ExpressionSizeCodePointLimit(math.MaxInt32))
})

// conjunct is one of the conditions that && joins to a selector.
type conjunct struct {
	// text is for people, expression can be evaluated by itself.
	text, expression string
	// reads is what of a device it looks at, in the order in which it is written.
	reads []field
	// quantities are the arguments of quantity(), and words the strings that are compared.
	quantities, words []string
}

// field is a part of a device.
type field struct {
	// section is attributes or capacity, or one of driver and allowMultipleAllocations,
	// which have neither domain nor name.
	section, domain, name string
}

const (
	sectionAttributes = "attributes"
	sectionCapacity   = "capacity"
)

// conjuncts takes a selector apart. An expression that cannot be taken apart is one conjunct.
func conjuncts(expression string) []conjunct {
	whole := []conjunct{{text: expression, expression: expression}}
	p, err := parse()
	if err != nil {
		return whole
	}
	tree, problems := p.Parse(common.NewTextSource(expression))
	if problems != nil && len(problems.GetErrors()) > 0 {
		return whole
	}
	w := &walker{info: tree.SourceInfo()}
	w.split(tree.Expr(), scope{}, func(body string) string { return body })
	if w.failed || len(w.found) == 0 {
		return whole
	}
	return w.found
}

// scope has what cel.bind has given a name: paths from the device.
type scope map[string][]string

// walker collects conjuncts.
type walker struct {
	info   *ast.SourceInfo
	found  []conjunct
	failed bool
}

// split descends through && and cel.bind. around puts the bindings around a part again.
func (w *walker) split(e ast.Expr, names scope, around func(string) string) {
	if e.Kind() == ast.CallKind {
		call := e.AsCall()
		if call.FunctionName() == operators.LogicalAnd {
			for _, arg := range call.Args() {
				w.split(arg, names, around)
			}
			return
		}
		if variable, init, body, ok := binding(e); ok {
			value := w.print(init)
			w.split(body, names.with(variable, init), func(part string) string {
				return around(fmt.Sprintf("cel.bind(%s, %s, %s)", variable, value, part))
			})
			return
		}
	}
	text := w.print(e)
	c := conjunct{text: text, expression: around(text)}
	c.read(e, names)
	w.found = append(w.found, c)
}

func (w *walker) print(e ast.Expr) string {
	// One line, however long: the text ends up in sentences.
	text, err := parser.Unparse(e, w.info, parser.WrapOnColumn(math.MaxInt32))
	if err != nil {
		w.failed = true
	}
	return text
}

// binding takes cel.bind(variable, init, body) apart.
func binding(e ast.Expr) (variable string, init, body ast.Expr, ok bool) {
	if e.Kind() != ast.CallKind {
		return "", nil, nil, false
	}
	call := e.AsCall()
	args := call.Args()
	if !call.IsMemberFunction() || call.FunctionName() != "bind" || len(args) != 3 ||
		call.Target().Kind() != ast.IdentKind || call.Target().AsIdent() != "cel" || args[0].Kind() != ast.IdentKind {
		return "", nil, nil, false
	}
	return args[0].AsIdent(), args[1], args[2], true
}

// with resolves the value where it is bound, so that a variable may hide one of its own name.
func (s scope) with(variable string, value ast.Expr) scope {
	inner := maps.Clone(s)
	inner[variable] = s.path(value)
	return inner
}

// path is where an expression points to, from the device; nil where it does not.
func (s scope) path(e ast.Expr) []string {
	switch e.Kind() {
	case ast.IdentKind:
		if path, bound := s[e.AsIdent()]; bound {
			return path
		}
		if e.AsIdent() == "device" {
			return []string{"device"}
		}
	case ast.SelectKind:
		return join(s.path(e.AsSelect().Operand()), e.AsSelect().FieldName())
	case ast.CallKind:
		call := e.AsCall()
		switch call.FunctionName() {
		case operators.Index, operators.OptIndex, operators.OptSelect:
			if key, ok := text(call.Args()[1]); ok {
				return join(s.path(call.Args()[0]), key)
			}
		}
	}
	return nil
}

func join(path []string, step string) []string {
	if path == nil {
		return nil
	}
	return append(slices.Clone(path), step)
}

// text is the value of a string that is written out.
func text(e ast.Expr) (string, bool) {
	if e.Kind() != ast.LiteralKind {
		return "", false
	}
	value, ok := e.AsLiteral().(types.String)
	return string(value), ok
}

// read collects what an expression looks at.
func (c *conjunct) read(e ast.Expr, names scope) {
	if f, ok := fieldOf(names.path(e)); ok {
		c.add(f)
		return
	}
	switch e.Kind() {
	case ast.SelectKind:
		c.read(e.AsSelect().Operand(), names)
	case ast.ListKind:
		for _, element := range e.AsList().Elements() {
			c.read(element, names)
		}
	case ast.LiteralKind:
		if word, ok := text(e); ok {
			c.words = append(c.words, word)
		}
	case ast.CallKind:
		c.readCall(e, names)
	}
}

func (c *conjunct) readCall(e ast.Expr, names scope) {
	if variable, init, body, ok := binding(e); ok {
		c.read(body, names.with(variable, init))
		return
	}
	call := e.AsCall()
	args := call.Args()
	switch {
	case call.FunctionName() == operators.In && len(args) == 2:
		// "name" in device.attributes["domain"]
		if key, ok := text(args[0]); ok {
			if f, ok := fieldOf(join(names.path(args[1]), key)); ok {
				c.add(f)
				return
			}
		}
	case call.FunctionName() == "quantity" && len(args) == 1:
		if value, ok := text(args[0]); ok {
			c.quantities = append(c.quantities, value)
		}
		return
	case call.FunctionName() == "semver":
		return
	}
	if call.IsMemberFunction() {
		c.read(call.Target(), names)
	}
	for _, arg := range args {
		c.read(arg, names)
	}
}

func (c *conjunct) add(f field) {
	if !slices.Contains(c.reads, f) {
		c.reads = append(c.reads, f)
	}
}

// fieldOf takes a whole path from the device.
func fieldOf(path []string) (field, bool) {
	if len(path) == 2 && (path[1] == "driver" || path[1] == "allowMultipleAllocations") {
		return field{section: path[1]}, true
	}
	if len(path) == 4 && (path[1] == sectionAttributes || path[1] == sectionCapacity) {
		return field{section: path[1], domain: path[2], name: path[3]}, true
	}
	return field{}, false
}

// names are those that the field may have in a device of a driver, whose own domain may be
// left out.
func (f field) names(driver string) []resourceapi.QualifiedName {
	names := []resourceapi.QualifiedName{resourceapi.QualifiedName(f.domain + "/" + f.name)}
	if f.domain == driver {
		names = append(names, resourceapi.QualifiedName(f.name))
	}
	return names
}
